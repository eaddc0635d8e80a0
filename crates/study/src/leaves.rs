//! vtepd on all leaves of a fabric: its state, and one policy for all.

mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::daemon::{self, Daemon, Policy};
use crate::error::RunError;
use fabric::process::wait_until;
use fabric::progress::OnProgress;
use fabric::state::Record;
use fabric::{Fabric, few_at_once};

pub use status::{LeafStatus, UplinkBalance, VniStatus, status};

const ATTACH_LIMIT: Duration = Duration::from_secs(30);
/// How many vtepd are started at once while their fabric runs.
const START_AT_ONCE: usize = 4;
/// Paths are found within this time, or not at all.
const UNCHANGED: Duration = Duration::from_secs(3);
const PATHS_LIMIT: Duration = Duration::from_secs(60);
/// In this time, qp-pin almost always finds that a router leads paths elsewhere which no queue pair
/// uses: each of them is probed every 15 s on average, and one that has moved is enough.
const FOLLOWED: Duration = Duration::from_secs(8);
const POLL: Duration = Duration::from_millis(50);
/// How long vtepd may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The leaves of a fabric, with the VNIs of each.
fn leaves(fabric: &Fabric) -> Result<BTreeMap<String, Vec<u32>>, RunError> {
    let mut leaves: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for tunnel in fabric.deployed().overlay()?.tunnels {
        leaves.entry(tunnel.node).or_default().push(tunnel.vni);
    }
    Ok(leaves)
}

/// The leaves of a fabric where vtepd answers.
///
/// # Errors
/// [`RunError`].
pub fn with_vtepd(fabric: &Fabric) -> Result<Vec<String>, RunError> {
    let deployed = fabric.deployed();
    let mut names = Vec::new();
    for (leaf, _) in leaves(fabric)? {
        let namespace = deployed.namespace(&leaf)?;
        if crate::ask::ask(&namespace, async |_| Ok(())).is_ok() {
            names.push(leaf);
        }
    }
    Ok(names)
}

/// The value of a label in a line of metrics.
fn label<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("{name}=\""))?;
    rest.split('"').next()
}

/// The value at the end of a line of metrics.
fn value(line: &str) -> Option<u64> {
    line.rsplit(' ').next()?.parse().ok()
}

/// Starts vtepd beside each leaf where the topology has a node for it (`network-mode:
/// container:LEAF`), with the flags of that node. With `wait`, waits until all redirect frames, and
/// starts a few at once only, so that the routers keep their sessions meanwhile. Returns how many
/// there are.
///
/// # Errors
/// [`RunError`].
pub fn start_sidecars(
    fabric: &Fabric,
    program: &Path,
    wait: bool,
    report: OnProgress,
) -> Result<usize, RunError> {
    let nodes = &fabric.topology().nodes;
    let beside: Vec<_> =
        nodes.iter().filter_map(|(name, node)| Some((name, node.vtepd.as_ref()?))).collect();
    let (most, ready) = (beside.len(), AtomicUsize::new(0));
    few_at_once(if wait { START_AT_ONCE } else { most }, &beside, |(name, flags)| {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let daemon = Daemon::start(&fabric.node(name)?, program, Policy::QpHash, &flags)?;
        if wait {
            daemon.wait_until_ready(ATTACH_LIMIT)?;
            let ready = ready.fetch_add(1, Ordering::Relaxed) + 1;
            report(&format!("vtepd forwards on {ready} of {most} leaves"))?;
        }
        Ok::<_, RunError>(())
    })?;
    Ok(most)
}

/// The vtepd that runs on a leaf, or beside it, with its node.
fn running<'a>(fabric: &Fabric, records: &'a [Record], leaf: &str) -> Option<&'a Record> {
    let is_there = |node: &str| node == leaf || fabric.topology().owner(node) == leaf;
    records.iter().find(|record| record.name == "vtepd" && is_there(&record.node))
}

