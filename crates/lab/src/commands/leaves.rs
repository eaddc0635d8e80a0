//! `lab status` and `lab policy`: vtepd on all leaves.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use lab::graph::short_rate;
use study::leaves::{LeafStatus, VniStatus};
use study::{daemon, leaves};

use super::open::open;
use crate::arguments::{Output, Policy, Status, Which};
use crate::output::{Outcome, Progress, print, print_json, vtepd};

/// The reasons of dropped frames that the table names.
const REASONS: usize = 3;

pub(super) fn status(arguments: &Status, output: Output) -> Outcome {
    show(&arguments.which, arguments.seconds.map(Duration::from_secs), output)
}

fn show(which: &Which, over: Option<Duration>, output: Output) -> Outcome {
    let fabric = open(which.name.as_ref())?;
    let progress = Progress::new();
    let all = leaves::status(&fabric, over, &|text| progress.report(text))?;
    drop(progress);
    if output == Output::Json {
        return print_json(&all);
    }
    table(&all)?;
    let over = over.map_or("since the links were created".to_owned(), |over| {
        format!("over {} s", over.as_secs())
    });
    print(format_args!("sent, MMR, floor: bytes on the leaf's uplinks, {over}"))?;
    for leaf in all.iter().filter(|leaf| !leaf.drops.is_empty()) {
        let reasons = leaf.reasons().into_iter().take(REASONS);
        let named: Vec<String> =
            reasons.map(|(reason, frames)| format!("{frames} {reason}")).collect();
        let more = if leaf.drops.len() > REASONS { ", ..." } else { "" };
        print(format_args!(
            "{} dropped since vtepd started: {}{more}",
            leaf.leaf,
            named.join(", ")
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a row for each VNI. What belongs to the leaf stands in the first row of it.
fn table(all: &[LeafStatus]) -> io::Result<()> {
    const TITLES: [&str; 10] =
        ["leaf", "VNI", "datapath", "policy", "FPM", "kernel", "drops", "sent", "MMR", "floor"];
    let mut rows = vec![TITLES.map(str::to_owned)];
    for leaf in all {
        for (at, vni) in leaf.vnis.iter().enumerate() {
            let [name, fpm, kernel, drops, sent, mmr, floor] =
                if at == 0 { of_leaf(leaf) } else { Default::default() };
            let VniStatus { vni, datapath, policy } = vni;
            let policy = if policy.is_empty() { "-" } else { policy };
            let of_vni = [vni.to_string(), datapath.clone(), policy.to_owned()];
            let [vni, datapath, policy] = of_vni;
            rows.push([name, vni, datapath, policy, fpm, kernel, drops, sent, mmr, floor]);
        }
    }
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: [usize; 10] = std::array::from_fn(width);
    for row in &rows {
        let cells = row.iter().zip(widths).enumerate().map(|(at, (cell, width))| match at {
            1 | 6.. => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        print(cells.collect::<Vec<_>>().join("  "))?;
    }
    Ok(())
}

/// Name, FPM, kernel, drops, sent bytes, MMR and floor of a leaf.
fn of_leaf(leaf: &LeafStatus) -> [String; 7] {
    let source = |name: &str| leaf.sources.get(name).map_or("-", String::as_str).to_owned();
    let drops = match leaf.vtepd {
        true => leaf.drops.values().sum::<u64>().to_string(),
        false => "-".to_owned(),
    };
    let sent: u64 = leaf.balance.sent.values().sum();
    let (mmr, floor) = (Some(leaf.balance.mmr).filter(|_| sent > 0), leaf.balance.floor);
    let [mmr, floor] =
        [mmr, floor].map(|ratio| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")));
    let sent = format!("{}B", short_rate(sent as f64));
    [leaf.leaf.clone(), source("fpm"), source("kernel"), drops, sent, mmr, floor]
}

pub(super) fn policy(arguments: &Policy, output: Output) -> Outcome {
    let fabric = open(arguments.which.name.as_ref())?;
    let vtepd = vtepd(arguments.vtepd.as_ref())?;
    let settings = match arguments.policy.as_str() {
        experiment::file::KERNEL => None,
        policy => Some(daemon::Settings {
            policy: policy.parse()?,
            datapath: arguments.datapath.clone(),
            bins: arguments.bins,
            scheme: arguments.scheme,
            seed: arguments.seed,
        }),
    };
    leaves::set(&fabric, &vtepd, settings.as_ref(), &arguments.leaf)?;
    show(&arguments.which, None, output)
}
