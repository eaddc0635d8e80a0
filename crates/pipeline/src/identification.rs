//! Identifications of outer IPv4 packets. All workers take them from one sequence, so that they differ
//! as long as a fragment may live (RFC 6864 section 4.3).

use std::sync::atomic::{AtomicU16, Ordering};

/// Workers have the upper half. BPF programs have the lower one (`IDENTIFICATIONS` in
/// `crates/bpf/programs/encapsulate.bpf.h`).
const UPPER_HALF: u16 = 0x8000;

/// The next identification of this process.
static NEXT: AtomicU16 = AtomicU16::new(0);

/// Takes so many consecutive identifications, and returns the one before the first. The kernel
/// counts on from the first one of a super-frame, so they do not begin anew.
pub(crate) fn take(count: u16) -> u16 {
    let take = || NEXT.fetch_add(count, Ordering::Relaxed) & !UPPER_HALF;
    let first = Some(take()).filter(|first| first.saturating_add(count) <= UPPER_HALF);
    first.unwrap_or_else(take).wrapping_sub(1)
}

/// The identification that follows.
#[inline(always)]
pub(crate) const fn next(identification: u16) -> u16 {
    identification.wrapping_add(1) | UPPER_HALF
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_are_different_and_in_the_upper_half() {
        let (mut seen, mut all) = (BTreeSet::new(), 0);
        for count in (1..=200).cycle().take(300) {
            let mut identification = take(count);
            for _ in 0..count {
                identification = next(identification);
                seen.insert(identification);
                all += 1;
            }
        }
        assert!(seen.iter().all(|identification| *identification >= UPPER_HALF));
        assert_eq!(seen.len(), all, "no test of this process takes any at the same time");
    }
}
