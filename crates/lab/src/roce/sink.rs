//! Receiving: what arrived of each queue pair, in which order, and how often.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

use serde::Serialize;

use super::{Connection, RoceError, Seen, Sent, see};
use crate::packet::{BATCH, Interface, PacketSocket};

/// How long a receive waits before the sink looks up.
const PATIENCE: Duration = Duration::from_millis(20);
/// The longest frame that is kept whole: the largest payload with all headers.
const FRAME_SIZE: usize = 4352;
/// Numbers up to here are kept track of; 16 MiB per queue pair at most.
const NUMBER_MAX: u64 = 1 << 27;

/// A sink on one interface.
#[derive(Debug)]
pub struct Sink {
    socket: PacketSocket,
    /// A host that nobody listens on would answer each frame with ICMP port unreachable.
    _listener: Option<UdpSocket>,
    mark: u64,
    buffer: Vec<u8>,
    queue_pairs: BTreeMap<u32, Track>,
    foreign: u64,
}

/// What is known of one queue pair.
#[derive(Debug, Default)]
struct Track {
    /// A bit for each number that arrived.
    arrived: Vec<u64>,
    received: u64,
    reordered: u64,
    duplicated: u64,
    corrupted: u64,
    /// One more than the highest number that arrived.
    next: u64,
    offset: Option<u32>,
}

/// What arrived of one queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct QueuePairReport {
    /// Destination queue pair.
    pub queue_pair: u32,
    /// Different frames that arrived undamaged.
    pub received: u64,
    /// Frames that did not arrive.
    pub lost: u64,
    /// Frames that arrived after one with a higher number (RFC 4737 section 3.3).
    pub reordered: u64,
    /// Frames that had arrived before.
    pub duplicated: u64,
    /// Frames with a wrong ICRC, or an impossible number.
    pub corrupted: u64,
}

/// What arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// By destination queue pair.
    pub queue_pairs: Vec<QueuePairReport>,
    /// IPv4 frames that are none of this stream's.
    pub foreign: u64,
}

impl Report {
    /// Different frames that arrived undamaged.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.queue_pairs.iter().map(|report| report.received).sum()
    }

    /// Frames that did not arrive.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.queue_pairs.iter().map(|report| report.lost).sum()
    }

    /// Frames that arrived after a later one of their queue pair.
    #[must_use]
    pub fn reordered(&self) -> u64 {
        self.queue_pairs.iter().map(|report| report.reordered).sum()
    }

    /// Frames that had arrived before.
    #[must_use]
    pub fn duplicated(&self) -> u64 {
        self.queue_pairs.iter().map(|report| report.duplicated).sum()
    }

    /// Damaged frames.
    #[must_use]
    pub fn corrupted(&self) -> u64 {
        self.queue_pairs.iter().map(|report| report.corrupted).sum()
    }
}

impl Sink {
    /// Starts to receive on an interface of the calling thread's namespace: what arrives from now
    /// on is not missed, also while nobody calls [`Sink::receive`], for some ten thousand frames.
    ///
    /// # Errors
    /// [`RoceError::Packet`] if there is no such interface, or without CAP_NET_RAW.
    pub fn open(interface: &str, mark: u64) -> Result<Self, RoceError> {
        let interface = Interface::find(interface)?;
        let socket = PacketSocket::receiver(&interface, PATIENCE)?;
        let listener = UdpSocket::bind(("0.0.0.0", wire::number::PORT_ROCE)).ok();
        let buffer = vec![0; FRAME_SIZE * BATCH];
        Ok(Self {
            socket,
            _listener: listener,
            mark,
            buffer,
            queue_pairs: BTreeMap::new(),
            foreign: 0,
        })
    }

    /// Receives one batch, or waits a little in vain. Returns how many frames there were.
    ///
    /// # Errors
    /// [`RoceError::Packet`] if the interface goes away.
    pub fn receive(&mut self) -> Result<usize, RoceError> {
        let Self { socket, mark, buffer, queue_pairs, foreign, .. } = self;
        Ok(socket
            .receive(buffer, FRAME_SIZE, |frame| count(see(frame, *mark), queue_pairs, foreign))?)
    }

