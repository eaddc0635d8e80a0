//! Metric families: counters and gauges, with and without labels.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// The labels and the value of one sample.
pub(super) type Row = (Vec<(&'static str, String)>, u64);

/// Encodes a family of metrics.
pub(super) fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, kind): (&str, &str, MetricType),
    rows: impl IntoIterator<Item = (Vec<(&'static str, String)>, M)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in rows {
        value.encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Encodes a gauge without labels.
pub(super) fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    n: u64,
) -> fmt::Result {
    let value = ConstGauge::new(i64::try_from(n).unwrap_or(i64::MAX));
    value.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// Encodes a counter without labels.
pub(super) fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    n: u64,
) -> fmt::Result {
    ConstCounter::new(n).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

/// Encodes counters with labels.
pub(super) fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: impl IntoIterator<Item = Row>,
) -> fmt::Result {
    let rows = rows.into_iter().map(|(labels, n)| (labels, ConstCounter::new(n)));
    family(encoder, (name, help, MetricType::Counter), rows)
}

/// Encodes gauges with labels.
pub(super) fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: impl IntoIterator<Item = Row>,
) -> fmt::Result {
    let rows = rows
        .into_iter()
        .map(|(labels, n)| (labels, ConstGauge::new(i64::try_from(n).unwrap_or(i64::MAX))));
    family(encoder, (name, help, MetricType::Gauge), rows)
}
