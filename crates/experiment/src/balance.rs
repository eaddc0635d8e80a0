//! Measures of load balance over links, and their expected values for random placement.

use statrs::function::gamma::gamma_ur;

use crate::random::Random;

/// The max-mean ratio (MMR): the largest load divided by the mean load. 1 is ideal, the number of
/// links is the worst. 0 if there is no load.
#[must_use]
pub fn mmr(loads: &[u64]) -> f64 {
    let (max, sum) = (loads.iter().max().copied().unwrap_or_default(), loads.iter().sum::<u64>());
    if sum == 0 { 0.0 } else { max as f64 * loads.len() as f64 / sum as f64 }
}

/// Jain's fairness index (Σx)²/(n·Σx²): 1 is ideal, 1/n is the worst. 0 if there is no load.
#[must_use]
pub fn jain(loads: &[u64]) -> f64 {
    let sum: f64 = loads.iter().map(|load| *load as f64).sum();
    let squares: f64 = loads.iter().map(|load| (*load as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (loads.len() as f64 * squares) }
}

/// The lowest MMR that `flows` equal flows can have on `paths` paths: `ceil(N/paths) / (N/paths)`. 0
/// without flows or paths.
#[must_use]
pub fn floor(flows: usize, paths: usize) -> f64 {
    if flows == 0 || paths == 0 {
        return 0.0;
    }
    (flows.div_ceil(paths) * paths) as f64 / flows as f64
}

/// The distribution of the MMR when each of several equal flows takes a random path.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomPlacement {
    /// The mean load of a path in flows.
    mean: f64,
    /// At index m: the probability that no path has more than m flows.
    at_most: Vec<f64>,
}

impl RandomPlacement {
    /// `flows` is 1 to 1000 and `paths` 1 to 64, because the time is proportional to flows³ ·
    /// paths. With other values the MMR is always 1.0.
    #[must_use]
    pub fn new(flows: usize, paths: usize) -> Self {
        if !(1..=1000).contains(&flows) || !(1..=64).contains(&paths) {
            return Self { mean: 1.0, at_most: vec![0.0, 1.0] };
        }
        let ln_factorial: Vec<f64> = std::iter::once(0.0)
            .chain((1..=flows).scan(0.0, |sum, n| {
                *sum += (n as f64).ln();
                Some(*sum)
            }))
            .collect();
        let at_most = (0..=flows).map(|most| at_most(flows, paths, most, &ln_factorial)).collect();
        Self { mean: flows as f64 / paths as f64, at_most }
    }

    /// The expected MMR.
    #[must_use]
    pub fn expected_mmr(&self) -> f64 {
        self.at_most.iter().map(|probability| 1.0 - probability).sum::<f64>() / self.mean
    }

    /// The probability of each number of flows on the most loaded path, from 0 on.
    #[must_use]
    pub fn fullest(&self) -> Vec<f64> {
        let before = std::iter::once(&0.0).chain(&self.at_most);
        self.at_most.iter().zip(before).map(|(most, before)| (most - before).max(0.0)).collect()
    }

    /// The smallest MMR that is not exceeded with at least this probability.
    #[must_use]
    pub fn quantile_mmr(&self, probability: f64) -> f64 {
        let most = self.at_most.iter().position(|at_most| *at_most >= probability);
        most.unwrap_or(self.at_most.len()) as f64 / self.mean
    }
}

/// The probability that none of `paths` gets more than `most` of `flows`. Each path takes a
/// binomial share of the flows that the previous paths left.
fn at_most(flows: usize, paths: usize, most: usize, ln_factorial: &[f64]) -> f64 {
    let ln = |n: usize| ln_factorial.get(n).copied().unwrap_or_default();
    let mut left = vec![0.0; flows + 1];
    if let Some(all) = left.last_mut() {
        *all = 1.0;
    }
    for paths_left in (2..=paths).rev() {
        let (ln_take, ln_leave) =
            ((1.0 / paths_left as f64).ln(), (1.0 - 1.0 / paths_left as f64).ln());
        let mut next = vec![0.0; flows + 1];
        for (remaining, probability) in
            left.iter().enumerate().filter(|(_, probability)| **probability > 0.0)
        {
            for take in 0..=most.min(remaining) {
                let leave = remaining - take;
                let ways = ln(remaining) - ln(take) - ln(leave);
                let share = (ways + take as f64 * ln_take + leave as f64 * ln_leave).exp();
                if let Some(place) = next.get_mut(leave) {
                    *place += probability * share;
                }
            }
        }
        left = next;
    }
    left.iter().take(most + 1).sum::<f64>().min(1.0)
}

