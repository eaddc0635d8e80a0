//! A mark-and-sweep table: each entry has the number of the dump or replay that last confirmed it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash};

use tables::hash::TableHasher;

/// The number of the current or last dump or replay, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Epoch(u32);

impl Epoch {
    /// Starts the next epoch. Entries that are not inserted again are unconfirmed.
    pub(crate) fn advance(&mut self) {
        self.0 = self.0.wrapping_add(1);
    }
}

/// A mark-and-sweep hash map.
#[derive(Debug)]
pub(crate) struct EpochMap<K, V>(HashMap<K, (V, Epoch), BuildHasherDefault<TableHasher>>);

impl<K, V> Default for EpochMap<K, V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K: Hash + Eq + Copy, V: PartialEq> EpochMap<K, V> {
    /// Inserts or confirms an entry. Returns whether its value changed.
    pub(crate) fn insert(&mut self, key: K, value: V, epoch: Epoch) -> bool {
        match self.0.insert(key, (value, epoch)) {
            None => true,
            Some((old, _)) => self.0.get(&key).is_some_and(|(new, _)| *new != old),
        }
    }

    /// Inserts or confirms an entry. Returns the previous value.
    pub(crate) fn replace(&mut self, key: K, value: V, epoch: Epoch) -> Option<V> {
        self.0.insert(key, (value, epoch)).map(|(old, _)| old)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.0.remove(key).map(|(value, _)| value)
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key).map(|(value, _)| value)
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.0.iter().map(|(key, (value, _))| (*key, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.0.keys().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys that `epoch` has not confirmed.
    pub(crate) fn unconfirmed(&self, epoch: Epoch) -> Vec<K> {
        self.0
            .iter()
            .filter(|(_, (_, confirmed))| *confirmed != epoch)
            .map(|(key, _)| *key)
            .collect()
    }

    /// Removes and returns the entries that `epoch` has not confirmed.
    pub(crate) fn sweep(&mut self, epoch: Epoch) -> Vec<(K, V)> {
        self.0
            .extract_if(|_, (_, confirmed)| *confirmed != epoch)
            .map(|(key, (value, _))| (key, value))
            .collect()
    }

    /// Removes and returns the entries for which `doomed` returns true.
    pub(crate) fn remove_if(&mut self, mut doomed: impl FnMut(&K, &V) -> bool) -> Vec<(K, V)> {
        self.0
            .extract_if(|key, (value, _)| doomed(key, value))
            .map(|(key, (value, _))| (key, value))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_what_was_not_confirmed_and_only_that() {
        let mut epoch = Epoch::default();
        let mut table = EpochMap::default();
        assert!(table.insert(1, 'a', epoch));
        assert!(table.insert(2, 'b', epoch));
        assert!(table.insert(3, 'c', epoch));
        epoch.advance();
        assert!(!table.insert(1, 'a', epoch), "a mere confirmation is no change");
        assert!(table.insert(3, 'd', epoch));
        assert_eq!(table.sweep(epoch), [(2, 'b')]);
        assert_eq!(table.len(), 2);
        assert_eq!(table.get(&3), Some(&'d'));
        assert!(table.sweep(epoch).is_empty());
    }
}
