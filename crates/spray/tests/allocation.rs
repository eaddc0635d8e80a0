//! No scheme allocates memory after it is made.

#![cfg(test)]

use frames::counting::{Counting, allocations};
use spray::order::Tiers;
use spray::{Random, Scheme, Signal, Spray as _, Sprayer};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_scheme_allocates() {
    for scheme in Scheme::ALL {
        let mut random = Random::new(1);
        let tiers = Tiers::new(&[8, 8]).unwrap();
        assert!(allocations(|| drop(vec![1_u8])) > 0, "the counter counts");
        let mut sprayer = Sprayer::new(scheme, tiers, (14_000, 332), &mut random);
        let number = allocations(|| {
            for now in 0..100_000_u64 {
                let entropy = sprayer.next(now * 332, &mut random);
                let signal = match random.below(100) {
                    0 => Signal::Silent,
                    1..4 => Signal::Lost(1),
                    4..20 => Signal::Marked(1),
                    20..40 => continue,
                    _ => Signal::Good(3),
                };
                sprayer.feedback(now * 332, entropy, signal);
            }
        });
        assert_eq!(number, 0, "{scheme}");
    }
}
