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
        let half_width = match StudentsT::new(0.0, 1.0, count as f64 - 1.0) {
            _ if count > 1 && squares == 0.0 => 0.0,
            Ok(student) => {
                let error = (squares / (count as f64 - 1.0) / count as f64).sqrt();
                student.inverse_cdf(0.5 + confidence / 2.0) * error
            }
            Err(_) => f64::INFINITY,
        };
        let median = (middle[0] + middle[1]) / 2.0;
        Some(Self { count, mean, half_width, median, min, max })
    }

    /// How much lower this mean is than another one, as a part of that, and half the width of the
    /// interval. It follows from those of the two means, which are independent, and is not narrower
    /// than that of their difference. `None` if the other mean is 0.
    #[must_use]
    pub fn gain_over(&self, base: &Self) -> Option<(f64, f64)> {
        let ratio = self.mean / base.mean;
        let half = self.half_width.hypot(base.half_width * ratio.max(1.0)) / base.mean;
        (base.mean > 0.0).then_some((1.0 - ratio, half))
    }

    /// The same with an interval that is one of several: all of them hold at once with the confidence
    /// that each has now (Bonferroni).
    #[must_use]
    pub fn among(self, intervals: usize, confidence: f64) -> Self {
        let quantile = |confidence: f64| {
            let student = StudentsT::new(0.0, 1.0, self.count as f64 - 1.0).ok()?;
            Some(student.inverse_cdf(0.5 + confidence / 2.0))
        };
        let all = 1.0 - (1.0 - confidence) / intervals.max(1) as f64;
        let wider = quantile(all).zip(quantile(confidence)).map_or(1.0, |(all, one)| all / one);
        Self { half_width: self.half_width * wider, ..self }
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
        assert_eq!(five.among(1, 0.95), five);
        // t(0.9975, 4) = 5.598.
        let ten = five.among(10, 0.95);
        assert!((ten.half_width - 5.598 * 0.5_f64.sqrt()).abs() < 1e-2, "{ten:?}");
        assert!(of(&[4.0]).among(10, 0.95).half_width.is_infinite());
    }

    #[test]
    fn a_gain_is_within_noise_if_the_difference_is() {
        let of = |mean, half_width| Statistics {
            mean,
            half_width,
            ..Statistics::of(&[1.0], 0.95).unwrap()
        };
        // The difference of 1.69 is within √(2.43² + 0.51²) = 2.48.
        let (gain, half) = of(1.38, 0.51).gain_over(&of(3.07, 2.43)).unwrap();
        assert!((gain - 0.55).abs() < 0.01 && (half - 2.48 / 3.07).abs() < 0.01, "{gain} {half}");
        let (loss, half) = of(2.0, 0.0).gain_over(&of(1.0, 0.1)).unwrap();
        assert!(loss == -1.0 && (half - 0.2).abs() < 1e-9, "{half}");
        assert_eq!(of(1.0, 0.1).gain_over(&of(0.0, 0.0)), None);
    }
}