/// The leaves on which a vtepd answers, whoever started it.
///
/// # Errors
/// [`RunError`].
pub fn taken_over(fabric: &Fabric) -> Result<Vec<String>, RunError> {
    let deployed = fabric.deployed();
    let mut found = Vec::new();
    for leaf in leaves(fabric)?.into_keys() {
        let namespace = deployed.namespace(&leaf)?;
        if fabric::metrics::read(&namespace).is_ok() {
            found.push(leaf);
        }
    }
    Ok(found)
}

/// Makes vtepd forward with these settings on the leaves in `only`, or on all if that is empty. It is
/// started where it does not run, and started again where it has another scheme of `spray`. `None`: vtepd is ended, and kernel VXLAN forwards.
///
/// # Errors
/// [`RunError`].
pub fn set(
    fabric: &Fabric,
    program: &Path,
    settings: Option<&daemon::Settings>,
    only: &[String],
) -> Result<(), RunError> {
    let records = fabric.processes()?;
    let mut leaves = leaves(fabric)?;
    if let Some(name) = only.iter().find(|name| !leaves.contains_key(*name)) {
        return Err(RunError::NoLeaf(name.clone()));
    }
    leaves.retain(|leaf, _| only.is_empty() || only.contains(leaf));
    let mut daemons = Vec::new();
    for (leaf, vnis) in leaves {
        let node = fabric.node(&leaf)?;
        match (settings, running(fabric, &records, &leaf)) {
            (None, None) => {}
            (None, Some(record)) => record.identity.stop(STOP_LIMIT)?,
            (Some(settings), Some(record)) => {
                let node = fabric.node(&record.node)?;
                let daemon = Daemon::running(&node, record.identity);
                if daemon.scheme() == Some(settings.scheme) {
                    let before = daemon.generations();
                    daemon.reload(settings.clone())?;
                    daemons.push((daemon, vnis.len(), before));
                    continue;
                }
                record.identity.stop(STOP_LIMIT)?;
                let own = fabric.topology().nodes.get(&record.node);
                let flags = own.and_then(|node| node.vtepd.as_deref()).unwrap_or_default();
                let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
                let daemon = Daemon::start(&node, program, settings.clone(), &flags)?;
                daemons.push((daemon, vnis.len(), [0, 0]));
            }
            (Some(settings), None) => {
                let daemon = Daemon::start(&node, program, settings.clone(), &[])?;
                daemons.push((daemon, vnis.len(), [0, 0]));
            }
        }
    }
    for (daemon, vnis, before) in daemons {
        let Some(settings) = settings else { continue };
        // `wait` below reports a vtepd that has not followed.
        wait_until(ATTACH_LIMIT, || {
            !daemon.identity().alive() || daemon.generations().first() > before.first()
        });
        daemon.wait(settings.clone(), vnis, ATTACH_LIMIT)?;
    }
    Ok(())
}

/// What the prober of a leaf reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Probed {
    /// VTEPs that were probed.
    ready: usize,
    /// Pairs of next hop and source port with a known path.
    known: u64,
    /// Pairs without.
    without: u64,
    /// VTEPs to which packets are sprayed.
    sprayed: usize,
}

