//! Flows that begin at random times, with sizes from a distribution.

use spray::Random;

use crate::time::Picos;
use crate::traffic::{Flow, Start};

/// A distribution of sizes: points of bytes and the share of flows that have at most so many. Between
/// two points, sizes are equally likely. Published traces have this form.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes(Vec<(u64, f64)>);

impl Sizes {
    /// A distribution of these points.
    ///
    /// # Errors
    /// A sentence, if bytes and shares do not grow, or the last share is not 1.
    pub fn new(points: &[(u64, f64)]) -> Result<Self, String> {
        let grows = points.windows(2).all(|pair| match pair {
            [before, after] => before.0 < after.0 && before.1 <= after.1,
            _ => true,
        });
        let first = points.first().is_some_and(|first| first.0 > 0 && first.1 >= 0.0);
        let last = points.last().is_some_and(|last| last.1 == 1.0);
        if grows && first && last {
            Ok(Self(points.to_vec()))
        } else {
            Err("'sizes' needs pairs of bytes and shares that grow, with 1 at the end, such as \
                 [[1000, 0.5], [1000000, 1.0]]"
                .to_owned())
        }
    }

    /// The mean in bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let (mut sum, mut before) = (0.0, None::<(u64, f64)>);
        for &(bytes, share) in &self.0 {
            let (from, below) = before.unwrap_or((bytes, 0.0));
            sum += (share - below) * f64::midpoint(from as f64, bytes as f64);
            before = Some((bytes, share));
        }
        sum
    }

    /// The size at a share of the flows, 0 to 1.
    fn at(&self, unit: f64) -> u64 {
        let mut before = None::<(u64, f64)>;
        for &(bytes, share) in &self.0 {
            if unit <= share {
                let (from, below) = before.unwrap_or((bytes, 0.0));
                let part = if share > below { (unit - below) / (share - below) } else { 1.0 };
                return from + ((bytes - from) as f64 * part) as u64;
            }
            before = Some((bytes, share));
        }
        before.map_or(1, |(bytes, _)| bytes)
    }
}

fn unit(random: &mut Random) -> f64 {
    (random.next() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A number from the exponential distribution with mean 1, by comparisons and one addition alone, so
/// that all machines draw the same: von Neumann, "Various techniques used in connection with random
/// digits" (1951).
fn exponential(random: &mut Random) -> f64 {
    let mut whole = 0.0;
    loop {
        let first = unit(random);
        let (mut last, mut length) = (first, 1);
        loop {
            let next = unit(random);
            if next >= last {
                break;
            }
            (last, length) = (next, length + 1);
        }
        if length % 2 == 1 {
            return whole + first;
        }
        whole += 1.0;
    }
}

/// Flows between random hosts, which begin at random times (a Poisson process) until `until`. `gap`:
/// the mean time between two of them, in picoseconds.
#[must_use]
pub fn poisson(hosts: u32, seed: u64, sizes: &Sizes, gap: f64, until: Picos) -> Vec<Flow> {
    let mut random = Random::new(seed);
    let mut flows = Vec::new();
    let mut time = 0.0;
    loop {
        time += gap * exponential(&mut random);
        if time >= until as f64 || hosts < 2 {
            return flows;
        }
        let source = random.below(hosts.into()) as u32;
        let other = random.below(u64::from(hosts) - 1) as u32;
        let target = other + u32::from(other >= source);
        let bytes = sizes.at(unit(&mut random)).max(1);
        let start = Start::At(time as Picos);
        let id = flows.len() as u32 + 1;
        flows.push(Flow { start, ..Flow::new(id, (source, target), bytes) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_distribution() {
        let sizes = Sizes::new(&[(1000, 0.5), (2000, 0.75), (100_000, 1.0)]).unwrap();
        assert_eq!(
            [0.0, 0.5, 0.625, 0.75, 1.0].map(|unit| sizes.at(unit)),
            [1000, 1000, 1500, 2000, 100_000]
        );
        assert_eq!(sizes.mean(), 500.0 + 375.0 + 12_750.0);
        let mut random = Random::new(1);
        let drawn: f64 = (0..100_000).map(|_| sizes.at(unit(&mut random)) as f64).sum();
        assert!((drawn / 1e5 / sizes.mean() - 1.0).abs() < 0.02, "{drawn}");
        assert_eq!(Sizes::new(&[(7, 1.0)]).unwrap().at(0.3), 7);
        for wrong in
            [&[][..], &[(0, 1.0)], &[(5, 0.5)], &[(5, 0.5), (5, 1.0)], &[(5, 0.5), (6, 0.4)]]
        {
            assert!(Sizes::new(wrong).unwrap_err().contains("such as"), "{wrong:?}");
        }
    }

    #[test]
    fn gaps_are_exponential() {
        let mut random = Random::new(3);
        let gaps: Vec<f64> = (0..100_000).map(|_| exponential(&mut random)).collect();
        let mean = gaps.iter().sum::<f64>() / 1e5;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.02 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        let longer = gaps.iter().filter(|gap| **gap > 2.0).count() as f64 / 1e5;
        assert!((longer - (-2.0_f64).exp()).abs() < 0.005, "{longer}");
    }

    #[test]
    fn flows_begin_at_the_rate_and_between_different_hosts() {
        let sizes = Sizes::new(&[(1000, 1.0)]).unwrap();
        let flows = poisson(16, 5, &sizes, 1e6, 10_000_000_000);
        assert!((9_600..10_400).contains(&flows.len()), "{}", flows.len());
        assert!(flows.iter().all(|flow| flow.source != flow.target && flow.target < 16));
        let starts = flows.iter().map(|flow| match flow.start {
            Start::At(time) => time,
            Start::On(_) => 0,
        });
        assert!(starts.is_sorted());
        assert_eq!(flows, poisson(16, 5, &sizes, 1e6, 10_000_000_000));
        assert_eq!(poisson(1, 5, &sizes, 1e6, 1_000_000_000), []);
    }
}
