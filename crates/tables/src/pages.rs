//! A list of pages. A page is copied when it is first changed after the list was cloned.

use std::sync::Arc;

/// Elements of a page.
const PAGE: usize = 64;

type Page<T> = Arc<[Option<T>; PAGE]>;

/// A sparse list that is cheap to clone. Elements that were never set are empty.
#[derive(Debug, Clone)]
pub(crate) struct Pages<T>(Vec<Page<T>>);

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone> Pages<T> {
    /// The element at an index.
    pub(crate) fn get(&self, place: usize) -> Option<&T> {
        self.0.get(place / PAGE)?.get(place % PAGE)?.as_ref()
    }

    /// All elements, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flat_map(|page| page.iter().flatten())
    }

    /// All elements with their indices, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (usize, &T)> {
        let all = self.0.iter().flat_map(|page| page.iter()).enumerate();
        all.filter_map(|(index, element)| Some((index, element.as_ref()?)))
    }

    /// Whether neither list was changed since one was cloned from the other. An element that was
    /// replaced by an equal one counts as changed.
    pub(crate) fn is_unchanged(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// Sets or removes the element at an index and returns the previous one.
    pub(crate) fn set(&mut self, place: usize, element: Option<T>) -> Option<T> {
        if element.is_none() && self.get(place).is_none() {
            return None;
        }
        if self.0.len() <= place / PAGE {
            self.0.resize_with(place / PAGE + 1, || Arc::new([const { None }; PAGE]));
        }
        let to = Arc::make_mut(self.0.get_mut(place / PAGE)?).get_mut(place % PAGE)?;
        std::mem::replace(to, element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_copies_one_page() {
        let mut before = Pages::default();
        (0..200).for_each(|n| assert_eq!(before.set(n, Some(n)), None));
        let mut after = before.clone();
        assert!(after.is_unchanged(&before));
        assert_eq!(after.set(70, Some(7)), Some(70));
        assert!(!after.is_unchanged(&before));
        assert_eq!(after.set(199, None), Some(199));
        assert_eq!(after.set(100_000, None), None, "to empty what is empty makes no room for it");
        let shared = before.0.iter().zip(&after.0).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert_eq!((shared, before.0.len(), after.0.len()), (2, 4, 4));
        assert_eq!((before.get(70), after.get(70)), (Some(&70), Some(&7)));
        assert_eq!((before.iter().count(), after.iter().count()), (200, 199));
        assert_eq!(after.get(100_000), None);
    }
}