/// Waits until a policy that probes knows its paths on all leaves: every VTEP is probed, and no path
/// id is without a path, or nothing has changed for a while. With `spray`, also until all leaves
/// spray, or some do and nothing has changed for a while.
///
/// # Errors
/// [`RunError`].
pub fn await_paths(fabric: &Fabric, policy: Policy, report: OnProgress) -> Result<(), RunError> {
    let deployed = fabric.deployed();
    let overlay = deployed.overlay()?;
    let leaves: BTreeSet<&String> = overlay.tunnels.iter().map(|tunnel| &tunnel.node).collect();
    let start = Instant::now();
    let (mut since, mut before): (Instant, Vec<Probed>) = (start, Vec::new());
    loop {
        let mut now = Vec::new();
        let (mut missing, mut remote) = (0, 0);
        for leaf in &leaves {
            let namespace = deployed.namespace(leaf)?;
            let of = probed(&fabric::metrics::read(&namespace).unwrap_or_default());
            let vteps = overlay.remote_vteps(leaf);
            (missing, remote) = (missing + vteps.saturating_sub(of.ready), remote + vteps);
            now.push(of);
        }
        if now != before {
            (since, before) = (Instant::now(), now);
        }
        let without: u64 = before.iter().map(|of| of.without).sum();
        let known: u64 = before.iter().map(|of| of.known).sum();
        report(&format!("{known} paths are known, {without} are not"))?;
        let sprayed: usize = before.iter().map(|of| of.sprayed).sum();
        let (sprays, all_spray) = match policy {
            Policy::Spray => (sprayed > 0, sprayed == remote),
            _ => (true, true),
        };
        let is_still = since.elapsed() >= UNCHANGED;
        if missing == 0 && sprays && (without == 0 && all_spray || is_still) {
            return Ok(());
        }
        if start.elapsed() >= PATHS_LIMIT {
            let limit = PATHS_LIMIT;
            return Err(match missing {
                0 => RunError::NotSprayed { limit },
                _ => RunError::Paths { limit, missing },
            });
        }
        std::thread::sleep(POLL);
    }
}

/// As [`await_paths`], and gives the policy the time to follow paths that have moved.
///
/// # Errors
/// [`RunError`].
pub fn await_moves(fabric: &Fabric, policy: Policy, report: OnProgress) -> Result<(), RunError> {
    await_paths(fabric, policy, report)?;
    report(&format!("{policy} follows paths that have moved"))?;
    std::thread::sleep(FOLLOWED);
    Ok(())
}

/// Reads the metrics of a leaf.
fn probed(metrics: &str) -> Probed {
    let of = |name: &str| -> Vec<(&str, u64)> {
        let own = metrics.lines().filter(|line| line.starts_with(name));
        own.filter_map(|line| Some((line, value(line)?))).collect()
    };
    let path_ids = of("vtepd_probed_path_ids{");
    let sum = |known: bool| {
        let is_known = |line: &str| label(line, "state") == Some("known");
        path_ids.iter().filter(|(line, _)| is_known(line) == known).map(|(_, n)| n).sum()
    };
    let ready = of("vtepd_probing_ready{").iter().filter(|(_, ready)| *ready == 1).count();
    let sprayed = of("vtepd_spray_paths{").iter().filter(|(_, paths)| *paths > 0).count();
    Probed { ready, known: sum(true), without: sum(false), sprayed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_the_paths() {
        let metrics = "vtepd_probing_ready{vtep=\"10.0.0.2\"} 1\n\
            vtepd_probing_ready{vtep=\"10.0.0.3\"} 1\n\
            vtepd_probed_path_ids{vtep=\"10.0.0.2\",state=\"known\"} 120\n\
            vtepd_probed_path_ids{vtep=\"10.0.0.2\",state=\"dead\"} 3\n\
            vtepd_probed_path_ids{vtep=\"10.0.0.3\",state=\"unknown\"} 5\n\
            vtepd_spray_paths{vtep=\"10.0.0.2\"} 4\nvtepd_spray_paths{vtep=\"10.0.0.3\"} 0\n";
        assert_eq!(probed(metrics), Probed { ready: 2, known: 120, without: 8, sprayed: 1 });
        assert_eq!(probed(&metrics.replace("0.3\"} 1", "0.3\"} 0")).ready, 1);
        assert_eq!(probed(""), Probed::default(), "it has not begun");
    }

    #[test]
    fn labels_of_a_metric() {
        let line = "x{vni=\"10\",netdev=\"vx10\",policy=\"qp-hash\"} 1";
        assert_eq!((label(line, "vni"), label(line, "policy")), (Some("10"), Some("qp-hash")));
        assert_eq!(label(line, "datapath"), None);
    }
}
