//! Metrics of known paths and placed queue pairs.

use std::fmt;

use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::family::Families;
use crate::view::{ProbingView, TierView};

/// Name and text of a figure of a tier, and where it stands.
type Figure = (&'static str, &'static str, fn(&TierView) -> f64);

/// Encodes all of them; nothing if paths are not probed.
pub(super) fn encode(view: Option<&ProbingView>, out: &mut Families<'_>) -> fmt::Result {
    let Some(view) = view else { return Ok(()) };
    of_vteps(view, out)?;
    out.gauge("vtepd_placed_queue_pairs", "Queue pairs that qp-pin remembers", view.queue_pairs)?;
    out.gauges(
        "vtepd_queue_pairs_same_links",
        "Queue pairs by whether both directions of their connection use the same links",
        view.same_links.iter().map(|(same, n)| (vec![("same", (*same).to_owned())], *n)),
    )?;
    out.counters(
        "vtepd_queue_pair_moves",
        "Moves of queue pairs to another path, by reason",
        view.moves.iter().map(|(reason, n)| (vec![("reason", (*reason).to_owned())], *n)),
    )?;
    out.counter(
        "vtepd_queue_pairs_forgotten",
        "Queue pairs that were forgotten because they sent nothing or their connection ended",
        view.forgotten,
    )?;
    out.counters(
        "vtepd_queue_pairs_beyond",
        "Decisions by qp-hash although qp-pin is set, and ignored messages of the communication \
         manager, by the limit",
        view.beyond.iter().map(|(limit, n)| (vec![("limit", (*limit).to_owned())], *n)),
    )?;
    out.counters(
        "vtepd_probe_messages",
        "Probes sent, and what became of received probes and answers",
        view.messages.iter().map(|(what, n)| (vec![("what", (*what).to_owned())], *n)),
    )
}

/// What is known of the paths to each VTEP, and how even the queue pairs are on them.
fn of_vteps(view: &ProbingView, out: &mut Families<'_>) -> fmt::Result {
    let vtep = |address: &std::net::IpAddr| ("vtep", address.to_string());
    out.gauges(
        "vtepd_probing_ready",
        "Whether the source ports to a VTEP were probed, so that qp-pin knows paths",
        view.vteps.iter().map(|of| (vec![vtep(&of.address)], u64::from(of.ready))),
    )?;
    out.gauges(
        "vtepd_paths_traced",
        "Whether paths to a VTEP are traced by expired TTLs, because it answers no probes",
        view.vteps.iter().map(|of| (vec![vtep(&of.address)], u64::from(of.traced))),
    )?;
    let path_ids = view.vteps.iter().flat_map(|of| {
        [("known", of.known), ("dead", of.dead), ("unknown", of.unknown)]
            .map(|(state, number)| (vec![vtep(&of.address), ("state", state.to_owned())], number))
    });
    out.gauges(
        "vtepd_probed_path_ids",
        "Path ids (next hop and source port) to a VTEP, by what is known of their paths",
        path_ids,
    )?;
    out.gauges(
        "vtepd_spray_paths",
        "Paths over which packets to a VTEP are sprayed; 0 while it does not agree",
        view.vteps.iter().map(|of| (vec![vtep(&of.address)], of.spray_paths)),
    )?;
    let sprayed = view.vteps.iter().flat_map(|of| {
        of.sprayed.map(|(what, n)| (vec![vtep(&of.address), ("what", what.to_owned())], n))
    });
    out.counters(
        "vtepd_sprayed_packets",
        "Packets sprayed to a VTEP on its present paths: sent, and what it reports of them",
        sprayed,
    )?;
    let figures: [Figure; 3] = [
        ("vtepd_tier_mmr", "Queue pairs on the most loaded link of a tier over the mean", |of| {
            of.mmr
        }),
        ("vtepd_tier_mmr_floor", "The lowest MMR that whole queue pairs allow", |of| of.floor),
        ("vtepd_tier_jain", "Jain's index of the queue pairs on the links of a tier", |of| of.jain),
    ];
    for (name, help, read) in figures {
        let rows = view.vteps.iter().flat_map(|of| {
            of.tiers.iter().enumerate().map(move |(tier, figures)| {
                let labels = vec![vtep(&of.address), ("tier", (tier + 1).to_string())];
                (labels, ConstGauge::new(read(figures)))
            })
        });
        out.family((name, help, MetricType::Gauge), rows)?;
    }
    Ok(())
}
