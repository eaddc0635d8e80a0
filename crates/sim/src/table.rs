//! A list whose items have a number.

use std::ops::{Index, IndexMut};

/// A list. A number that is not in it, which would be an error of the simulator, gives a spare item
/// instead of a panic.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table<T> {
    items: Vec<T>,
    /// Numbers that are given again.
    free: Vec<u32>,
    spare: T,
}

impl<T> Table<T> {
    pub(crate) fn len(&self) -> u32 {
        self.items.len() as u32
    }

    /// Adds an item, and gives its number.
    pub(crate) fn add(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self[at] = item;
                at
            }
            None => {
                self.items.push(item);
                self.len() - 1
            }
        }
    }

    /// The item with this number, which may be given to another one.
    pub(crate) fn release(&mut self, at: u32) -> &mut T {
        self.free.push(at);
        &mut self[at]
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }
}

impl<T: Default> FromIterator<T> for Table<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self { items: items.into_iter().collect(), free: Vec::new(), spare: T::default() }
    }
}

impl<T> Index<u32> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: u32) -> &T {
        let item = self.items.get(at as usize);
        debug_assert!(item.is_some(), "{at} of {}", self.items.len());
        item.unwrap_or(&self.spare)
    }
}

impl<T> IndexMut<u32> for Table<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        debug_assert!((at as usize) < self.items.len(), "{at} of {}", self.items.len());
        self.items.get_mut(at as usize).unwrap_or(&mut self.spare)
    }
}
