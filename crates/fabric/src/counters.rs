//! Interface counters of a namespace, as the kernel reports them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};

use frame::SHARED_HEADERS;
use serde::{Deserialize, Serialize};

use crate::netns::{Namespace, NetnsError};

/// The counters of a namespace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CountersError {
    /// The namespace cannot be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// `/proc/net/dev` cannot be read.
    #[error("cannot read the interface counters")]
    Read(#[from] io::Error),
}

/// The counters of one interface since its creation. A GSO super-frame counts as one packet with
/// the bytes of the super-frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received, without the Ethernet FCS.
    pub rx_bytes: u64,
    /// Received packets that the kernel dropped: a queue was full, or no protocol takes them.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent, without the Ethernet FCS.
    pub tx_bytes: u64,
    /// Packets that were dropped instead of sent.
    pub tx_dropped: u64,
}

impl Counters {
    /// The number of sent frames, if each carries `payload` bytes of UDP payload. It is computed
    /// from the bytes, so that the frames of a super-frame are counted.
    #[must_use]
    pub const fn frames_sent(&self, payload: u64) -> u64 {
        frames(self.tx_bytes, self.tx_packets, payload)
    }

    /// The number of received frames, computed as in [`Self::frames_sent`].
    #[must_use]
    pub const fn frames_received(&self, payload: u64) -> u64 {
        frames(self.rx_bytes, self.rx_packets, payload)
    }
}

const fn frames(bytes: u64, packets: u64, payload: u64) -> u64 {
    bytes.saturating_sub(SHARED_HEADERS as u64 * packets) / if payload == 0 { 1 } else { payload }
}

/// The table of counters of a namespace. It is read from any thread.
#[derive(Debug)]
pub struct Table {
    file: File,
    text: String,
}

impl Table {
    /// Opens the table of a namespace.
    ///
    /// # Errors
    /// [`CountersError`].
    pub fn of(namespace: &Namespace) -> Result<Self, CountersError> {
        Ok(namespace.enter(Self::open)??)
    }

    /// Opens the table of the calling thread's namespace.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { file: File::open("/proc/thread-self/net/dev")?, text: String::new() })
    }

    /// Reads the present counters of each interface.
    ///
    /// # Errors
    /// Those of read(2).
    pub fn read(&mut self) -> io::Result<impl Iterator<Item = (&str, Counters)>> {
        self.file.rewind()?;
        self.text.clear();
        self.file.read_to_string(&mut self.text)?;
        Ok(parse(&self.text))
    }
}

/// Reads the counters of all interfaces of a namespace, by name.
///
/// # Errors
/// [`CountersError`].
pub fn read(namespace: &Namespace) -> Result<BTreeMap<String, Counters>, CountersError> {
    let mut table = Table::of(namespace)?;
    let counters = table.read()?;
    Ok(counters.map(|(name, counters)| (name.to_owned(), counters)).collect())
}

/// Parses `/proc/net/dev` (Linux net/core/net-procfs.c).
fn parse(table: &str) -> impl Iterator<Item = (&str, Counters)> {
    table.lines().filter_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        let mut numbers = numbers.split_ascii_whitespace();
        // The number after `skipped` others.
        let mut next = |skipped| numbers.nth(skipped)?.parse().ok();
        let (rx_bytes, rx_packets, rx_dropped) = (next(0)?, next(0)?, next(1)?);
        let (tx_bytes, tx_packets, tx_dropped) = (next(4)?, next(0)?, next(1)?);
        let counters =
            Counters { rx_packets, rx_bytes, rx_dropped, tx_packets, tx_bytes, tx_dropped };
        Some((name.trim(), counters))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_super_frame_counts_as_its_frames() {
        // Ten single frames, and one super-frame of 64.
        let (payload, packets) = (1090, 11);
        let bytes = 10 * (42 + payload) + 42 + 64 * payload;
        let counters = Counters {
            tx_packets: packets,
            tx_bytes: bytes,
            rx_packets: 2,
            rx_bytes: 84,
            ..Counters::default()
        };
        assert_eq!((counters.frames_sent(payload), counters.frames_received(payload)), (74, 0));
    }

    #[test]
    fn the_kernels_table() {
        let table = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       1    0    0    0     0          0         0        2       3    0    0    0     0       0          0
up1.10: 1082000    1000    5    4    0     0          0         7     9100      13    6    8    0     0       0          0
";
        let counters: BTreeMap<&str, Counters> = parse(table).collect();
        assert_eq!(counters.keys().collect::<Vec<_>>(), [&"lo", &"up1.10"]);
        let expected = Counters {
            rx_packets: 1000,
            rx_bytes: 1_082_000,
            rx_dropped: 4,
            tx_packets: 13,
            tx_bytes: 9100,
            tx_dropped: 8,
        };
        assert_eq!(counters["up1.10"], expected);
    }
}
