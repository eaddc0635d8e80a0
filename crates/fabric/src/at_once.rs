//! Work on many nodes at once. Requests to a node's namespace wait most of their time, for the
//! kernel's locks and for a processor, and the more so the more routers are starting.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// How many threads [`at_once`] has at most.
const AT_ONCE: usize = 16;

/// Calls `f` with each item, in up to 16 threads. Returns the results in the order of the items, or
/// the first error in that order. After an error, no further item is begun.
///
/// # Errors
/// That of `f`.
pub fn at_once<I: Sync, T: Send, E: Send>(
    items: &[I],
    f: impl Fn(&I) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    few_at_once(AT_ONCE, items, f)
}

/// As [`at_once`], in up to `most` threads.
///
/// # Errors
/// That of `f`.
pub fn few_at_once<I: Sync, T: Send, E: Send>(
    most: usize,
    items: &[I],
    f: impl Fn(&I) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            let result = f(item);
            if result.is_err() {
                next.store(items.len(), Ordering::Relaxed);
            }
            done.push((index, result));
        }
    };
    let mut done: Vec<(usize, Result<T, E>)> = thread::scope(|scope| {
        let threads: Vec<_> = items.iter().take(most).map(|_| scope.spawn(work)).collect();
        let ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ended
            .flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn results_have_the_order_of_the_items() {
        let items: Vec<usize> = (0..100).collect();
        let all = at_once(&items, |item| Ok::<_, ()>(item * 2)).unwrap();
        assert_eq!(all, (0..100).map(|item| item * 2).collect::<Vec<_>>());
        assert_eq!(at_once(&[], |(): &()| Ok::<_, ()>(())).unwrap(), []);
    }

    #[test]
    fn items_do_not_wait_for_each_other() {
        let all_here = Barrier::new(AT_ONCE);
        at_once(&[(); AT_ONCE], |()| {
            all_here.wait();
            Ok::<_, ()>(())
        })
        .unwrap();
    }

    #[test]
    fn an_error_ends_the_work() {
        let begun = AtomicUsize::new(0);
        let items: Vec<usize> = (0..10_000).collect();
        let fails = |item: &usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            if *item < 3 { Err(*item) } else { Ok(()) }
        };
        assert_eq!(at_once(&items, fails), Err(0));
        assert!(begun.into_inner() < items.len());
    }
}
