//! The tables of counters and drop reasons.

use std::io::{self, Write};

use api::v1;

use crate::output::Table;

/// The drop reasons, and what BPF programs dropped of the frames that workers had sent.
pub(crate) fn all_drops(counters: &v1::Counters) -> Vec<v1::Drop> {
    let late = v1::Drop {
        reason: "punt_unknown_slot".to_owned(),
        frames: counters.steering.map_or(0, |steering| steering.punt_unknown_slot),
        sentence: "A worker had sent it, and the VNI was given back: a BPF program dropped it."
            .to_owned(),
    };
    counters.drops.iter().cloned().chain([late]).collect()
}

/// The drop reasons with a count, or with `all` every drop reason.
pub(crate) fn drops_so_far(out: &mut impl Write, drops: &[v1::Drop], all: bool) -> io::Result<()> {
    let rows = drops.iter();
    let some: Vec<v1::Drop> = rows.filter(|row| all || row.frames > 0).cloned().collect();
    if some.is_empty() {
        return writeln!(out, "No frame has been dropped (--all lists the reasons that there are)");
    }
    dropped(&some).write(out, "")
}

fn dropped(rows: &[v1::Drop]) -> Table<3> {
    let mut table = Table::new(["frames", "reason", "meaning"]);
    for row in rows {
        table.row([row.frames.to_string(), row.reason.clone(), row.sentence.clone()]);
    }
    table
}

fn addresses(counters: &v1::Counters, all: bool) -> Table<2> {
    let mut table = Table::new(["remote MAC addresses", "count"]);
    let (moves, learning) =
        (counters.moves.unwrap_or_default(), counters.learning.unwrap_or_default());
    for (name, count) in [
        ("moves followed", moves.followed),
        ("moves that were over at once", moves.coalesced),
        ("began to move too often", moves.flapping),
        ("learned: new", learning.new),
        ("learned: moved", learning.moved),
        ("learned: refreshed", learning.refreshed),
        ("not learned: too many addresses", learning.too_many_addresses),
        ("not learned: too many VTEPs", learning.too_many_vteps),
        ("not learned: a VTEP that only the kernel can reach", learning.unreachable),
        ("not learned: the kernel refused", learning.refused),
        ("not learned: moves too often", learning.flapping),
        ("not learned: too many at once", learning.rate),
    ]
    .into_iter()
    .filter(|(_, count)| all || *count > 0)
    {
        table.row([name.to_owned(), count.to_string()]);
    }
    table
}

/// The counters of all frames that are not 0, or with `all` every counter.
fn all_frames(counters: &v1::Counters, all: bool) -> Table<2> {
    let mut frames = Table::new(["all frames", "count"]);
    let steering = counters.steering.unwrap_or_default();
    for (name, count) in [
        ("received from the underlay", counters.received_underlay),
        ("received from bridges", counters.received_bridge),
        ("copied (flood lists, segments)", counters.copied),
        ("sent", counters.sent),
        ("sent in super-frames", counters.in_super_frames),
        ("super-frames", counters.super_frames),
        ("sent to hosts past bridges", counters.past_bridge),
        ("sent by a default route (inner frames)", counters.default_route_frames),
        ("dropped", counters.dropped),
        ("held for a next hop", counters.held),
        ("steering: redirected from uplinks", steering.uplink_redirected),
        ("steering: redirected from bridges", steering.vxlan_redirected),
        ("steering: too big, left to the kernel", steering.vxlan_too_big),
        ("kernel datapath: encapsulated with a chosen source port", steering.port_chosen),
        ("kernel datapath: not IP, with the kernel's source port", steering.port_kept),
        ("offload: encapsulated by BPF programs", steering.offload_encapsulated),
        ("offload: decapsulated by BPF programs", steering.offload_decapsulated),
        ("steering: headers could not be changed, dropped", steering.offload_failed),
        ("steering: handed to bridges", steering.punt_returned),
        ("steering: for a VNI that is gone", steering.punt_unknown_slot),
        ("steering: from uplinks, left to the kernel as the worker hung", steering.uplink_stalled),
        ("steering: from bridges, left to the kernel as the worker hung", steering.vxlan_stalled),
        ("steering: from hosts, left to bridges as the worker hung", steering.port_stalled),
        ("times that the worker hung", counters.worker_stalls),
    ]
    .into_iter()
    .filter(|(_, count)| all || *count > 0)
    {
        frames.row([name.to_owned(), count.to_string()]);
    }
    for v1::LimitCounter { limit, count } in &counters.queue_pairs_beyond {
        if all || *count > 0 {
            frames.row([format!("qp-pin: beyond the limit \"{limit}\""), count.to_string()]);
        }
    }
    frames
}

