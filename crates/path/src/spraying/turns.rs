//! Good feedback of many packets at once, for schemes that use good paths once more.

/// As many good packets are remembered by the scheme that remembers most.
const REMEMBERED: u64 = 256;
/// So many good packets on a path make up for any penalty of it.
const ENOUGH: u64 = 16;

/// The numbers of paths in turns, in proportion to the packets that arrived by each. A report has
/// the packets of one path after those of another one. A scheme that remembers the last good ones
/// would use the last path most.
pub(super) fn turns(good: &[u64]) -> impl Iterator<Item = u16> {
    let most = good.iter().copied().max().unwrap_or_default();
    let rounds = REMEMBERED.checked_div(good.len() as u64).unwrap_or_default().max(ENOUGH);
    (0..rounds.min(most)).flat_map(move |round| {
        let is_in = move |own: u64| (round + 1) * own / most > round * own / most;
        (0..).zip(good).filter(move |(_, own)| is_in(**own)).map(|(number, _)| number)
    })
}

#[cfg(test)]
mod tests {
    use ::spray::order::Tiers;
    use ::spray::{Entropy, Random, Scheme, Signal, Spray as _, Sprayer, Values};

    use super::*;

    #[test]
    fn paths_have_turns_by_their_packets() {
        let all = |good: &[u64]| turns(good).collect::<Vec<_>>();
        assert_eq!(all(&[2, 2]), [0, 1, 0, 1]);
        assert_eq!(all(&[4, 0, 2]), [0, 0, 2, 0, 0, 2]);
        assert_eq!(all(&[0, 0]), []);
        assert_eq!(all(&[]), []);
        let many = all(&[10_000, 5_000, 10_000, 10_000]);
        let of = |number: u16| many.iter().filter(|other| **other == number).count();
        assert_eq!([0, 1, 2, 3].map(of), [64, 32, 64, 64]);
        assert_eq!(all(&[10_000; 64]).len(), 64 * 16);
    }

    /// Each report says of all packets that they were good: no path is better than another one.
    #[test]
    fn schemes_that_remember_good_paths_stay_even() {
        for scheme in [Scheme::Reps, Scheme::Mixed] {
            let mut random = Random::new(5);
            let tiers = Tiers::unknown(Values::new(4).unwrap());
            let mut sprayer = Sprayer::new(scheme, tiers, (1_000_000, 1000), &mut random);
            let mut sent = [0_u64; 4];
            for report in 0..200 {
                let mut good = [0_u64; 4];
                for _ in 0..40 {
                    good[sprayer.next(report, &mut random).index()] += 1;
                }
                sent.iter_mut().zip(good).for_each(|(sent, good)| *sent += good);
                for number in turns(&good) {
                    sprayer.feedback(report, Entropy(number), Signal::Good(1));
                }
            }
            let most = *sent.iter().max().unwrap();
            assert!(most < 8000 / 4 * 11 / 10, "{scheme}: {sent:?}");
        }
    }
}
