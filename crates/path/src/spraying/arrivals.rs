//! What arrived from a VTEP by each path, for that VTEP.

use core::array;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

/// Places for source ports: four times the paths of a pool, so that most ports have one of their own.
const PLACES: usize = 256;
/// Places that a source port may have.
const NEAR: usize = 8;

/// Sprayed packets that arrived from one VTEP. Workers count them, one thread reads.
#[derive(Debug)]
pub struct Arrivals {
    places: [Place; PLACES],
    bytes: AtomicU64,
    /// Most nanoseconds that a packet waits for the one before it.
    timer: AtomicU64,
    /// Whether at least half of the paths have marks.
    is_congested: AtomicBool,
}

/// The numbers of a source port, modulo 2¹⁶.
#[derive(Debug, Default)]
struct Place {
    /// 0: nobody has it.
    port: AtomicU16,
    received: AtomicU16,
    marked: AtomicU16,
}

/// Packets that arrived by one path, modulo 2¹⁶.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Outer UDP source port; not 0.
    pub port: u16,
    /// Packets that arrived.
    pub received: u16,
    /// Those among them with the ECN mark "congestion experienced".
    pub marked: u16,
}

impl Arrived {
    /// A packet with this outer source port.
    #[must_use]
    pub const fn one(port: u16, is_marked: bool) -> Self {
        Self { port, received: 1, marked: is_marked as u16 }
    }
}

impl Arrivals {
    /// Nothing arrived yet. A packet waits for the one before it at most `timer` nanoseconds.
    #[must_use]
    pub fn new(timer: u64) -> Self {
        let places = array::from_fn(|_| Place::default());
        let (bytes, timer) = (AtomicU64::new(0), AtomicU64::new(timer));
        Self { places, bytes, timer, is_congested: AtomicBool::new(false) }
    }

    /// Counts packets of `bytes` bytes in all.
    pub fn count(&self, new: Arrived, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let Some(place) = self.place(new.port) else { return };
        place.received.fetch_add(new.received, Ordering::Relaxed);
        if new.marked > 0 {
            place.marked.fetch_add(new.marked, Ordering::Relaxed);
        }
    }

    fn place(&self, port: u16) -> Option<&Place> {
        let first = usize::from(port.wrapping_mul(0x9e37) >> 8);
        let mut near = (0..NEAR).filter_map(|step| self.places.get((first + step) % PLACES));
        near.find(|place| {
            let has = place.port.load(Ordering::Relaxed);
            let take = |place: &Place| {
                let taken =
                    place.port.compare_exchange(0, port, Ordering::Relaxed, Ordering::Relaxed);
                taken.is_ok() || taken == Err(port)
            };
            has == port || has == 0 && take(place)
        })
    }

    /// Inner bytes that arrived.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What arrived with each source port.
    pub fn read(&self) -> impl Iterator<Item = Arrived> {
        let load = |number: &AtomicU16| number.load(Ordering::Relaxed);
        let all = self.places.iter().map(move |place| Arrived {
            port: load(&place.port),
            received: load(&place.received),
            marked: load(&place.marked),
        });
        all.filter(|arrived| arrived.port != 0)
    }

    /// Forgets the source ports. Their numbers begin anew.
    pub fn clear(&self) {
        for place in &self.places {
            for number in [&place.port, &place.received, &place.marked] {
                number.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Whether at least half of the paths have marks.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.is_congested.load(Ordering::Relaxed)
    }

    /// Sets whether at least half of the paths have marks.
    pub fn set_congested(&self, is_congested: bool) {
        self.is_congested.store(is_congested, Ordering::Relaxed);
    }

    /// Most nanoseconds that a packet waits for the one before it.
    #[must_use]
    pub fn timer(&self) -> u64 {
        self.timer.load(Ordering::Relaxed)
    }

    /// Sets how long a packet waits, in nanoseconds.
    pub fn set_timer(&self, timer: u64) {
        self.timer.store(timer, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_by_port_and_a_stranger_takes_no_place_of_others() {
        let arrivals = Arrivals::new(7);
        arrivals.count(Arrived::one(50_000, false), 100);
        arrivals.count(Arrived::one(50_001, true), 200);
        arrivals.count(Arrived::one(50_000, true), 300);
        let mut read: Vec<Arrived> = arrivals.read().collect();
        read.sort_by_key(|arrived| arrived.port);
        let of = |port, received, marked| Arrived { port, received, marked };
        assert_eq!((read, arrivals.bytes()), (vec![of(50_000, 2, 1), of(50_001, 1, 1)], 600));
        (1..=u16::MAX).for_each(|port| arrivals.count(Arrived::one(port, false), 1));
        let known = arrivals.read().find(|arrived| arrived.port == 50_000);
        assert_eq!((known, arrivals.read().count()), (Some(of(50_000, 3, 1)), PLACES));
        arrivals.clear();
        assert_eq!(arrivals.read().count(), 0);
    }

    #[test]
    fn sixty_four_ports_of_any_range_have_a_place() {
        for first in (1..60_000u16).step_by(997) {
            for step in [1, 3, 64, 256] {
                let ports: Vec<u16> =
                    (0..64u16).filter_map(|n| first.checked_add(n.checked_mul(step)?)).collect();
                let arrivals = Arrivals::new(0);
                ports.iter().for_each(|port| arrivals.count(Arrived::one(*port, false), 1));
                assert_eq!(arrivals.read().count(), ports.len(), "from {first} by {step}");
            }
        }
    }
}