/// The expected MMR of equal flows that a random hash distributes over `paths`.
#[must_use]
pub fn expected_mmr(flows: usize, paths: usize) -> f64 {
    RandomPlacement::new(flows, paths).expected_mmr()
}

/// The expected MMR when flows are distributed over `bins` at random and each bin takes a random
/// path. It is simulated with a fixed seed; the error is about 0.01.
#[must_use]
pub fn expected_mmr_of_bins(flows: usize, bins: usize, paths: usize) -> f64 {
    const TRIALS: u32 = 40_000;
    let mut random = Random::new(1);
    let mut draw =
        |below: usize| usize::try_from(random.below(below.max(1) as u64)).unwrap_or_default();
    let mut sum = 0.0;
    for _ in 0..TRIALS {
        let path_of: Vec<usize> = (0..bins.max(1)).map(|_| draw(paths)).collect();
        let mut loads = vec![0; paths];
        for _ in 0..flows {
            let path = path_of.get(draw(bins)).copied().unwrap_or_default();
            if let Some(load) = loads.get_mut(path) {
                *load += 1;
            }
        }
        sum += mmr(&loads);
    }
    sum / f64::from(TRIALS)
}

/// Pearson's χ² test against equal frequencies: the statistic, and the probability of a value at
/// least as large by chance.
#[must_use]
pub fn chi_squared(counts: &[u64]) -> (f64, f64) {
    let mean = counts.iter().sum::<u64>() as f64 / counts.len().max(1) as f64;
    if mean == 0.0 || counts.len() < 2 {
        return (0.0, 1.0);
    }
    let statistic: f64 = counts.iter().map(|count| (*count as f64 - mean).powi(2) / mean).sum();
    (statistic, chance_of(statistic, counts.len() - 1))
}

/// The probability that a χ² value with so many degrees of freedom is at least `statistic`.
#[must_use]
pub fn chance_of(statistic: f64, freedom: usize) -> f64 {
    if statistic <= 0.0 || freedom == 0 {
        return 1.0;
    }
    gamma_ur(freedom as f64 / 2.0, statistic / 2.0)
}

/// The normalised entropy of the loads, −Σ p log p / log n: 1 is even, 0 is one link only. 0 if
/// there is no load or only one link.
#[must_use]
pub fn entropy(loads: &[u64]) -> f64 {
    let sum: u64 = loads.iter().sum();
    if sum == 0 || loads.len() < 2 {
        return 0.0;
    }
    let shares = loads.iter().map(|load| *load as f64 / sum as f64).filter(|share| *share > 0.0);
    // Adding zero turns the negative zero of one link into zero.
    -shares.map(|share| share * share.ln()).sum::<f64>() / (loads.len() as f64).ln() + 0.0
}

