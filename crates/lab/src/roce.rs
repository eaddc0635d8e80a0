//! RoCE-shaped traffic: many queue pairs with correct headers and ICRC. Frames are numbered and
//! checked at the receiver.

mod frame;
mod sink;
mod source;
mod stream;

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wire::{MacAddr, QueuePair};

use crate::packet::{Interface, PacketError, PacketSocket};
use crate::process::wait_until;
use crate::random::Random;

pub use frame::{Addresses, FrameTemplate, PAYLOAD_MAX, PAYLOAD_MIN, Seen, see};
pub use sink::{QueuePairReport, Report, Sink};
pub use source::{Limit, Sent, Source};
pub use stream::CARRIED;
pub(crate) use stream::{PAYLOAD, Stream};

/// Traffic could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum RoceError {
    /// The interface cannot be used.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// A setting is out of range.
    #[error("{0}")]
    Setting(String),
    /// The destination address does not answer ARP.
    #[error("no MAC address for {0}: it does not answer ARP")]
    Unresolved(Ipv4Addr),
    /// A socket or thread could not be set up.
    #[error("cannot {action}")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

/// The two queue pair numbers of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Connection {
    /// The sender's queue pair number. Only the UDP source port depends on it.
    pub local: QueuePair,
    /// The receiver's queue pair number, which is in the base transport header.
    pub remote: QueuePair,
}

/// Draws `count` connections from a seed, all with different remote numbers. Numbers 0 and 1 are
/// reserved for management.
#[must_use]
pub fn connections(seed: u64, count: usize) -> Vec<Connection> {
    let mut random = Random::new(seed);
    let mut drawn: Vec<Connection> = Vec::with_capacity(count);
    let mut draw = || {
        let [.., high, middle, low] =
            (2 + random.below(u64::from(QueuePair::MAX) - 1)).to_be_bytes();
        QueuePair::from_be_bytes([high, middle, low])
    };
    while drawn.len() < count.min(1 << 20) {
        let connection = Connection { local: draw(), remote: draw() };
        if drawn.iter().all(|other| other.remote != connection.remote) {
            drawn.push(connection);
        }
    }
    drawn
}

/// How the UDP source port of the inner frames is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InnerPort {
    /// One port for all queue pairs, as older NICs and many traffic generators do. Flows then
    /// differ only by queue pair number.
    Constant(u16),
    /// A port for each connection, from the formula of rdma-core and mlx5 for flow label 0.
    PerQueuePair,
}

impl InnerPort {
    /// The UDP source port of a connection.
    #[must_use]
    pub fn of(self, connection: Connection) -> u16 {
        match self {
            Self::Constant(port) => port,
            Self::PerQueuePair => {
                // rdma-core: rdma_calc_flow_label and rdma_flow_label_to_udp_sport.
                let mut v = u64::from(connection.local.get()) * u64::from(connection.remote.get());
                v ^= v >> 20;
                v ^= v >> 40;
                let label = v & 0xf_ffff;
                let [.., high, low] = ((label & 0x3fff) ^ (label >> 14)).to_be_bytes();
                u16::from_be_bytes([high, low]) | 0xc000
            }
        }
    }
}

/// Resolves an IPv4 address on a link of the calling thread's namespace to a MAC address.
///
/// # Errors
/// [`RoceError::Unresolved`] if there is no answer within `limit`.
pub fn resolve(address: Ipv4Addr, limit: Duration) -> Result<MacAddr, RoceError> {
    const DISCARD_PORT: u16 = 9;
    let io_error = |source| RoceError::Io { action: "open a UDP socket", source };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(io_error)?;
    let mut found = None;
    wait_until(limit, || {
        found = neighbour(address);
        // The datagram only triggers ARP. An ICMP port unreachable is reported as an error by the
        // next send, and is ignored.
        let _ = found.is_none() && socket.send_to(&[], (address, DISCARD_PORT)).is_ok();
        found.is_some()
    });
    found.ok_or(RoceError::Unresolved(address))
}

/// Reads a complete entry of the ARP table in the calling thread's namespace.
fn neighbour(address: Ipv4Addr) -> Option<MacAddr> {
    let table = std::fs::read_to_string("/proc/thread-self/net/arp").ok()?;
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let found = fields.next()?.parse::<Ipv4Addr>().ok()? == address;
        let (_kind, flags, mac) = (fields.next()?, fields.next()?, fields.next()?);
        // ATF_COM of linux/if_arp.h: the entry is complete.
        (found && flags != "0x0").then(|| mac.parse().ok()).flatten()
    })
}

/// Sends a gratuitous ARP (RFC 5227 section 2.3), so that bridges learn the interface's MAC
/// address.
///
/// # Errors
/// If the interface cannot send or has no IPv4 address.
pub fn announce(interface: &str) -> Result<(), RoceError> {
    let interface = Interface::find(interface)?;
    let address = interface.ipv4.ok_or_else(|| {
        RoceError::Setting(format!("{} has no IPv4 address to announce", interface.name))
    })?;
    let frame = frame::gratuitous_arp(interface.mac, address);
    PacketSocket::sender(&interface)?.send(&[&frame])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SEED;

    fn connection(local: u32, remote: u32) -> Connection {
        Connection { local: local.try_into().unwrap(), remote: remote.try_into().unwrap() }
    }

    #[test]
    fn inner_ports_are_rdma_cores() {
        for (local, remote, port) in [
            (0x11, 0x12, 0xc132),
            (0x100, 0x101, 0xc104),
            (0xabcdef, 0x123456, 0xc3c8),
            (1, 1, 0xc001),
        ] {
            assert_eq!(InnerPort::PerQueuePair.of(connection(local, remote)), port);
            assert_eq!(InnerPort::PerQueuePair.of(connection(remote, local)), port);
        }
        assert_eq!(InnerPort::Constant(49152).of(connection(5, 6)), 49152);
    }

    #[test]
    fn connections_are_drawn_alike_each_time() {
        let all = connections(SEED, 1000);
        assert_eq!(all[..32], connections(SEED, 32));
        let mut remotes: Vec<_> = all.iter().map(|connection| connection.remote.get()).collect();
        remotes.sort_unstable();
        remotes.dedup();
        assert_eq!(remotes.len(), 1000);
        assert!(remotes.iter().all(|number| *number > 1));
        assert_ne!(connections(SEED + 1, 1), connections(SEED, 1));
    }
}
