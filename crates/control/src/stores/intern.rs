//! Interning: equal values are stored once.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash};
use std::sync::Arc;

use tables::hash::TableHasher;

/// Unused values are dropped when the set has this many values, or twice as many as after the last
/// cleanup, whichever is more.
const FEW: usize = 64;

/// A set of shared values. While a value is in use, equal values are the same `Arc`.
#[derive(Debug)]
pub(crate) struct Shared<T> {
    values: HashSet<Arc<T>, BuildHasherDefault<TableHasher>>,
    limit: usize,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self { values: HashSet::default(), limit: FEW }
    }
}

impl<T: Hash + Eq + Clone> Shared<T> {
    /// The shared value that is equal to this one.
    pub(crate) fn share(&mut self, value: &T) -> Arc<T> {
        if let Some(shared) = self.values.get(value) {
            return Arc::clone(shared);
        }
        if self.values.len() >= self.limit {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.limit = FEW.max(2 * self.values.len());
        }
        let shared = Arc::new(value.clone());
        self.values.insert(Arc::clone(&shared));
        shared
    }

    /// All values, including some that are not in use any more.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.values.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_and_what_nobody_holds_is_forgotten() {
        let mut shared = Shared::default();
        let held = shared.share(&"a".to_owned());
        assert!(Arc::ptr_eq(&held, &shared.share(&"a".to_owned())));
        (0..10_000).for_each(|number| drop(shared.share(&number.to_string())));
        assert!(shared.values.len() <= 2 * FEW, "{}", shared.values.len());
        assert!(Arc::ptr_eq(&held, &shared.share(&"a".to_owned())));
        let many: Vec<_> = (0..1000).map(|number| shared.share(&number.to_string())).collect();
        assert!(many.iter().all(|value| Arc::ptr_eq(value, &shared.share(value))));
    }
}
