//! Mean, median and confidence interval of repeated measurements.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The distribution of a measured value over repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Statistics {
    /// The number of values.
    pub count: usize,
    /// The mean.
    pub mean: f64,
    /// Half the width of the confidence interval of the mean, from Student's t distribution.
    /// Infinite with fewer than two values.
    pub half_width: f64,
    /// The median.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The standard error of the mean. Infinite with fewer than two values.
    #[serde(skip)]
    error: f64,
    /// The confidence of the interval, such as 0.95.
    #[serde(skip)]
    confidence: f64,
}

/// Half the width of an interval, in standard errors: Student's t.
fn quantile(freedom: f64, confidence: f64) -> f64 {
    let student = StudentsT::new(0.0, 1.0, freedom);
    student.map_or(f64::INFINITY, |student| student.inverse_cdf(0.5 + confidence / 2.0))
}

/// Half the width of an interval. Values that are all equal have none.
fn half_width(error: f64, freedom: f64, confidence: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error * quantile(freedom, confidence) }
}

impl Statistics {
    /// The statistics of `values` with this confidence, such as 0.95. `None` without values.
    #[must_use]
    pub fn of(values: &[f64], confidence: f64) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let count = sorted.len();
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let middle = [sorted.get((count - 1) / 2)?, sorted.get(count / 2)?];
        let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
        let freedom = count as f64 - 1.0;
        let error = match count {
            1 => f64::INFINITY,
            _ => (squares / freedom / count as f64).sqrt(),
        };
        let half_width = half_width(error, freedom, confidence);
        let median = (middle[0] + middle[1]) / 2.0;
        Some(Self { count, mean, half_width, median, min, max, error, confidence })
    }

    /// How much lower this mean is than another one, as a part of that, and half the width of the
    /// interval, by Welch: the two means are independent and have variances of their own. It is not
    /// narrower than that of their difference. `None` if the other mean is 0.
    #[must_use]
    pub fn gain_over(&self, base: &Self) -> Option<(f64, f64)> {
        let ratio = self.mean / base.mean;
        let half = self.noise(self.error.hypot(base.error * ratio.max(1.0)), base) / base.mean;
        (base.mean > 0.0).then_some((1.0 - ratio, half))
    }

    /// The difference to another mean that noise explains, by Welch.
    #[must_use]
    pub fn difference(&self, other: &Self) -> f64 {
        self.noise(self.error.hypot(other.error), other)
    }

    /// Half the width of an interval with this error, whose degrees of freedom are those of the
    /// difference of two means (Welch and Satterthwaite).
    fn noise(&self, error: f64, other: &Self) -> f64 {
        let [own, others] = [self, other].map(|of| of.error.powi(4) / (of.count as f64 - 1.0));
        let freedom = (self.error.powi(2) + other.error.powi(2)).powi(2) / (own + others);
        half_width(error, freedom, self.confidence)
    }

    /// The same with an interval that is one of several: all of them hold at once with the confidence
    /// that each has now (Bonferroni).
    #[must_use]
    pub fn among(self, intervals: usize) -> Self {
        let confidence = 1.0 - (1.0 - self.confidence) / intervals.max(1) as f64;
        let half_width = half_width(self.error, self.count as f64 - 1.0, confidence);
        Self { half_width, confidence, ..self }
    }

    /// Whether the confidence interval is not wider than `share` of the mean to each side.
    #[must_use]
    pub fn is_precise(&self, share: f64) -> bool {
        self.half_width <= share * self.mean.abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_a_table_of_students_t_has_it() {
        let of = |values: &[f64]| Statistics::of(values, 0.95).unwrap();
        let five = of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((five.mean, five.median, five.min, five.max), (3.0, 3.0, 1.0, 5.0));
        // t(0.975, 4) = 2.776; the standard error is √0.5.
        assert!((five.half_width - 2.776 * 0.5_f64.sqrt()).abs() < 1e-3, "{five:?}");
        assert!(five.is_precise(0.7) && !five.is_precise(0.6));
        assert_eq!(of(&[2.0, 1.0, 9.0, 4.0]).median, 3.0);
        assert_eq!(of(&[4.0, 4.0]).half_width, 0.0);
        assert!(of(&[4.0]).half_width.is_infinite() && !of(&[4.0]).is_precise(0.5));
        assert_eq!(Statistics::of(&[], 0.95), None);
    }

    #[test]
    fn several_intervals_that_hold_at_once_are_wider() {
        let of = |values: &[f64]| Statistics::of(values, 0.95).unwrap();
        let five = of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(five.among(1), five);
        // t(0.9975, 4) = 5.598.
        let ten = five.among(10);
        assert!((ten.half_width - 5.598 * 0.5_f64.sqrt()).abs() < 1e-2, "{ten:?}");
        assert!(of(&[4.0]).among(10).half_width.is_infinite());
    }

    /// The values are those of a run: the MMR with kernel VXLAN and with a policy.
    #[test]
    fn a_gain_is_within_noise_if_the_difference_is() {
        let of = |values: &[f64]| Statistics::of(values, 0.95).unwrap();
        let (base, own) = (of(&[2.0, 3.31, 3.9]), of(&[1.2, 1.37, 1.57]));
        // Student's t of 2.1 degrees of freedom is 4.1; the standard errors are 0.56 and 0.11.
        let (gain, half) = own.gain_over(&base).unwrap();
        assert!((gain - 0.55).abs() < 0.01 && (0.7..0.85).contains(&half), "{gain} {half}");
        assert!((own.difference(&base) - half * base.mean).abs() < 1e-9);
        // As many values with errors of the same size: 8 degrees of freedom, t = 2.306.
        let [a, b] = [0.0, 10.0].map(|more| of(&[1.0, 2.0, 3.0, 4.0, 5.0].map(|of| of + more)));
        assert!((a.difference(&b) - 2.306).abs() < 1e-3, "{}", a.difference(&b));
        let (loss, half) = b.gain_over(&a).unwrap();
        assert!(loss < -3.0 && half > a.difference(&b) / a.mean, "{half}");
        assert_eq!(of(&[2.0, 2.0]).gain_over(&of(&[4.0, 4.0])), Some((0.5, 0.0)));
        assert!(of(&[2.0]).difference(&a).is_infinite());
        assert_eq!(a.gain_over(&of(&[0.0, 0.0])), None);
    }
}
