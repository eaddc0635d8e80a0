//! The receiver: counts lost, reordered, duplicated and damaged frames of each queue pair.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::connection::Connection;
use super::error::RoceError;
use super::frame::{Seen, see};
use super::source::Sent;
use crate::timeline::Bins;
use fabric::packet::{BATCH, Interface, PacketSocket};
use wire::QueuePair;

/// The timeout of a receive call.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(20);
/// Receive buffer size of a frame: the largest payload with all headers.
const FRAME_SIZE: usize = 4352;
/// The highest frame number that is tracked. It limits the bitmap of a queue pair to 16 MiB.
const NUMBER_MAX: u64 = 1 << 27;

/// A receiver on one interface.
#[derive(Debug)]
pub struct Sink {
    socket: PacketSocket,
    /// A socket on the RoCE port. Without it, the host would answer each frame with ICMP port
    /// unreachable.
    _listener: Option<UdpSocket>,
    mark: u64,
    buffer: Vec<u8>,
    counts: Counts,
    opened: Instant,
    arrivals: Bins,
}

/// What has arrived of all queue pairs.
#[derive(Debug, Default)]
struct Counts {
    queue_pairs: BTreeMap<u32, Track>,
    /// The sum of all [`Track::received`].
    received: u64,
    foreign: u64,
}

/// The state of one queue pair.
#[derive(Debug, Default)]
struct Track {
    /// A bitmap of the numbers that arrived.
    arrived: Vec<u64>,
    received: u64,
    reordered: u64,
    duplicated: u64,
    corrupted: u64,
    /// The highest number that arrived, plus one.
    next: u64,
    offset: Option<u32>,
}

/// What arrived of one queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct QueuePairReport {
    /// The destination queue pair.
    pub queue_pair: u32,
    /// Undamaged frames that arrived, without duplicates.
    pub received: u64,
    /// Frames that did not arrive.
    pub lost: u64,
    /// The largest number of frames in a row that did not arrive.
    pub lost_in_a_row: u64,
    /// Frames that arrived after one with a higher number (RFC 4737 section 3.3).
    pub reordered: u64,
    /// Frames that arrived more than once; each repetition counts.
    pub duplicated: u64,
    /// Frames with a wrong ICRC or an impossible number.
    pub corrupted: u64,
}

/// What arrived of all queue pairs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The queue pairs, by destination number.
    pub queue_pairs: Vec<QueuePairReport>,
    /// IPv4 frames that do not belong to the stream.
    pub foreign: u64,
}

impl Report {
    /// Undamaged frames that arrived, without duplicates.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.queue_pairs.iter().map(|report| report.received).sum()
    }

    /// Frames that did not arrive.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.queue_pairs.iter().map(|report| report.lost).sum()
    }

    /// Frames that arrived after a later frame of their queue pair.
    #[must_use]
    pub fn reordered(&self) -> u64 {
        self.queue_pairs.iter().map(|report| report.reordered).sum()
    }

    /// Repetitions of frames that had already arrived.
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
    /// Opens a receiver on an interface of the calling thread's namespace. From now on, the socket
    /// buffers some ten thousand frames between calls of [`Sink::receive`].
    ///
    /// # Errors
    /// [`RoceError::Packet`] if there is no such interface, or without `CAP_NET_RAW`.
    pub fn open(interface: &str, mark: u64) -> Result<Self, RoceError> {
        let interface = Interface::find(interface)?;
        let socket = PacketSocket::receiver(&interface, RECEIVE_TIMEOUT)?;
        let listener = UdpSocket::bind(("0.0.0.0", wire::number::PORT_ROCE)).ok();
        let buffer = vec![0; FRAME_SIZE * BATCH];
        let opened = Instant::now();
        Ok(Self {
            socket,
            _listener: listener,
            mark,
            buffer,
            counts: Counts::default(),
            opened,
            arrivals: Bins::since(opened),
        })
    }

    /// Receives one batch. Returns the number of frames: 0 after a timeout.
    ///
    /// # Errors
    /// [`RoceError::Packet`] if the interface no longer exists.
    pub fn receive(&mut self) -> Result<usize, RoceError> {
        let before = self.received();
        let Self { socket, mark, buffer, counts, .. } = self;
        let seen = socket.receive(buffer, FRAME_SIZE, |frame| counts.add(see(frame, *mark)))?;
        self.arrivals.add(Instant::now(), self.received() - before);
        Ok(seen)
    }

    /// Receives until all frames of `sent` have arrived, or no frame of this stream has arrived for
    /// `quiet` and the socket is empty; at most for ten times `quiet` without such a frame.
    ///
    /// # Errors
    /// As [`Sink::receive`].
    pub fn drain(&mut self, sent: &Sent, quiet: Duration) -> Result<(), RoceError> {
        let (mut last, mut is_empty) = (Instant::now(), false);
        let limit = |is_empty| if is_empty { quiet } else { 10 * quiet };
        while self.received() < sent.frames && last.elapsed() < limit(is_empty) {
            let before = self.received();
            is_empty = self.receive()? < BATCH;
            if self.received() > before {
                last = Instant::now();
            }
        }
        Ok(())
    }

    /// When it was opened.
    pub(crate) const fn opened(&self) -> Instant {
        self.opened
    }

    /// The frames of [`Sink::received`] over time, since it was opened.
    pub(crate) fn into_arrivals(self) -> Bins {
        self.arrivals
    }

    /// Undamaged frames that have arrived so far, without duplicates.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.counts.received
    }

    /// The report so far. `lost` counts the numbers missing below the highest one of each queue
    /// pair.
    #[must_use]
    pub fn report(&self) -> Report {
        let report = |(queue_pair, track): (&u32, &Track)| track.report(*queue_pair, track.next);
        let Counts { queue_pairs, foreign, .. } = &self.counts;
        Report { queue_pairs: queue_pairs.iter().map(report).collect(), foreign: *foreign }
    }

    /// The report on a stream that was sent. Queue pairs of which nothing arrived are included.
    #[must_use]
    pub fn report_of(&self, sent: &Sent, connections: &[Connection]) -> Report {
        let Counts { queue_pairs, foreign, .. } = &self.counts;
        let nothing = Track::default();
        let report = |(index, connection): (u64, &Connection)| {
            let queue_pair = connection.remote.get();
            queue_pairs.get(&queue_pair).unwrap_or(&nothing).report(queue_pair, sent.to(index))
        };
        Report { queue_pairs: (0..).zip(connections).map(report).collect(), foreign: *foreign }
    }
}

