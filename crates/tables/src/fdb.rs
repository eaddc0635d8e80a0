//! The MAC addresses of one VNI: remote ones with their VTEP, local ones with their bridge port.
//!
//! A hash table of chunks. Clones share chunks; a chunk is copied when it is first changed after a
//! clone. Cloning a table of any size costs one pointer. A change copies one chunk and the list of
//! chunks. Chunks are added one at a time (linear hashing; W. Litwin, VLDB 1980), so that no
//! insertion rehashes the whole table. A chunk is an ordinary hash map, whose lookups compare
//! groups of entries without branches.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use wire::MacAddr;

use crate::hash::{TableHasher, TableMap};
use crate::snapshot::VtepIndex;

/// If the mean number of entries of a chunk exceeds this, a chunk is added.
const MEAN: usize = 512;

type Chunk<T> = Arc<TableMap<MacAddr, T>>;

/// A table of MAC addresses that is cheap to clone. `T` is the destination of an address.
#[derive(Debug, Clone)]
pub struct Fdb<T = VtepIndex> {
    /// Never empty.
    chunks: Arc<[Chunk<T>]>,
    length: usize,
}

impl<T> Default for Fdb<T> {
    fn default() -> Self {
        Self { chunks: Arc::new([Chunk::default()]), length: 0 }
    }
}

/// The hash that selects the chunk: the upper half of the hash that the hash maps of chunks use. A
/// hash map uses the lowest bits as the index and the highest seven as the tag of an entry.
#[inline]
fn hash(mac: &MacAddr) -> u64 {
    let mut hasher = TableHasher::default();
    mac.hash(&mut hasher);
    hasher.finish() >> 32
}

/// The chunk of `count` that a hash belongs to: its low bits, with one bit less if that chunk does
/// not exist yet.
const fn chunk_of(hash: u64, count: usize) -> usize {
    let wide = count.next_power_of_two();
    let place = hash as usize & (wide - 1);
    if place < count { place } else { place & (wide / 2 - 1) }
}

impl<T: Copy + PartialEq> Fdb<T> {
    /// The destination of a MAC address.
    #[inline]
    #[must_use]
    pub fn get(&self, mac: &MacAddr) -> Option<&T> {
        let chunk = match &*self.chunks {
            [only] => only,
            chunks => chunks.get(chunk_of(hash(mac), chunks.len()))?,
        };
        chunk.get(mac)
    }

    /// The chunk of a MAC address, for a change.
    fn chunk(&mut self, mac: &MacAddr) -> Option<&mut TableMap<MacAddr, T>> {
        let place = chunk_of(hash(mac), self.chunks.len());
        Arc::make_mut(&mut self.chunks).get_mut(place).map(Arc::make_mut)
    }

    /// Sets the destination of a MAC address and returns the previous one.
    pub fn insert(&mut self, mac: MacAddr, behind: T) -> Option<T> {
        if self.get(&mac) == Some(&behind) {
            return Some(behind);
        }
        let old = self.chunk(&mac)?.insert(mac, behind);
        if old.is_none() {
            self.length += 1;
            self.add_chunk();
        }
        old
    }

    /// Removes a MAC address and returns its destination.
    pub fn remove(&mut self, mac: &MacAddr) -> Option<T> {
        self.get(mac)?;
        self.length -= 1;
        if self.length == 0 {
            let last = self.get(mac).copied();
            *self = Self::default();
            return last;
        }
        let chunk = self.chunk(mac)?;
        let old = chunk.remove(mac);
        if chunk.len() < chunk.capacity() / 8 {
            chunk.shrink_to_fit();
        }
        old
    }

    /// Adds a chunk if the others are too full, and moves entries of one other chunk to it.
    fn add_chunk(&mut self) {
        let count = self.chunks.len();
        if self.length <= count * MEAN {
            return;
        }
        let divided = count - (count + 1).next_power_of_two() / 2;
        let Some(old) = self.chunks.get(divided) else { return };
        let (moved, kept): (TableMap<_, _>, TableMap<_, _>) =
            old.iter().partition(|(mac, _)| chunk_of(hash(mac), count + 1) == count);
        let mut chunks: Vec<Chunk<T>> = self.chunks.to_vec();
        if let Some(place) = chunks.get_mut(divided) {
            *place = Arc::new(kept);
        }
        chunks.push(Arc::new(moved));
        self.chunks = chunks.into();
    }