/// All counters, each table after an empty line.
pub(crate) fn counters(out: &mut impl Write, counters: &v1::Counters, all: bool) -> io::Result<()> {
    all_frames(counters, all).write(out, "")?;
    if !all {
        writeln!(out, "(what is 0 is left out; --all shows it)")?;
    }
    writeln!(out)?;
    if counters.workers.len() > 1 {
        let mut workers =
            Table::of("worker|from underlay|from bridges|known flows|other flows|evictions");
        for (number, worker) in counters.workers.iter().enumerate() {
            let v1::WorkerCounters {
                received_underlay,
                received_bridge,
                flow_hits,
                flow_misses,
                flow_evictions,
            } = *worker;
            let received = [number as u64, received_underlay, received_bridge];
            let [worker, underlay, bridge] = received.map(|n| n.to_string());
            let [hits, misses, evictions] =
                [flow_hits, flow_misses, flow_evictions].map(|n| n.to_string());
            workers.row([worker, underlay, bridge, hits, misses, evictions]);
        }
        workers.write(out, "")?;
        writeln!(out)?;
    }
    let addresses = addresses(counters, all);
    if !addresses.is_empty() {
        addresses.write(out, "")?;
        writeln!(out)?;
    }
    let mut vnis = Table::of(
        "vni|netdev|encapsulated|bytes|decapsulated|bytes|switched|flooded|unknown vtep|dropped",
    );
    for row in &counters.vnis {
        vnis.row([
            row.vni.to_string(),
            row.netdev.clone(),
            row.encapsulated_frames.to_string(),
            row.encapsulated_bytes.to_string(),
            row.decapsulated_frames.to_string(),
            row.decapsulated_bytes.to_string(),
            row.switched_frames.to_string(),
            row.flooded.to_string(),
            row.unknown_vtep.to_string(),
            row.dropped.to_string(),
        ]);
    }
    vnis.write(out, "")?;
    writeln!(out)?;
    let mut paths = Table::new(["uplink", "gateway", "frames", "bytes"]);
    for row in &counters.paths {
        paths.row([
            row.uplink.clone(),
            row.gateway.clone(),
            row.frames.to_string(),
            row.bytes.to_string(),
        ]);
    }
    paths.write(out, "")?;
    writeln!(out)?;
    let some: Vec<v1::Drop> =
        counters.drops.iter().filter(|drop| drop.frames > 0).cloned().collect();
    dropped(&some).write(out, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_nothing_was_dropped_for_are_shown_if_wanted() {
        let drop = |reason: &str, frames| v1::Drop {
            reason: reason.to_owned(),
            frames,
            ..v1::Drop::default()
        };
        let said_of = |counters: &v1::Counters, all| {
            let mut text = Vec::new();
            drops_so_far(&mut text, &all_drops(counters), all).unwrap();
            String::from_utf8(text).unwrap()
        };
        let said = |rows: &[v1::Drop], all| {
            said_of(&v1::Counters { drops: rows.to_vec(), ..v1::Counters::default() }, all)
        };
        let rows = [drop("no_route", 0), drop("too_big", 3)];
        let lines = |all| said(&rows, all).lines().map(str::to_owned).collect::<Vec<_>>();
        assert!(
            lines(false).len() == 2 && lines(false)[1].contains("too_big"),
            "{:?}",
            lines(false)
        );
        assert_eq!(lines(true).len(), 4);
        assert!(said(&rows[..1], false).starts_with("No frame has been dropped"));
        assert!(said(&rows[..1], true).contains("no_route"));
        let steering = v1::SteeringCounters { punt_unknown_slot: 5, ..Default::default() };
        let programs = v1::Counters { steering: Some(steering), ..v1::Counters::default() };
        assert!(said_of(&programs, false).contains("punt_unknown_slot"));
    }
}