impl Counts {
    fn add(&mut self, seen: Seen) {
        match seen {
            Seen::Numbered { queue_pair, number, offset } => {
                let is_new = self.track(queue_pair).see(number, offset);
                self.received += u64::from(is_new);
            }
            Seen::Corrupted { queue_pair } => self.track(queue_pair).corrupted += 1,
            Seen::Foreign => self.foreign += 1,
        }
    }

    fn track(&mut self, queue_pair: QueuePair) -> &mut Track {
        self.queue_pairs.entry(queue_pair.get()).or_default()
    }
}

impl Track {
    /// Counts a frame. Returns whether it is undamaged and has not arrived before.
    fn see(&mut self, number: u64, offset: u32) -> bool {
        let expected = *self.offset.get_or_insert(offset);
        let word = usize::try_from(number / 64).unwrap_or(usize::MAX);
        if number > NUMBER_MAX || offset != expected {
            self.corrupted += 1;
            return false;
        }
        if self.arrived.len() <= word {
            self.arrived.resize(word + 1, 0);
        }
        let Some(word) = self.arrived.get_mut(word) else { return false };
        let bit = 1 << (number % 64);
        if *word & bit != 0 {
            self.duplicated += 1;
            return false;
        }
        *word |= bit;
        self.received += 1;
        if number < self.next {
            self.reordered += 1;
        } else {
            self.next = number + 1;
        }
        true
    }

    fn report(&self, queue_pair: u32, sent: u64) -> QueuePairReport {
        let Self { received, reordered, duplicated, corrupted, .. } = *self;
        QueuePairReport {
            queue_pair,
            received,
            lost: sent.saturating_sub(received),
            lost_in_a_row: self.lost_in_a_row(sent),
            reordered,
            duplicated,
            corrupted,
        }
    }

    /// The largest number of consecutive numbers below `sent` that did not arrive.
    fn lost_in_a_row(&self, sent: u64) -> u64 {
        let (mut most, mut row) = (0, 0);
        for (at, word) in (0_u64..).zip(&self.arrived) {
            if *word == u64::MAX {
                row = 0;
                continue;
            }
            let bits = sent.saturating_sub(at * 64).min(64);
            for bit in 0..bits {
                row = if word >> bit & 1 == 0 { row + 1 } else { 0 };
                most = most.max(row);
            }
        }
        // Nothing arrived beyond the bitmap.
        most.max(row + sent.saturating_sub(self.arrived.len() as u64 * 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(numbers: &[u64]) -> QueuePairReport {
        let mut track = Track::default();
        for number in numbers {
            track.see(*number, 5);
        }
        track.report(1, track.next)
    }

    #[test]
    fn order_loss_and_repetition_are_told_apart() {
        let clean = QueuePairReport {
            queue_pair: 1,
            received: 4,
            lost: 0,
            lost_in_a_row: 0,
            reordered: 0,
            duplicated: 0,
            corrupted: 0,
        };
        assert_eq!(track(&[0, 1, 2, 3]), clean);
        let one = QueuePairReport { lost: 1, lost_in_a_row: 1, ..clean };
        assert_eq!(track(&[0, 2, 3, 4]), one);
        assert_eq!(track(&[0, 2, 1, 3]), QueuePairReport { reordered: 1, ..clean });
        assert_eq!(track(&[2, 0, 1, 3]), QueuePairReport { reordered: 2, ..clean });
        assert_eq!(track(&[0, 1, 1, 2, 3, 0]), QueuePairReport { duplicated: 2, ..clean });
        assert_eq!(track(&[0, 1, 2, NUMBER_MAX + 1, 3]), QueuePairReport { corrupted: 1, ..clean });
        assert_eq!((track(&[0, 1, 2, 200]).lost, track(&[0, 1, 2, 200]).lost_in_a_row), (197, 197));
        assert_eq!(track(&[0, 3, 4, 130, 139, 140]).lost_in_a_row, 125);
        // A word of the bitmap that is full ends a row, and the next one begins behind it.
        let around = |last| [&[20], &(64..128).collect::<Vec<_>>()[..], &[last]].concat();
        assert_eq!(track(&around(150)).lost_in_a_row, 43);
        assert_eq!(track(&around(190)).lost_in_a_row, 62);
    }

    #[test]
    fn frames_that_are_missing_at_the_end_count_too() {
        let mut track = Track::default();
        for number in [0, 1, 5] {
            track.see(number, 5);
        }
        assert_eq!(track.report(1, 6).lost_in_a_row, 3);
        assert_eq!(track.report(1, 300).lost_in_a_row, 294);
        assert_eq!(Track::default().report(1, 7).lost_in_a_row, 7);
    }

    #[test]
    fn a_packet_sequence_number_off_its_stream_is_damage() {
        let mut track = Track::default();
        track.see(0, 5);
        track.see(1, 6);
        assert_eq!((track.received, track.corrupted), (1, 1));
    }
}
