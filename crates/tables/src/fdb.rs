//! Remote MAC addresses of one VNI, and the VTEP that each is behind.
//!
//! A hash table in chunks, each copied when it is first changed after the table was cloned: a snapshot of 100,000
//! addresses costs a pointer, and the change of one of them a chunk and the list of chunks. Chunks are added one at a time
//! (linear hashing; W. Litwin, VLDB 1980), so that no change pays for the whole table either. A lookup goes from
//! the list of chunks to an entry: two dependent loads, as with any other hash table.

use std::hash::Hasher;
use std::sync::Arc;

use wire::MacAddr;

use crate::hash::TableHasher;
use crate::snapshot::VtepIndex;

/// Mean number of entries in a chunk beyond which one more chunk is added.
const MEAN: usize = 96;

/// A place for an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    mac: MacAddr,
    vtep: VtepIndex,
}

/// No VTEP has this index: indices are places in a list.
const EMPTY: Place = Place { mac: MacAddr::ZERO, vtep: VtepIndex(u32::MAX) };

impl Place {
    const fn is_empty(&self) -> bool {
        self.vtep.0 == EMPTY.vtep.0
    }
}

/// Open addressing with linear probing, at most three quarters full.
type Chunk = Arc<[Place]>;

/// See the module's description.
#[derive(Debug, Clone)]
pub struct Fdb {
    /// Never empty.
    chunks: Arc<[Chunk]>,
    length: usize,
}

impl Default for Fdb {
    fn default() -> Self {
        Self { chunks: Arc::new([Arc::new([])]), length: 0 }
    }
}

fn hash(mac: &MacAddr) -> u64 {
    let MacAddr([a, b, c, d, e, f]) = *mac;
    let mut hasher = TableHasher::default();
    hasher.write_u64(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]));
    hasher.finish()
}

/// Which of `count` chunks a hash belongs to: its low bits, as many as the chunks that are there allow.
const fn chunk_of(hash: u64, count: usize) -> usize {
    let wide = count.next_power_of_two();
    let place = hash as usize & (wide - 1);
    if place < count { place } else { place & (wide / 2 - 1) }
}

/// Where the entry of a MAC address is in its chunk, or the place where it belongs.
fn find<'a>(chunk: &'a [Place], hash: u64, mac: &MacAddr) -> Option<(usize, &'a Place)> {
    let mut at = entropy::choose(hash, chunk.len());
    loop {
        let place = chunk.get(at)?;
        if place.mac == *mac || place.is_empty() {
            return Some((at, place));
        }
        at = if at + 1 == chunk.len() { 0 } else { at + 1 };
    }
}

/// A chunk with these entries and room for as many again as a third of them.
fn chunk_with(entries: impl Iterator<Item = Place>) -> Chunk {
    let entries: Vec<Place> = entries.collect();
    let capacity = if entries.is_empty() { 0 } else { (entries.len() * 3 / 2 + 2).next_multiple_of(4) };
    let mut places = vec![EMPTY; capacity];
    for entry in entries {
        if let Some((at, _)) = find(&places, hash(&entry.mac), &entry.mac)
            && let Some(place) = places.get_mut(at)
        {
            *place = entry;
        }
    }
    places.into()
}

fn occupied(chunk: &[Place]) -> impl Iterator<Item = Place> + '_ {
    chunk.iter().filter(|place| !place.is_empty()).copied()
}

impl Fdb {
    /// The VTEP that a MAC address is behind.
    #[inline]
    #[must_use]
    pub fn get(&self, mac: &MacAddr) -> Option<&VtepIndex> {
        let hash = hash(mac);
        let chunk = self.chunks.get(chunk_of(hash, self.chunks.len()))?;
        let (_, place) = find(chunk, hash, mac)?;
        (!place.is_empty()).then_some(&place.vtep)
    }

