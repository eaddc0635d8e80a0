//! Numbers for VNIs on the bridge punt pair (indices), and for adjacencies in the counters.

use std::collections::{BTreeSet, HashMap};

use tables::VniIndex;

use crate::stores::neighbours::Adjacency;

/// Free and used indices. A index that was freed is reused as late as possible: frames with its tag
/// may be on their way, and its counters belonged to another VNI.
#[derive(Debug)]
pub(crate) struct VniIndices {
    used: BTreeSet<VniIndex>,
    last: u16,
}

impl Default for VniIndices {
    fn default() -> Self {
        Self { used: BTreeSet::new(), last: VniIndex::MAX }
    }
}

impl VniIndices {
    pub(crate) fn take(&mut self) -> Option<VniIndex> {
        let free = (self.last + 1..=VniIndex::MAX)
            .chain(1..=self.last)
            .filter_map(VniIndex::new)
            .find(|index| !self.used.contains(index))?;
        self.used.insert(free);
        self.last = free.get();
        Some(free)
    }

    pub(crate) fn any_free(&self) -> bool {
        self.used.len() < usize::from(VniIndex::MAX)
    }

    pub(crate) fn give_back(&mut self, index: VniIndex) {
        self.used.remove(&index);
    }
}

/// Number of adjacencies that keep their path number after they are no longer used.
const REMEMBERED: usize = 1000;

/// The path numbers of adjacencies. An adjacency that returns has its old number and therefore its
/// old counters. Unused numbers are dropped only when there are many.
#[derive(Debug, Default)]
pub(crate) struct PathNumbers(HashMap<Adjacency, u16>);

impl PathNumbers {
    /// Assigns numbers to these adjacencies. The others are unused from now on.
    pub(crate) fn assign(&mut self, in_use: &BTreeSet<Adjacency>) {
        let new: Vec<Adjacency> =
            in_use.iter().filter(|adjacency| !self.0.contains_key(adjacency)).copied().collect();
        if self.0.len() + new.len() > REMEMBERED {
            self.0.retain(|adjacency, _| in_use.contains(adjacency));
        }
        let taken: BTreeSet<u16> = self.0.values().copied().collect();
        let free = (0..u16::MAX).filter(|number| !taken.contains(number));
        self.0.extend(new.into_iter().zip(free));
    }

    pub(crate) fn get(&self, adjacency: Adjacency) -> u16 {
        // Counters clamp an index beyond their range.
        self.0.get(&adjacency).copied().unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn all_slots_are_used_before_one_is_reused() {
        let mut indices = VniIndices::default();
        let first = indices.take().unwrap();
        assert_eq!(first.get(), 1);
        indices.give_back(first);
        let all: Vec<u16> = std::iter::from_fn(|| indices.take()).map(VniIndex::get).collect();
        assert_eq!(all.len(), usize::from(VniIndex::MAX));
        assert_eq!((all.first(), all.last()), (Some(&2), Some(&1)));
        let given_back = VniIndex::new(77).unwrap();
        indices.give_back(given_back);
        assert_eq!(indices.take(), Some(given_back));
        assert_eq!(indices.take(), None);
    }

    #[test]
    fn an_adjacency_keeps_its_number_and_gets_it_back() {
        let adjacency = |n: u32| Adjacency {
            ifindex: 1,
            address: IpAddr::from(std::net::Ipv4Addr::from_bits(n)),
        };
        let mut numbers = PathNumbers::default();
        numbers.assign(&BTreeSet::from([adjacency(1), adjacency(2)]));
        let second = numbers.get(adjacency(2));
        numbers.assign(&BTreeSet::from([adjacency(3)]));
        numbers.assign(&BTreeSet::from([adjacency(2), adjacency(4)]));
        assert_eq!(numbers.get(adjacency(2)), second);
        let all: BTreeSet<u16> = (1..=4).map(|n| numbers.get(adjacency(n))).collect();
        assert_eq!(all.len(), 4);
        let many: BTreeSet<Adjacency> = (2..1002).map(adjacency).collect();
        numbers.assign(&many);
        assert_eq!(numbers.get(adjacency(2)), second);
        let distinct: BTreeSet<u16> =
            many.iter().map(|adjacency| numbers.get(*adjacency)).collect();
        assert_eq!(distinct.len(), 1000);
        assert_eq!(numbers.0.len(), 1000, "unused numbers are forgotten once there are many");
    }
}
