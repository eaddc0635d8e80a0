//! The tables of `vtepctl path` and `vtepctl qp`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use api::v1;

use crate::output::{Table, filled};

/// What is known of the way to each VTEP: its paths, and the balance of its tiers.
fn paths(out: &mut impl Write, rows: &[v1::VtepPaths]) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(
            out,
            "no VTEP is probed: no VNI has the policy qp-pin or spray, or none has a remote VTEP"
        );
    }
    for (number, row) in rows.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let v1::VtepPaths { vtep, local, path_ids, known, dead, .. } = row;
        let age = row.age_ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms} ms ago"));
        writeln!(
            out,
            "{local} to VTEP {vtep}: {known} of {path_ids} path ids known, {dead} dead, last answer {age}"
        )?;
        let unknown = match (row.complete || *known == 0, row.traced) {
            (true, false) => "",
            (true, true) => "; links between the same two routers are not told apart",
            (false, true) => "; routers that do not answer are unknown",
            (false, false) if vtep.contains(':') => {
                "; the tiers between the leaves are unknown: IPv6 has no Record Route"
            }
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
                "  the VTEP answers no probes: routers are asked by expired TTLs, which takes minutes if they limit ICMP errors; nothing tells whether a path is dead"
            )?;
        }
        path_table(row).write(out, "  ")?;
        write_tiers(out, row)?;
        write_sprayed(out, row)?;
    }
    Ok(())
}

/// The balance of each tier.
fn write_tiers(out: &mut impl Write, row: &v1::VtepPaths) -> io::Result<()> {
    for (number, tier) in (1..).zip(&row.tiers) {
        let v1::Tier { links, mmr, floor, jain, arrival } = tier;
        if *arrival && row.routers_max > 1 {
            writeln!(out, "  tiers between: unknown")?;
        }
        let name = if *arrival { "last tier".to_owned() } else { format!("tier {number}") };
        writeln!(
            out,
            "  {name}: {links} known links, MMR {mmr:.2} (floor {floor:.2}), Jain {jain:.2}"
        )?;
    }
    Ok(())
}

/// The paths over which packets are sprayed, and what became of these.
fn write_sprayed(out: &mut impl Write, row: &v1::VtepPaths) -> io::Result<()> {
    if row.sprayed.is_empty() {
        return Ok(());
    }
    let vnis: Vec<String> = row.sprayed_vnis.iter().map(u32::to_string).collect();
    let sent: u64 = row.sprayed.iter().map(|path| path.sent).sum();
    writeln!(
        out,
        "  sprayed over {} paths, VNI {}: {sent} packets",
        row.sprayed.len(),
        vnis.join(" ")
    )?;
    let mut table = Table::new(["uplink", "port", "share %", "marked", "lost", "wait ms"]);
    for path in &row.sprayed {
        let share = path.sent as f64 * 100.0 / sent.max(1) as f64;
        table.row([
            path.uplink.clone(),
            path.source_port.to_string(),
            format!("{share:.1}"),
            path.marked.to_string(),
            path.lost.to_string(),
            wait(path),
        ]);
    }
    table.write(out, "  ")
}

/// How long a packet would wait on a path, and whether packets pass it over.
fn wait(path: &v1::SprayedPath) -> String {
    match (path.wait_us, path.passed_over) {
        (None, _) => "down".to_owned(),
        (Some(wait), passed_over) => {
            let over = if passed_over { " (passed over)" } else { "" };
            format!("{:.1}{over}", wait as f64 / 1e3)
        }
    }
}

/// The paths, as text or as comma-separated values.
pub(crate) fn write_paths(
    out: &mut impl Write,
    rows: &[v1::VtepPaths],
    csv: bool,
) -> io::Result<()> {
    if csv { path_csv(rows).write_csv(out) } else { paths(out, rows) }
}

/// The queue pairs, as a table or as comma-separated values.
pub(crate) fn write_queue_pairs(
    out: &mut impl Write,
    rows: &[v1::QueuePair],
    csv: bool,
) -> io::Result<()> {
    let mut table = queue_pairs(rows);
    if csv {
        return table.write_csv(out);
    }
    table.leave_out(&NOTHING);
    table.write(out, "")
}