    /// Number of MAC addresses.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// All MAC addresses, in any order.
    pub fn iter(&self) -> impl Iterator<Item = (MacAddr, T)> + '_ {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|(mac, behind)| (*mac, *behind))
    }
}

impl<T: Copy + PartialEq> PartialEq for Fdb<T> {
    fn eq(&self, other: &Self) -> bool {
        self.length == other.length
            && self.iter().all(|(mac, behind)| other.get(&mac) == Some(&behind))
    }
}

impl<T: Copy + Eq> Eq for Fdb<T> {}

impl<T: Copy + PartialEq> FromIterator<(MacAddr, T)> for Fdb<T> {
    fn from_iter<I: IntoIterator<Item = (MacAddr, T)>>(entries: I) -> Self {
        let mut fdb = Self::default();
        for (mac, behind) in entries {
            fdb.insert(mac, behind);
        }
        fdb
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn mac(number: u32) -> MacAddr {
        let [a, b, c, d] = number.to_be_bytes();
        MacAddr([2, 0, a, b, c, d])
    }

    #[test]
    fn many_entries_are_found_and_chunks_stay_small() {
        let fdb: Fdb = (0..100_000).map(|n| (mac(n), VtepIndex(n % 1000))).collect();
        assert_eq!(fdb.len(), 100_000);
        assert!((0..100_000).all(|n| fdb.get(&mac(n)) == Some(&VtepIndex(n % 1000))));
        assert!((100_000..200_000).all(|n| fdb.get(&mac(n)).is_none()));
        assert_eq!(fdb.iter().count(), 100_000);
        let largest = fdb.chunks.iter().map(|chunk| chunk.len()).max().unwrap();
        assert!(largest < 4 * MEAN, "{largest}");
        let places: usize = fdb.chunks.iter().map(|chunk| chunk.capacity()).sum();
        assert!(places < 250_000, "{places} places for 100,000 entries");
    }

    #[test]
    fn a_change_copies_one_chunk_and_no_clone_sees_it() {
        let before: Fdb = (0..10_000).map(|n| (mac(n), VtepIndex(1))).collect();
        let mut after = before.clone();
        assert_eq!(after.insert(mac(77), VtepIndex(2)), Some(VtepIndex(1)));
        let shared =
            before.chunks.iter().zip(after.chunks.iter()).filter(|(a, b)| Arc::ptr_eq(a, b));
        assert_eq!(shared.count(), before.chunks.len() - 1);
        assert_eq!(
            (before.get(&mac(77)), after.get(&mac(77))),
            (Some(&VtepIndex(1)), Some(&VtepIndex(2)))
        );
        let unchanged = after.clone();
        after.insert(mac(77), VtepIndex(2));
        assert!(
            Arc::ptr_eq(&unchanged.chunks, &after.chunks),
            "what changes nothing copies nothing"
        );
    }

    #[test]
    fn the_zero_address_is_an_entry_like_any_other() {
        let mut fdb = Fdb::default();
        assert_eq!(fdb.get(&MacAddr::ZERO), None);
        fdb.insert(MacAddr::ZERO, VtepIndex(0));
        assert_eq!(fdb.get(&MacAddr::ZERO), Some(&VtepIndex(0)));
        assert_eq!(fdb.remove(&MacAddr::ZERO), Some(VtepIndex(0)));
        assert!(fdb.is_empty());
    }

    proptest! {
        /// The table behaves like a hash map, and clones do not change.
        #[test]
        fn as_a_hash_map(changes in prop::collection::vec((prop::bool::weighted(0.8), 0u32..2500, 0u32..5), 0..4000)) {
            let (mut fdb, mut map) = (Fdb::default(), HashMap::new());
            let mut kept = Vec::new();
            for (step, (insert, number, vtep)) in changes.into_iter().enumerate() {
                let (mac, vtep) = (mac(number), VtepIndex(vtep));
                if insert {
                    prop_assert_eq!(fdb.insert(mac, vtep), map.insert(mac, vtep));
                } else {
                    prop_assert_eq!(fdb.remove(&mac), map.remove(&mac));
                }
                if step % 300 == 0 {
                    kept.push((fdb.clone(), map.clone()));
                }
            }
            kept.push((fdb, map));
            for (fdb, map) in kept {
                prop_assert_eq!(fdb.len(), map.len());
                prop_assert_eq!(fdb.iter().collect::<HashMap<_, _>>(), map.clone());
                for number in 0..2500 {
                    prop_assert_eq!(fdb.get(&mac(number)), map.get(&mac(number)));
                }
            }
        }
    }
}
