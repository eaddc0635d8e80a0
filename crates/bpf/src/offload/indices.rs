//! Indices of immutable objects in a map.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Gives equal objects the same index as long as they are in use. An index that is free again is
/// used last, so that programs that still read its object are long done.
#[derive(Debug)]
pub(super) struct Indices<T> {
    known: HashMap<T, (u32, usize)>,
    objects: HashMap<u32, T>,
    /// Indices that are free again, oldest first.
    free: VecDeque<u32>,
    /// The first index that was never used.
    next: u32,
    most: u32,
}

impl<T: Clone + Eq + Hash> Indices<T> {
    /// Indices from `first` to `most` − 1.
    pub(super) fn new(first: u32, most: u32) -> Self {
        let (known, objects) = (HashMap::new(), HashMap::new());
        Self { known, objects, free: VecDeque::new(), next: first, most }
    }

    /// The index of an object, and whether it is new, so that the object has to be written. `None`
    /// if no index is free. Each call needs one of [`Self::release`].
    pub(super) fn acquire(&mut self, object: &T) -> Option<(u32, bool)> {
        if let Some((index, uses)) = self.known.get_mut(object) {
            *uses += 1;
            return Some((*index, false));
        }
        let index = if self.next < self.most {
            self.next += 1;
            self.next - 1
        } else {
            self.free.pop_front()?
        };
        self.known.insert(object.clone(), (index, 1));
        self.objects.insert(index, object.clone());
        Some((index, true))
    }

    /// Ends one use of an index. Returns the object if that was the last.
    pub(super) fn release(&mut self, index: u32) -> Option<T> {
        let object = self.objects.get(&index)?;
        let (_, uses) = self.known.get_mut(object)?;
        *uses -= 1;
        if *uses > 0 {
            return None;
        }
        let object = self.objects.remove(&index)?;
        self.known.remove(&object);
        self.free.push_back(index);
        Some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_objects_share_an_index_and_free_ones_are_used_last() {
        let mut indices = Indices::new(1, 4);
        assert_eq!(indices.acquire(&'a'), Some((1, true)));
        assert_eq!(indices.acquire(&'a'), Some((1, false)));
        assert_eq!(indices.acquire(&'b'), Some((2, true)));
        assert_eq!(indices.release(1), None);
        assert_eq!(indices.release(1), Some('a'));
        assert_eq!(indices.release(1), None, "it is free already");
        assert_eq!(indices.acquire(&'a'), Some((3, true)), "not the index that was just freed");
        assert_eq!(indices.acquire(&'c'), Some((1, true)));
        assert_eq!(indices.acquire(&'d'), None);
    }
}