/// The columns that both tables of paths have.
const OF_PATH: [&str; 7] =
    ["uplink", "routers", "ports", "delay us", "queue pairs", "own kB/s", "others kB/s"];

fn of_path(path: &v1::Path) -> [String; 7] {
    let routers = match path.arrival {
        Some(arrival) => format!("unknown, arrives at {arrival}"),
        None => routers(&path.routers),
    };
    let others = path.others_kilobytes_per_second.map_or_else(unknown, |rate| rate.to_string());
    [
        path.uplink.clone(),
        routers,
        path.source_ports.len().to_string(),
        path.delay_us.to_string(),
        path.queue_pairs.to_string(),
        path.kilobytes_per_second.to_string(),
        others,
    ]
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// The routers of a path.
pub(crate) fn routers(routers: &[String]) -> String {
    if routers.is_empty() { unknown() } else { routers.join(" ") }
}

/// One row for each path to a VTEP.
fn path_table(row: &v1::VtepPaths) -> Table<8> {
    let [a, b, c, d, e, f, g] = OF_PATH;
    let mut table = Table::new([a, b, c, d, e, f, g, "first port"]);
    for path in &row.paths {
        let first = path.source_ports.first().map(u32::to_string).unwrap_or_default();
        let [a, b, c, d, e, f, g] = of_path(path);
        table.row([a, b, c, d, e, f, g, first]);
    }
    table
}

/// One row for each path, with all its ports.
fn path_csv(rows: &[v1::VtepPaths]) -> Table<12> {
    let [a, b, c, d, e, f, g] = OF_PATH;
    let mut table =
        Table::new(["vtep", "local", "port", a, b, c, d, e, f, g, "source ports", "age s"]);
    for row in rows {
        let age = row.age_ms.map_or_else(String::new, |ms| format!("{:.3}", ms as f64 / 1000.0));
        for path in &row.paths {
            let ports: Vec<String> = path.source_ports.iter().map(u32::to_string).collect();
            let [a, b, c, d, e, f, g] = of_path(path);
            let (vtep, local) = (row.vtep.clone(), row.local.clone());
            let [ports, age] = [ports.join(" "), age.clone()];
            let port = row.destination_port.to_string();
            table.row([vtep, local, port, a, b, c, d, e, f, g, ports, age]);
        }
    }
    table
}

/// The columns of queue pairs that are left out of the text if no row has another cell.
const NOTHING: [(&str, &str); 10] = [
    ("paths", "-"),
    ("share %", "-"),
    ("other qp", "unknown"),
    ("same links", "unknown"),
    ("gaps", "0"),
    ("repeats", "0"),
    ("naks", "0"),
    ("cnps", "0"),
    ("marks", "0"),
    ("figures", "exact"),
];

/// The columns of what headers told.
pub(crate) const RECORD: [&str; 6] = ["gaps", "repeats", "naks", "cnps", "marks", "figures"];

/// The cells of [`RECORD`].
pub(crate) fn record(row: &v1::QueuePair) -> [String; 6] {
    let counts = [row.psn_gaps, row.psn_repeats, row.naks, row.cnps, row.ecn_marks];
    let [gaps, repeats, naks, cnps, marks] = counts.map(|count| count.to_string());
    let figures = if row.exact { "exact" } else { "approx." };
    [gaps, repeats, naks, cnps, marks, figures.to_owned()]
}

/// One row for each queue pair.
fn queue_pairs(rows: &[v1::QueuePair]) -> Table<25> {
    // Of the bytes of all sprayed queue pairs to the same VTEP.
    let mut sprayed: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.paths > 0) {
        *sprayed.entry(&row.vtep).or_default() += row.bytes;
    }
    let share = |row: &v1::QueuePair| {
        let all = sprayed.get(row.vtep.as_str()).copied().unwrap_or_default();
        format!("{:.1}", row.bytes as f64 * 100.0 / all.max(1) as f64)
    };
    let if_sprayed = |row: &v1::QueuePair, text: String| {
        if row.paths > 0 { text } else { String::new() }
    };
    let headings = "vni|source|destination|qp|vtep|uplink|port|routers|state|paths|share %|\
        other qp|same links|kB/s|frames|bytes|moves";
    let times = ["age s", "idle s"];
    let mut table = Table::new(filled(headings.split('|').chain(RECORD).chain(times)));
    for row in rows {
        let times = [row.age_ms, row.idle_ms].map(|time| (time / 1000).to_string());
        let cells = [
            row.vni.to_string(),
            row.source.clone(),
            row.destination.clone(),
            format!("{:#x}", row.queue_pair),
            row.vtep.clone(),
            row.uplink.clone(),
            row.source_port.to_string(),
            routers(&row.routers),
            row.state.clone(),
            if_sprayed(row, row.paths.to_string()),
            if_sprayed(row, share(row)),
            row.partner.map_or_else(|| "unknown".to_owned(), |partner| format!("{partner:#x}")),
            row.same_links.clone(),
            row.kilobytes_per_second.to_string(),
            row.frames.to_string(),
            row.bytes.to_string(),
            row.moves.to_string(),
        ];
        let behind = record(row).into_iter().chain(times);
        table.row(filled(cells.into_iter().chain(behind)));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// A VTEP with a path that is known, and one of which only both ends are.
    fn vtep() -> v1::VtepPaths {
        let path =
            |uplink: &str, routers: &[&str], arrival, others_kilobytes_per_second| v1::Path {
                uplink: uplink.to_owned(),
                routers: routers.iter().map(|&router| router.to_owned()).collect(),
                arrival,
                source_ports: vec![50_001, 50_002],
                delay_us: 70,
                queue_pairs: 3,
                kilobytes_per_second: 8,
                others_kilobytes_per_second,
                router_count: None,
            };
        let tier = |arrival| v1::Tier { links: 2, mmr: 1.5, floor: 1.0, jain: 0.9, arrival };
        v1::VtepPaths {
            vtep: "10.0.0.2".to_owned(),
            known: 4,
            routers_min: 2,
            routers_max: 2,
            age_ms: Some(1234),
            paths: vec![
                path("up1", &["10.9.0.1", "10.2.1.0"], None, Some(77)),
                path("up2", &[], Some(4), None),
            ],
            tiers: vec![tier(false), tier(true)],
            ..v1::VtepPaths::default()
        }
    }

    #[test]
    fn a_path_has_all_its_ports_and_the_load_of_others_in_its_values() {
        let text = text(|out| write_paths(out, &[vtep()], true));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "vtep,local,port,uplink,routers,ports,delay_us,queue_pairs,own_kB_per_s,others_kB_per_s,source_ports,age_s",
                "10.0.0.2,,0,up1,10.9.0.1 10.2.1.0,2,70,3,8,77,50001 50002,1.234",
                "10.0.0.2,,0,up2,\"unknown, arrives at 4\",2,70,3,8,unknown,50001 50002,1.234",
            ]
        );
    }

    #[test]
    fn sprayed_paths_have_shares() {
        let path = |uplink: &str, sent, lost, wait_us, passed_over| v1::SprayedPath {
            uplink: uplink.to_owned(),
            source_port: 50_001,
            sent,
            unmarked: 0,
            marked: 2,
            lost,
            wait_us,
            passed_over,
        };
        let sprayed = vec![
            path("up1", 75, 0, Some(0), false),
            path("up2", 25, 1, Some(12_300), true),
            path("up3", 0, 1, None, true),
        ];
        let row = v1::VtepPaths { sprayed, sprayed_vnis: vec![10, 12], ..vtep() };
        let shown = text(|out| write_paths(out, &[row], false));
        assert!(shown.contains("sprayed over 3 paths, VNI 10 12: 100 packets"), "{shown}");
        assert!(shown.contains("75.0") && shown.contains("25.0"), "{shown}");
        assert!(shown.contains("12.3 (passed over)") && shown.contains("down"), "{shown}");
        assert!(!text(|out| write_paths(out, &[vtep()], false)).contains("sprayed"));
    }

    #[test]
    fn tiers_that_are_not_known_are_called_unknown() {
        let shown = text(|out| write_paths(out, &[vtep()], false));
        assert!(shown.contains("the tiers between the leaves are unknown"), "{shown}");
        let tiers: Vec<_> = shown.lines().filter(|line| line.contains("tier")).skip(1).collect();
        let figures = "2 known links, MMR 1.50 (floor 1.00), Jain 0.90";
        let last = format!("  last tier: {figures}");
        assert_eq!(tiers, [&*format!("  tier 1: {figures}"), "  tiers between: unknown", &*last]);
        let traced = v1::VtepPaths { complete: true, traced: true, ..vtep() };
        let shown = text(|out| write_paths(out, &[traced], false));
        assert!(shown.contains("links between the same two routers are not told apart"), "{shown}");
    }

    #[test]
    fn a_queue_pair_has_the_routers_of_its_path_and_its_bytes() {
        let (routers, bytes) = (vec!["10.9.0.1".to_owned(), "10.2.1.0".to_owned()], 4096);
        let rows = [v1::QueuePair { routers, bytes, frames: 4, ..v1::QueuePair::default() }];
        let shown = text(|out| write_queue_pairs(out, &rows, true));
        assert!(shown.contains(",10.9.0.1 10.2.1.0,") && shown.contains(",4,4096,"), "{shown}");
        let same_links = "unknown".to_owned();
        let one = v1::QueuePair { same_links, ..v1::QueuePair::default() };
        let shown = text(|out| write_queue_pairs(out, &[one], false));
        assert!(shown.contains("routers") && shown.contains("unknown"), "{shown}");
        assert!(shown.contains("figures") && shown.contains("approx."), "{shown}");
        // Columns that say nothing make the table wider than terminals.
        for left_out in ["share %", "other qp", "same links", "naks", "marks"] {
            assert!(!shown.contains(left_out), "{left_out}: {shown}");
        }
        let rows = [v1::QueuePair { naks: 7, exact: true, ..v1::QueuePair::default() }];
        let shown = text(|out| write_queue_pairs(out, &rows, false));
        assert!(shown.contains("naks") && !shown.contains("figures"), "{shown}");
    }

    #[test]
    fn a_sprayed_queue_pair_has_its_paths_and_its_share() {
        let row = |paths, bytes, vtep: &str| v1::QueuePair {
            state: if paths > 0 { "sprayed" } else { "pinned" }.to_owned(),
            paths,
            bytes,
            vtep: vtep.to_owned(),
            ..v1::QueuePair::default()
        };
        let rows = [
            row(4, 30, "10.0.0.2"),
            row(4, 10, "10.0.0.2"),
            row(0, 50, "10.0.0.2"),
            row(2, 7, "10.0.0.3"),
        ];
        let shown = text(|out| write_queue_pairs(out, &rows, true));
        let of = |line: &str| {
            let cells: Vec<&str> = line.split(',').collect();
            cells[8..11].join(" ")
        };
        let lines: Vec<String> = shown.lines().map(of).collect();
        assert_eq!(
            lines,
            [
                "state paths share_percent",
                "sprayed 4 75.0",
                "sprayed 4 25.0",
                "pinned  ",
                "sprayed 2 100.0"
            ]
        );
    }

    #[test]
    fn unknown_tiers_have_a_reason() {
        let shown = |vtep: &str| {
            let row = v1::VtepPaths { vtep: vtep.to_owned(), known: 1, ..v1::VtepPaths::default() };
            let mut out = Vec::new();
            write_paths(&mut out, &[row], false).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(shown("10.0.0.2").contains("unknown: not every router records its address"));
        assert!(shown("fd00::2").contains("to VTEP fd00::2"));
        assert!(shown("fd00::2").contains("unknown: IPv6 has no Record Route"));
    }

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
        let text = text(|out| write_queue_pairs(out, &rows, true));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("gaps,repeats,naks,cnps,marks,figures,age_s,idle_s"), "{text}");
        assert!(lines[1].ends_with("7,3,2,1,4,exact,12,1"), "{text}");
        assert!(lines[2].ends_with("7,3,2,1,4,approx.,12,1"), "{text}");
    }
}
