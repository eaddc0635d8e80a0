//! Frames of all workers and programs.

use std::fmt;

use frame::DropReason;
use pipeline::Counters;
use pipeline::counters::Counter;

use super::Everything;
use super::family::Families;

impl Everything {
    pub(super) fn frames(&self, out: &mut Families<'_>) -> fmt::Result {
        let c = &self.counters;
        let received =
            [("underlay", c.underlay_received.get()), ("bridge", c.bridge_received.get())]
                .map(|(from, n)| (vec![("from", from.to_owned())], n));
        out.counters(
            "vtepd_received_frames",
            "Frames that workers received (a super-frame is one)",
            received,
        )?;
        self.by_worker(out)?;
        out.counter(
            "vtepd_copied_frames",
            "Frames added by replication and segmentation",
            c.copies.get(),
        )?;
        out.counter("vtepd_sent_frames", "Frames sent (a super-frame is one)", c.sent.get())?;
        out.counter(
            "vtepd_sent_super_frames",
            "UDP super-frames sent to uplinks",
            c.super_frames.get(),
        )?;
        out.counter(
            "vtepd_sent_in_super_frames",
            "Frames sent inside UDP super-frames",
            c.in_super_frames.get(),
        )?;
        out.counter(
            "vtepd_bypass_delivered_frames",
            "Decapsulated frames sent to host ports by the bridge bypass",
            c.past_bridge.get(),
        )?;
        out.gauge(
            "vtepd_held_frames",
            "Frames that wait for their next hop to be resolved",
            c.held.get(),
        )?;
        out.counter(
            "vtepd_worker_stalls",
            "How often a worker hung, so that the kernel forwarded",
            c.stalls.get(),
        )?;
        let drops = DropReason::ALL
            .iter()
            .map(|&reason| (vec![("reason", reason.label().to_owned())], c.dropped(reason)));
        out.counters("vtepd_dropped_frames", "Frames dropped, by reason", drops)?;
        let steering = self.view.steering.iter();
        let steering = steering.map(|&(decision, n)| (vec![("decision", decision.to_owned())], n));
        out.counters(
            "vtepd_steering_frames",
            "Frames by decision of the BPF programs (a super-frame is one)",
            steering,
        )
    }

    /// Frames of each worker.
    fn by_worker(&self, out: &mut Families<'_>) -> fmt::Result {
        let by_worker = |label: &'static str, of: fn(&Counters) -> Vec<(&str, &Counter)>| {
            let rows = self.view.workers.iter().zip(0u16..).flat_map(move |(counters, worker)| {
                let row = move |(value, counter): (&str, &Counter)| {
                    let labels = [("worker", worker.to_string()), (label, value.to_owned())];
                    (labels.to_vec(), counter.get())
                };
                of(counters).into_iter().map(row)
            });
            rows.collect::<Vec<_>>()
        };
        out.counters(
            "vtepd_worker_received_frames",
            "Frames that each worker received (a super-frame is one)",
            by_worker("from", |c| {
                vec![("underlay", &c.underlay_received), ("bridge", &c.bridge_received)]
            }),
        )?;
        out.counters("vtepd_worker_flow_cache",
            "Frames of RoCE flows that a worker remembers (hit) or not (miss), and flows that it forgot for another (eviction)",
            by_worker("result", |c| {
                let cache = &c.flow_cache;
                vec![("hit", &cache.hits), ("miss", &cache.misses), ("eviction", &cache.evictions)]
            }),
        )
    }
}
