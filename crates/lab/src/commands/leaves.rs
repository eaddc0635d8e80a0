//! `lab status` and `lab policy`: vtepd on all leaves.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use fabric::Sessions;
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
    const TITLES: [&str; 11] = [
        "leaf", "VNI", "datapath", "policy", "BGP", "FPM", "kernel", "drops", "sent", "MMR",
        "floor",
    ];
    let mut rows = vec![TITLES.map(str::to_owned)];
    for leaf in all {
        for (at, vni) in leaf.vnis.iter().enumerate() {
            let [name, bgp, fpm, kernel, drops, sent, mmr, floor] =
                if at == 0 { of_leaf(leaf) } else { Default::default() };
            let VniStatus { vni, datapath, policy } = vni;
            let policy = if policy.is_empty() { "-" } else { policy };
            let of_vni = [vni.to_string(), datapath.clone(), policy.to_owned()];
            let [vni, datapath, policy] = of_vni;
            rows.push([name, vni, datapath, policy, bgp, fpm, kernel, drops, sent, mmr, floor]);
        }
    }
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: [usize; 11] = std::array::from_fn(width);
    for row in &rows {
        let cells = row.iter().zip(widths).enumerate().map(|(at, (cell, width))| match at {
            1 | 7.. => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        print(cells.collect::<Vec<_>>().join("  "))?;
    }
    Ok(())
}

/// Name, BGP sessions, FPM, kernel, drops, sent bytes, MMR and floor of a leaf.
fn of_leaf(leaf: &LeafStatus) -> [String; 8] {
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
    let bgp = match leaf.bgp {
        Some(Sessions { configured: 0, .. }) => "down".to_owned(),
        Some(Sessions { established, configured }) => format!("{established}/{configured}"),
        None => "-".to_owned(),
    };
    [leaf.leaf.clone(), bgp, source("fpm"), source("kernel"), drops, sent, mmr, floor]
}

/// Refuses an option that the policy does not have.
fn check(arguments: &Policy) -> Result<(), String> {
    let Policy { policy, datapath, bins, scheme, .. } = arguments;
    let datapath = datapath.as_deref();
    let wrong = match policy.as_str() {
        policy if policy != "qp-bins" && bins.is_some() => "only qp-bins has --bins",
        policy if policy != "spray" && scheme.is_some() => "only spray has --scheme",
        experiment::file::KERNEL if datapath.is_some() => {
            "--datapath is vtepd's, and kernel VXLAN runs without it"
        }
        "spray" if datapath == Some("kernel") => {
            "kernel VXLAN cannot spray: 'spray' is 'qp-pin' in the datapath kernel"
        }
        _ => return Ok(()),
    };
    Err(wrong.to_owned())
}

pub(super) fn policy(arguments: &Policy, output: Output) -> Outcome {
    check(arguments)?;
    let fabric = open(arguments.which.name.as_ref())?;
    let vtepd = vtepd(arguments.vtepd.as_ref())?;
    let settings = match arguments.policy.as_str() {
        experiment::file::KERNEL => None,
        policy => Some(daemon::Settings {
            policy: policy.parse()?,
            datapath: arguments.datapath.clone(),
            bins: arguments.bins.unwrap_or(daemon::BINS),
            scheme: arguments.scheme.unwrap_or(daemon::SCHEME),
            seed: arguments.seed,
        }),
    };
    leaves::set(&fabric, &vtepd, settings.as_ref(), &arguments.leaf)?;
    show(&arguments.which, None, output)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Cli, Command};

    /// A wrong option is refused before a fabric is looked for: vtepd would be restarted in vain.
    #[test]
    fn options_that_a_policy_does_not_have_are_refused() {
        let refused = |words: &str| {
            let words = ["lab", "policy"].into_iter().chain(words.split(' '));
            match Cli::try_parse_from(words) {
                Ok(Cli { command: Command::Policy(arguments), .. }) => check(&arguments).err(),
                Ok(_) => panic!("no policy"),
                Err(error) => Some(error.to_string()),
            }
        };
        for (words, message) in [
            ("qp-hsah", "a similar value exists: 'qp-hash'"),
            ("qp-hash --datapath foo", "[possible values: auto, kernel, offload, userspace]"),
            ("qp-bins --bins 0", "0 is not in 1..=65535"),
            ("qp-hash --bins 3", "only qp-bins has --bins"),
            ("qp-pin --scheme reps", "only spray has --scheme"),
            ("spray --datapath kernel", "kernel VXLAN cannot spray"),
            ("kernel --datapath auto", "runs without it"),
        ] {
            let said = refused(words).unwrap_or_default();
            assert!(said.contains(message), "{words}: {said}");
        }
        for words in ["kernel", "qp-bins --bins 3 --datapath kernel", "spray --scheme reps"] {
            assert_eq!(refused(words), None, "{words}");
        }
    }
}