    /// Receives until `quiet` has passed without a frame of this stream, or all of `sent` are
    /// there. Others may go on.
    ///
    /// # Errors
    /// As [`Sink::receive`].
    pub fn drain(&mut self, sent: &Sent, quiet: Duration) -> Result<(), RoceError> {
        let mut last = std::time::Instant::now();
        while last.elapsed() < quiet && self.received() < sent.frames {
            let before = self.received();
            self.receive()?;
            if self.received() > before {
                last = std::time::Instant::now();
            }
        }
        Ok(())
    }

    /// Different frames that have arrived undamaged so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.queue_pairs.values().map(|track| track.received).sum()
    }

    /// What arrived so far; lost is what is missing below the highest number of each queue pair.
    #[must_use]
    pub fn report(&self) -> Report {
        let report = |(queue_pair, track): (&u32, &Track)| track.report(*queue_pair, track.next);
        Report { queue_pairs: self.queue_pairs.iter().map(report).collect(), foreign: self.foreign }
    }

    /// What arrived of what was sent; a queue pair of which nothing arrived is in the list too.
    #[must_use]
    pub fn report_of(&self, sent: &Sent, connections: &[Connection]) -> Report {
        let nothing = Track::default();
        let report = |(index, connection): (u64, &Connection)| {
            let queue_pair = connection.remote.get();
            self.queue_pairs.get(&queue_pair).unwrap_or(&nothing).report(queue_pair, sent.to(index))
        };
        Report { queue_pairs: (0..).zip(connections).map(report).collect(), foreign: self.foreign }
    }
}

fn count(seen: Seen, queue_pairs: &mut BTreeMap<u32, Track>, foreign: &mut u64) {
    match seen {
        Seen::Numbered { queue_pair, number, offset } => {
            queue_pairs.entry(queue_pair.get()).or_default().see(number, offset);
        }
        Seen::Corrupted { queue_pair } => {
            queue_pairs.entry(queue_pair.get()).or_default().corrupted += 1
        }
        Seen::Foreign => *foreign += 1,
    }
}

impl Track {
    fn see(&mut self, number: u64, offset: u32) {
        let expected = *self.offset.get_or_insert(offset);
        let word = usize::try_from(number / 64).unwrap_or(usize::MAX);
        if number > NUMBER_MAX || offset != expected {
            self.corrupted += 1;
            return;
        }
        if self.arrived.len() <= word {
            self.arrived.resize(word + 1, 0);
        }
        let Some(word) = self.arrived.get_mut(word) else { return };
        let bit = 1 << (number % 64);
        if *word & bit != 0 {
            self.duplicated += 1;
            return;
        }
        *word |= bit;
        self.received += 1;
        if number < self.next {
            self.reordered += 1;
        } else {
            self.next = number + 1;
        }
    }

    fn report(&self, queue_pair: u32, sent: u64) -> QueuePairReport {
        let Self { received, reordered, duplicated, corrupted, .. } = *self;
        let lost = sent.saturating_sub(received);
        QueuePairReport { queue_pair, received, lost, reordered, duplicated, corrupted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(numbers: &[u64]) -> QueuePairReport {
        let mut track = Track::default();
        numbers.iter().for_each(|number| track.see(*number, 5));
        track.report(1, track.next)
    }

    #[test]
    fn order_loss_and_repetition_are_told_apart() {
        let clean = QueuePairReport {
            queue_pair: 1,
            received: 4,
            lost: 0,
            reordered: 0,
            duplicated: 0,
            corrupted: 0,
        };
        assert_eq!(track(&[0, 1, 2, 3]), clean);
        assert_eq!(track(&[0, 2, 3, 4]), QueuePairReport { lost: 1, ..clean });
        assert_eq!(track(&[0, 2, 1, 3]), QueuePairReport { reordered: 1, ..clean });
        assert_eq!(track(&[2, 0, 1, 3]), QueuePairReport { reordered: 2, ..clean });
        assert_eq!(track(&[0, 1, 1, 2, 3, 0]), QueuePairReport { duplicated: 2, ..clean });
        assert_eq!(track(&[0, 1, 2, NUMBER_MAX + 1, 3]), QueuePairReport { corrupted: 1, ..clean });
        assert_eq!(track(&[0, 1, 2, 200]).lost, 197);
    }

    #[test]
    fn a_packet_sequence_number_off_its_stream_is_damage() {
        let mut track = Track::default();
        track.see(0, 5);
        track.see(1, 6);
        assert_eq!((track.received, track.corrupted), (1, 1));
    }
}
