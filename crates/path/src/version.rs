//! The numbers that answer "did it change?".

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

/// The version of a `T`. Two versions of one thing are equal only if it has not changed in between.
/// Versions of different things cannot be compared. `docs/design/versions.md` lists who writes and
/// who compares each.
pub struct Version<T: ?Sized>(u64, PhantomData<fn(&T)>);

impl<T: ?Sized> Version<T> {
    /// That of something that never was.
    pub const NONE: Self = Self(0, PhantomData);
    /// A version that nothing has, for unused entries of caches.
    pub const NEVER: Self = Self(u64::MAX, PhantomData);

    /// A version that nothing else in this process has had.
    #[must_use]
    pub fn unique() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1, PhantomData)
    }

    /// The version after a change.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1, PhantomData)
    }

    /// Its number, to be kept in an atomic.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The version with a number of [`Self::number`].
    #[inline]
    #[must_use]
    pub const fn of(number: u64) -> Self {
        Self(number, PhantomData)
    }
}

impl<T: ?Sized> Clone for Version<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Version<T> {}

impl<T: ?Sized> Default for Version<T> {
    fn default() -> Self {
        Self::NONE
    }
}

impl<T: ?Sized> PartialEq for Version<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: ?Sized> Eq for Version<T> {}

impl<T: ?Sized> fmt::Debug for Version<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}", self.0)
    }
}
