//! Counters to Prometheus.
