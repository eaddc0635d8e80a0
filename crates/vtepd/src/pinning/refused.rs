//! Hosts that were refused a place in the table of queue pairs. For a short time, workers do not ask
//! for others of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use path::Key;
use path::hash::hash;
use pathmap::placer::FlowId;

/// How long a host is not asked for.
const FOR: Duration = Duration::from_millis(20);
/// Hosts that are remembered. One that is not is asked for again.
const HOSTS: usize = 1024;

/// By a hash of VNI and host: other bits of it, and until when in milliseconds modulo 2³².
#[derive(Debug)]
pub(super) struct Refused {
    seed: u64,
    hosts: Box<[AtomicU64]>,
}

impl Refused {
    /// `seed` is that of the hash.
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, hosts: (0..HOSTS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The entry of a host, and the bits by which it is known. Never 0.
    fn entry(&self, id: &FlowId) -> Option<(&AtomicU64, u64)> {
        let Key::QueuePair { source, .. } = id.key else { return None };
        let source = wire::as_ipv6(source).to_bits();
        let [high, low] = [(source >> 64) as u64, source as u64];
        let hash = hash(self.seed, [id.vni.into(), high, low]);
        let entry = self.hosts.get(hash as usize % HOSTS)?;
        Some((entry, (hash >> 32) | 1))
    }

    /// Whether the host of a queue pair was refused one a short time ago.
    pub(super) fn has(&self, id: &FlowId, now: Duration) -> bool {
        let Some((entry, bits)) = self.entry(id) else { return false };
        let known = entry.load(Ordering::Relaxed);
        let left = (known as u32).wrapping_sub(now.as_millis() as u32);
        known >> 32 == bits && left > 0 && left <= FOR.as_millis() as u32
    }

    /// The host of a queue pair was refused one.
    pub(super) fn note(&self, id: &FlowId, now: Duration) {
        if let Some((entry, bits)) = self.entry(id) {
            let until = (now + FOR).as_millis() as u32;
            entry.store(bits << 32 | u64::from(until), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use pathmap::placer::Target;
    use wire::QueuePair;

    use super::*;

    fn id(vni: u32, host: u8, queue_pair: u32) -> FlowId {
        let [source, destination] = [host, 1].map(|low| IpAddr::from([192, 0, 2, low]));
        let queue_pair = QueuePair::try_from(queue_pair).unwrap();
        let key = Key::QueuePair { source, destination, queue_pair };
        let address = IpAddr::from([10, 0, 0, 1]);
        let target = Target { local: address, address, port: 4789, by_kernel: false };
        FlowId { vni, key, target }
    }

    #[test]
    fn a_host_is_refused_for_a_short_time_and_others_are_not() {
        let refused = Refused::new(7);
        let ms = Duration::from_millis;
        for start in [0, u64::from(u32::MAX) - 5] {
            assert!(!refused.has(&id(1, 9, 5), ms(start)));
            refused.note(&id(1, 9, 5), ms(start));
            assert!(
                refused.has(&id(1, 9, 6), ms(start)) && refused.has(&id(1, 9, 5), ms(start + 19))
            );
            assert!(!refused.has(&id(1, 9, 5), ms(start + 20)));
            assert!(!refused.has(&id(1, 8, 5), ms(start)) && !refused.has(&id(2, 9, 5), ms(start)));
        }
    }
}