/// The range over the mean, (max − min)/mean: 0 is even. 0 if there is no load.
#[must_use]
pub fn range(loads: &[u64]) -> f64 {
    let (max, min) = (loads.iter().max().unwrap_or(&0), loads.iter().min().unwrap_or(&0));
    let sum: u64 = loads.iter().sum();
    if sum == 0 { 0.0 } else { (max - min) as f64 * loads.len() as f64 / sum as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64, within: f64) -> bool {
        (a - b).abs() <= within
    }

    #[test]
    fn indices_from_best_to_worst() {
        assert_eq!((mmr(&[5, 5, 5, 5]), jain(&[5, 5, 5, 5])), (1.0, 1.0));
        assert_eq!((mmr(&[20, 0, 0, 0]), jain(&[20, 0, 0, 0])), (4.0, 0.25));
        assert_eq!((mmr(&[3, 1]), jain(&[3, 1])), (1.5, 0.8));
        assert_eq!((mmr(&[0, 0]), jain(&[]), mmr(&[])), (0.0, 0.0, 0.0));
        assert_eq!((range(&[5, 5]), range(&[3, 1]), range(&[0, 0])), (0.0, 1.0, 0.0));
        assert_eq!((entropy(&[7, 0]), entropy(&[0, 0]), entropy(&[3])), (0.0, 0.0, 0.0));
        assert!(near(entropy(&[5, 5, 5, 5]), 1.0, 1e-12));
        assert!(near(entropy(&[5, 5, 0, 0]), 0.5, 1e-12));
    }

    #[test]
    fn chance_as_the_literature_has_it() {
        // Numbers of flows, with the expected MMR on 2, 4, 8 and 16 paths.
        let table = [
            (4, [1.38, 2.14, 3.34, 5.36]),
            (8, [1.28, 1.75, 2.61, 4.12]),
            (16, [1.20, 1.52, 2.10, 3.07]),
            (32, [1.14, 1.38, 1.77, 2.41]),
        ];
        for (flows, expected) in table {
            // The published figures are simulated, too.
            for (paths, expected) in [2, 4, 8, 16].into_iter().zip(expected) {
                let found = expected_mmr(flows, paths);
                assert!(
                    near(found, expected, 0.015 * expected),
                    "{flows} flows, {paths} paths: {found}, not {expected}"
                );
            }
        }
        // Computed by hand: of the 4096 placements, 1680 have no pair, 232 a triple or more, and 8
        // all four flows on one path.
        let by_hand = (1.0 + (4096.0 - 1680.0 + 232.0 + 8.0) / 4096.0) / 0.5;
        assert!(near(expected_mmr(4, 8), by_hand, 1e-9));
        assert!(near(expected_mmr(1, 4), 4.0, 1e-9));
        assert!(near(expected_mmr(7, 1), 1.0, 1e-9));
    }

    #[test]
    fn quantiles_enclose_the_mean() {
        let placement = RandomPlacement::new(32, 4);
        let (low, high) = (placement.quantile_mmr(0.025), placement.quantile_mmr(0.975));
        let fullest = placement.fullest();
        assert!(near(fullest.iter().sum(), 1.0, 1e-9));
        let mean: f64 = fullest.iter().zip(0..).map(|(p, n)| p * f64::from(n) / 8.0).sum();
        assert!(near(mean, placement.expected_mmr(), 1e-9));
        assert!(low < placement.expected_mmr() && placement.expected_mmr() < high, "{low} {high}");
        // Two flows share one of two paths with probability 1/2.
        let two = RandomPlacement::new(2, 2);
        assert_eq!((two.quantile_mmr(0.49), two.quantile_mmr(0.51)), (1.0, 2.0));
    }

    #[test]
    fn few_bins_are_worse_than_many() {
        // With many bins, the bins hardly matter.
        assert!(near(expected_mmr_of_bins(8, 256, 4), expected_mmr(8, 4), 0.03));
        assert!(near(expected_mmr_of_bins(32, 1, 4), 4.0, 1e-9));
        let four = expected_mmr_of_bins(32, 4, 4);
        assert!(four > expected_mmr(4, 4) && four < 2.5, "{four}");
    }

    #[test]
    fn chi_squared_as_tables_have_it() {
        // Upper quantiles at p = 0.001 for 3, 7, 15 and 63 degrees of freedom.
        for (freedom, bound) in [(3, 16.266), (7, 24.322), (15, 37.697), (63, 103.442)] {
            let p = chance_of(bound, freedom);
            assert!(near(p, 0.001, 0.000_002), "{freedom}: {p}");
        }
        assert!(near(chance_of(3.841, 1), 0.05, 0.0001));
        assert!(near(chance_of(0.584, 3), 0.9, 0.001));
        assert!(near(chance_of(0.0, 3), 1.0, 0.0));
        assert_eq!(chi_squared(&[10, 10, 10, 10]), (0.0, 1.0));
        let (statistic, p) = chi_squared(&[40, 0, 0, 0]);
        assert!(near(statistic, 120.0, 1e-9) && p < 1e-20);
    }
}
