//! Queue pairs, and the UDP source ports that NICs choose for them.

use serde::{Deserialize, Serialize};
use wire::QueuePair;

use crate::random::Random;

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
                roce::SourcePort::PerQueuePair.of(connection.local, connection.remote)
            }
        }
    }
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
