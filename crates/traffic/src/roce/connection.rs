//! Queue pairs.

use wire::QueuePair;

use experiment::random::Random;

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

#[cfg(test)]
mod tests {
    use super::*;
    use experiment::random::SEED;

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