    /// Puts a MAC address behind a VTEP; returns the one that it was behind.
    pub fn insert(&mut self, mac: MacAddr, vtep: VtepIndex) -> Option<VtepIndex> {
        let hash = hash(&mac);
        let new = Place { mac, vtep };
        let old = self.get(&mac).copied();
        if old == Some(vtep) {
            return old;
        }
        let count = self.chunks.len();
        let chunk = Arc::make_mut(&mut self.chunks).get_mut(chunk_of(hash, count))?;
        if old.is_none() {
            self.length += 1;
            if (occupied(chunk).count() + 1) * 4 > chunk.len() * 3 {
                *chunk = chunk_with(occupied(chunk).chain([new]));
                self.add_chunk();
                return None;
            }
        }
        let (at, _) = find(chunk, hash, &mac)?;
        if let Some(place) = Arc::make_mut(chunk).get_mut(at) {
            *place = new;
        }
        self.add_chunk();
        old
    }

    /// Forgets a MAC address; returns the VTEP that it was behind.
    pub fn remove(&mut self, mac: &MacAddr) -> Option<VtepIndex> {
        let old = *self.get(mac)?;
        self.length -= 1;
        if self.length == 0 {
            *self = Self::default();
            return Some(old);
        }
        let count = self.chunks.len();
        let chunk = Arc::make_mut(&mut self.chunks).get_mut(chunk_of(hash(mac), count))?;
        // A hole would cut off what was put behind it.
        *chunk = chunk_with(occupied(chunk).filter(|place| place.mac != *mac));
        Some(old)
    }

    /// Adds a chunk if there are too few: entries of one other chunk move there.
    fn add_chunk(&mut self) {
        let count = self.chunks.len();
        if self.length <= count * MEAN {
            return;
        }
        let divided = count - (count + 1).next_power_of_two() / 2;
        let Some(old) = self.chunks.get(divided).cloned() else { return };
        let of = |chunk: usize| {
            chunk_with(occupied(&old).filter(move |place| chunk_of(hash(&place.mac), count + 1) == chunk))
        };
        let mut chunks: Vec<Chunk> = self.chunks.to_vec();
        if let Some(place) = chunks.get_mut(divided) {
            *place = of(divided);
        }
        chunks.push(of(count));
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

    /// All MAC addresses, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (MacAddr, VtepIndex)> + '_ {
        self.chunks.iter().flat_map(|chunk| occupied(chunk)).map(|place| (place.mac, place.vtep))
    }
}

impl PartialEq for Fdb {
    fn eq(&self, other: &Self) -> bool {
        self.length == other.length && self.iter().all(|(mac, vtep)| other.get(&mac) == Some(&vtep))
    }
}

impl Eq for Fdb {}

impl FromIterator<(MacAddr, VtepIndex)> for Fdb {
    fn from_iter<I: IntoIterator<Item = (MacAddr, VtepIndex)>>(entries: I) -> Self {
        let mut fdb = Self::default();
        for (mac, vtep) in entries {
            fdb.insert(mac, vtep);
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
        assert!(largest < 8 * MEAN, "{largest}");
        let places: usize = fdb.chunks.iter().map(|chunk| chunk.len()).sum();
        assert!(places < 200_000, "{places} places for 100,000 entries");
    }

    #[test]
    fn a_change_copies_one_chunk_and_no_clone_sees_it() {
        let before: Fdb = (0..10_000).map(|n| (mac(n), VtepIndex(1))).collect();
        let mut after = before.clone();
        assert_eq!(after.insert(mac(77), VtepIndex(2)), Some(VtepIndex(1)));
        let shared = before.chunks.iter().zip(after.chunks.iter()).filter(|(a, b)| Arc::ptr_eq(a, b));
        assert_eq!(shared.count(), before.chunks.len() - 1);
        assert_eq!((before.get(&mac(77)), after.get(&mac(77))), (Some(&VtepIndex(1)), Some(&VtepIndex(2))));
        let unchanged = after.clone();
        after.insert(mac(77), VtepIndex(2));
        assert!(Arc::ptr_eq(&unchanged.chunks, &after.chunks), "what changes nothing copies nothing");
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
        /// It behaves as a hash map does, and clones stay as they were.
        #[test]
        fn as_a_hash_map(changes in prop::collection::vec((any::<bool>(), 0u32..600, 0u32..5), 0..3000)) {
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
                for number in 0..600 {
                    prop_assert_eq!(fdb.get(&mac(number)), map.get(&mac(number)));
                }
            }
        }
    }
}
