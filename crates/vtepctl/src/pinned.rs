//! The tables of `vtepctl path` and `vtepctl qp`.

use std::io::{self, Write};

use api::v1;

use crate::output::Table;

/// What is known of the way to each VTEP: its paths, and the balance of its tiers.
fn paths(out: &mut impl Write, rows: &[v1::VtepPaths]) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(out, "no VTEP is probed: no VNI that is taken over has the policy qp-pin");
    }
    for (number, row) in rows.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let v1::VtepPaths { vtep, local, pairs, known, dead, .. } = row;
        let age = row.age_ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms} ms ago"));
        writeln!(
            out,
            "{local} to VTEP {vtep}: {known} of {pairs} pairs of uplink and port known, {dead} dead, last answer {age}"
        )?;
        let unknown = match (row.complete || *known == 0, row.traced) {
            (true, _) => "",
            (false, true) => "; routers that do not answer are unknown",
            (false, false) => {
                "; the tiers between the leaves are unknown: not every router records its address"
            }
        };
        let routers = match (row.routers_min, row.routers_max) {
            (least, most) if least == most => least.to_string(),
            (least, most) => format!("{least} to {most}"),
        };
        writeln!(out, "  {} paths, {routers} routers{unknown}", row.paths.len())?;
        if row.traced {
            writeln!(
                out,
                "  the VTEP answers no probes: routers are asked by expired TTLs, which takes minutes if they limit ICMP errors{}",
                if row.bfd_up > 0 { "" } else { "; nothing tells whether a path is dead" }
            )?;
        }
        if row.bfd_sessions > 0 {
            writeln!(out, "  BFD: {} of {} sessions are up", row.bfd_up, row.bfd_sessions)?;
        }
        path_table(std::slice::from_ref(row)).write(out, "  ")?;
        for (tier, v1::Tier { links, mmr, floor, jain }) in row.tiers.iter().enumerate() {
            writeln!(
                out,
                "  tier {}: {links} links, MMR {mmr:.2} (floor {floor:.2}), Jain {jain:.2}",
                tier + 1
            )?;
        }
    }
    Ok(())
}

/// The paths, as text or as comma-separated values.
pub fn write_paths(out: &mut impl Write, rows: &[v1::VtepPaths], csv: bool) -> io::Result<()> {
    if csv { path_table(rows).write_csv(out) } else { paths(out, rows) }
}

/// The queue pairs, as a table or as comma-separated values.
pub fn write_queue_pairs(
    out: &mut impl Write,
    rows: &[v1::QueuePair],
    csv: bool,
) -> io::Result<()> {
    let table = queue_pairs(rows);
    if csv { table.write_csv(out) } else { table.write(out, "") }
}

/// One row for each path.
fn path_table(rows: &[v1::VtepPaths]) -> Table<8> {
    let headings =
        ["vtep", "uplink", "routers", "ports", "delay us", "queue pairs", "kB/s", "first port"];
    let mut table = Table::new(headings);
    for row in rows {
        for path in &row.paths {
            let routers = match path.arrival {
                Some(arrival) => format!("unknown, arrives at {arrival}"),
                None => path.routers.join(" "),
            };
            table.row([
                row.vtep.clone(),
                path.uplink.clone(),
                routers,
                path.source_ports.len().to_string(),
                path.delay_us.to_string(),
                path.queue_pairs.to_string(),
                path.kilobytes.to_string(),
                path.source_ports.first().map(u32::to_string).unwrap_or_default(),
            ]);
        }
    }
    table
}

/// One row for each queue pair.
fn queue_pairs(rows: &[v1::QueuePair]) -> Table<21> {
    let headings = [
        "vni",
        "source",
        "destination",
        "qp",
        "vtep",
        "uplink",
        "port",
        "state",
        "other qp",
        "same links",
        "kB/s",
        "frames",
        "moves",
        "gaps",
        "repeats",
        "naks",
        "cnps",
        "marks",
        "figures",
        "age s",
        "idle s",
    ];
    let mut table = Table::new(headings);
    for row in rows {
        table.row([
            row.vni.to_string(),
            row.source.clone(),
            row.destination.clone(),
            format!("{:#x}", row.queue_pair),
            row.vtep.clone(),
            row.uplink.clone(),
            row.source_port.to_string(),
            row.state.clone(),
            row.partner.map_or_else(|| "unknown".to_owned(), |partner| format!("{partner:#x}")),
            row.same_links.clone(),
            row.kilobytes.to_string(),
            row.frames.to_string(),
            row.moves.to_string(),
            row.psn_gaps.to_string(),
            row.psn_repeats.to_string(),
            row.naks.to_string(),
            row.cnps.to_string(),
            row.ecn_marks.to_string(),
            if row.exact { "exact" } else { "approx." }.to_owned(),
            (row.age_ms / 1000).to_string(),
            (row.idle_ms / 1000).to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_queue_pair_say_whether_they_are_exact() {
        let row = v1::QueuePair {
            queue_pair: 0x51,
            psn_gaps: 7,
            psn_repeats: 3,
            naks: 2,
            cnps: 1,
            ecn_marks: 4,
            age_ms: 12_000,
            idle_ms: 1500,
            ..v1::QueuePair::default()
        };
        let rows = [v1::QueuePair { exact: true, ..row.clone() }, row];
        let mut out = Vec::new();
        write_queue_pairs(&mut out, &rows, true).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("gaps,repeats,naks,cnps,marks,figures,age s,idle s"), "{text}");
        assert!(lines[1].ends_with("7,3,2,1,4,exact,12,1"), "{text}");
        assert!(lines[2].ends_with("7,3,2,1,4,approx.,12,1"), "{text}");
    }
}
