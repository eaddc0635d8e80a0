//! Metric families: counters and gauges, with and without labels.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// The labels and the value of one sample.
pub(super) type Row = (Vec<(&'static str, String)>, u64);

/// Encodes families of metrics.
pub(super) struct Families<'a>(pub(super) DescriptorEncoder<'a>);

impl Families<'_> {
    /// Encodes a family.
    pub(super) fn family<M: EncodeMetric>(
        &mut self,
        (name, help, kind): (&str, &str, MetricType),
        rows: impl IntoIterator<Item = (Vec<(&'static str, String)>, M)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in rows {
            value.encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Encodes a gauge without labels.
    pub(super) fn gauge(&mut self, name: &str, help: &str, n: u64) -> fmt::Result {
        signed(n).encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    /// Encodes a counter without labels.
    pub(super) fn counter(&mut self, name: &str, help: &str, n: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(n).encode(metric)
    }

    /// Encodes counters with labels.
    pub(super) fn counters(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = Row>,
    ) -> fmt::Result {
        let rows = rows.into_iter().map(|(labels, n)| (labels, ConstCounter::new(n)));
        self.family((name, help, MetricType::Counter), rows)
    }

    /// Encodes gauges with labels.
    pub(super) fn gauges(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = Row>,
    ) -> fmt::Result {
        let rows = rows.into_iter().map(|(labels, n)| (labels, signed(n)));
        self.family((name, help, MetricType::Gauge), rows)
    }
}

fn signed(n: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(n).unwrap_or(i64::MAX))
}
