//! Quantiles of durations in bounded memory.

/// Sub-buckets of a power of two. The relative error of a quantile is at most 1/64.
const SUB: u64 = 64;
const SUB_BITS: u32 = 6;

/// Counts of durations in buckets of a relative width of 1/64.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    /// Counts a duration in nanoseconds.
    pub fn record(&mut self, nanoseconds: u64) {
        let index = bucket(nanoseconds);
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(index) {
            *count += 1;
        }
        self.total += 1;
        self.max = self.max.max(nanoseconds);
    }

    /// The number of durations.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.total
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The longest duration in nanoseconds; exact.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The smallest recorded duration that at least `per_mille` of 1000 do not exceed, in
    /// nanoseconds. It is rounded up by at most 1/64. 0 if nothing was recorded.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> u64 {
        let wanted = (self.total * per_mille.min(1000)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper(index).min(self.max);
            }
        }
        self.max
    }

    /// Adds all durations of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, theirs)| *own += theirs);
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

fn bucket(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(SUB_BITS + 1);
    (u64::from(shift) * SUB + (value >> shift)) as usize
}

/// The largest value of a bucket.
fn upper(index: usize) -> u64 {
    let index = index as u64;
    let shift = (index / SUB).saturating_sub(1);
    let mantissa = index - shift * SUB;
    ((mantissa + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        let mut before = 0;
        for value in (0..100_000).chain((20..63).map(|bit| (1 << bit) + 12345)) {
            let index = bucket(value);
            assert!(index >= before && upper(index) >= value, "{value}");
            assert!(upper(index) - value <= value / 64, "{value} {}", upper(index));
            assert!(index == 0 || upper(index - 1) < value);
            before = index;
        }
    }

    #[test]
    fn quantiles_of_a_known_distribution() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(500), 0);
        (1..=1000).for_each(|value| histogram.record(value * 1000));
        for (per_mille, exact) in
            [(500, 500_000), (990, 990_000), (999, 999_000), (1000, 1e6 as u64)]
        {
            let found = histogram.quantile(per_mille);
            assert!(found >= exact && found <= exact + exact / 64, "{per_mille}: {found}");
        }
        assert_eq!((histogram.max(), histogram.len()), (1_000_000, 1000));
        let mut other = Histogram::default();
        other.record(7);
        other.merge(&histogram);
        assert_eq!((other.len(), other.quantile(0), other.max()), (1001, 7, 1_000_000));
    }
}
