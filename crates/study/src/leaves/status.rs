//! The state of each leaf: its VNIs, the sources and drops of its vtepd, and the balance of its
//! uplinks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{label, leaves, value};
use crate::daemon::Policy;
use crate::error::RunError;
use experiment::balance::{floor, mmr};
use fabric::counters;
use fabric::deployed::Deployed;
use fabric::netns::Namespace;
use fabric::node::Node;
use fabric::progress::OnProgress;
use fabric::{Fabric, Sessions, at_once};

/// The interval at which a signal is noticed.
const POLL: Duration = Duration::from_millis(50);

/// The state of a leaf.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeafStatus {
    /// The leaf.
    pub leaf: String,
    /// Whether vtepd answers.
    pub vtepd: bool,
    /// Its VNIs.
    pub vnis: Vec<VniStatus>,
    /// The sources of vtepd, `fpm` and `kernel` (rtnetlink): `live` (in sync), `syncing`, `stale`,
    /// `disconnected` or `off`.
    pub sources: BTreeMap<String, String>,
    /// The BGP sessions of FRR; `None` if the leaf does not enable bgpd.
    pub bgp: Option<Sessions>,
    /// Frames that vtepd has dropped since it started, by reason. Reasons without any are left out.
    pub drops: BTreeMap<String, u64>,
    /// How the leaf's traffic was distributed over its uplinks.
    pub balance: UplinkBalance,
}

/// The state of a VNI on a leaf.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VniStatus {
    /// The VNI.
    pub vni: u32,
    /// `userspace`, `offload` or `kernel`; `none` without vtepd, or if vtepd does not report the VNI.
    pub datapath: String,
    /// The policy; empty without vtepd.
    pub policy: String,
}

/// The load of a leaf's uplinks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UplinkBalance {
    /// Bytes that the leaf sent by each uplink, without the Ethernet FCS: packets of all kinds,
    /// also those of routing protocols.
    pub sent: BTreeMap<String, u64>,
    /// The max-mean ratio of these bytes: 1 is even. 0 if nothing was sent.
    pub mmr: f64,
    /// With `qp-pin`: the lowest MMR of equal queue pairs, as many as are placed.
    pub floor: Option<f64>,
}

/// Reads the state of each leaf. The balance is that of the time `over`, which this waits for;
/// without it, of all bytes since the links were created.
///
/// # Errors
/// [`RunError`]; [`RunError::Interrupted`] if `report` says so during the wait.
pub fn status(
    fabric: &Fabric,
    over: Option<Duration>,
    report: OnProgress,
) -> Result<Vec<LeafStatus>, RunError> {
    let deployed = fabric.deployed();
    let mut readings = Vec::new();
    for (leaf, vnis) in leaves(fabric)? {
        let namespace = deployed.namespace(&leaf)?;
        let uplinks = uplinks(&deployed, &leaf, &namespace)?;
        let before = match over {
            Some(_) => sent(&namespace, &uplinks)?,
            None => BTreeMap::new(),
        };
        let node = fabric.node(&leaf)?;
        readings.push(Reading { node, leaf, vnis, namespace, uplinks, before });
    }
    let start = Instant::now();
    while let Some(left) = over.and_then(|over| over.checked_sub(start.elapsed())) {
        report(&format!("counting for {:.0} s more", left.as_secs_f64().ceil()))?;
        std::thread::sleep(POLL.min(left));
    }
    at_once(&readings, Reading::finish)
}

/// A leaf, and what its uplinks had sent at the start.
struct Reading {
    node: Node,
    leaf: String,
    vnis: Vec<u32>,
    namespace: Namespace,
    uplinks: BTreeSet<String>,
    before: BTreeMap<String, u64>,
}

impl Reading {
    fn finish(&self) -> Result<LeafStatus, RunError> {
        let mut sent = sent(&self.namespace, &self.uplinks)?;
        for (name, bytes) in &mut sent {
            *bytes = bytes.saturating_sub(self.before.get(name).copied().unwrap_or_default());
        }
        let metrics = fabric::metrics::read(&self.namespace).ok();
        let bgp = self.node.sessions()?;
        let status = LeafStatus::new(self.leaf.clone(), &self.vnis, metrics.as_deref(), sent);
        Ok(LeafStatus { bgp, ..status })
    }
}

/// The interfaces of a leaf's links that are not on a bridge with a VXLAN netdev.
fn uplinks(
    deployed: &Deployed,
    leaf: &str,
    namespace: &Namespace,
) -> Result<BTreeSet<String>, RunError> {
    let links = namespace.rtnl(|rtnl| rtnl.links())?;
    let vxlan = links.iter().filter(|link| link.vxlan.is_some());
    let bridges: BTreeSet<u32> = vxlan.filter_map(|link| link.master).collect();
    let is_port = |name: &str| {
        let own = links.iter().find(|link| link.name == name);
        own.and_then(|link| link.master).is_some_and(|master| bridges.contains(&master))
    };
    let ends = deployed.topology().wires().into_iter().flat_map(|wire| wire.ends);
    let own = ends.filter(|end| end.node == leaf && !is_port(&end.interface));
    Ok(own.map(|end| end.interface).collect())
}

/// The bytes that each of these interfaces has sent.
fn sent(
    namespace: &Namespace,
    uplinks: &BTreeSet<String>,
) -> Result<BTreeMap<String, u64>, RunError> {
    let counters = counters::read(namespace)?;
    let of = counters.into_iter().filter(|(name, _)| uplinks.contains(name));
    Ok(of.map(|(name, counters)| (name, counters.tx_bytes)).collect())
}

impl LeafStatus {
    /// `metrics` is `None` if no vtepd answers.
    fn new(leaf: String, vnis: &[u32], metrics: Option<&str>, sent: BTreeMap<String, u64>) -> Self {
        let lines = || metrics.unwrap_or_default().lines();
        let text = |line, name| label(line, name).map(str::to_owned);
        let vni = |vni: &u32| {
            let is_own = |line: &&str| {
                line.starts_with("vtepd_vni_datapath{")
                    && label(line, "vni") == Some(&vni.to_string())
            };
            let line = lines().find(is_own).unwrap_or_default();
            VniStatus {
                vni: *vni,
                datapath: text(line, "datapath").unwrap_or_else(|| "none".to_owned()),
                policy: text(line, "policy").unwrap_or_default(),
            }
        };
        let vnis: Vec<VniStatus> = vnis.iter().map(vni).collect();
        let sources = lines().filter(|line| line.starts_with("vtepd_source_state{"));
        let sources =
            sources.filter_map(|line| Some((text(line, "source")?, text(line, "state")?)));
        let drops = lines().filter(|line| line.starts_with("vtepd_dropped_frames_total{"));
        let drops = drops.filter_map(|line| Some((text(line, "reason")?, value(line)?)));
        let pinned = vnis.iter().any(|vni| vni.policy == Policy::QpPin.name());
        let placed = || lines().find(|line| line.starts_with("vtepd_placed_queue_pairs "));
        let placed = pinned.then(|| placed().and_then(value)).flatten().filter(|pairs| *pairs > 0);
        let flows = placed.and_then(|pairs| usize::try_from(pairs).ok());
        let loads: Vec<u64> = sent.values().copied().collect();
        let balance = UplinkBalance {
            mmr: mmr(&loads),
            floor: flows.map(|flows| floor(flows, loads.len())),
            sent,
        };
        Self {
            leaf,
            vtepd: metrics.is_some(),
            vnis,
            sources: sources.collect(),
            bgp: None,
            drops: drops.filter(|(_, frames)| *frames > 0).collect(),
            balance,
        }
    }

    /// The reasons of [`Self::drops`], the most frequent first.
    #[must_use]
    pub fn reasons(&self) -> Vec<(&str, u64)> {
        let mut all: Vec<(&str, u64)> =
            self.drops.iter().map(|(reason, frames)| (reason.as_str(), *frames)).collect();
        all.sort_by_key(|(_, frames)| std::cmp::Reverse(*frames));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "vtepd_source_state{source=\"fpm\",state=\"stale\"} 1\n\
        vtepd_source_state{source=\"kernel\",state=\"live\"} 1\n\
        vtepd_vni_datapath{vni=\"10\",netdev=\"vx10\",datapath=\"offload\",policy=\"qp-pin\"} 1\n\
        vtepd_dropped_frames_total{reason=\"no_route\"} 3\n\
        vtepd_dropped_frames_total{reason=\"too_big\"} 20\n\
        vtepd_dropped_frames_total{reason=\"shutdown\"} 0\n\
        vtepd_placed_queue_pairs 3\n";

    fn sent(one: u64, other: u64) -> BTreeMap<String, u64> {
        BTreeMap::from([("up1".to_owned(), one), ("up2".to_owned(), other)])
    }

    #[test]
    fn the_state_follows_from_the_metrics_and_counters() {
        let leaf = LeafStatus::new("leaf1".into(), &[10, 20], Some(METRICS), sent(300, 100));
        let [ten, twenty] = leaf.vnis.as_slice() else { panic!("{leaf:?}") };
        assert_eq!((ten.datapath.as_str(), ten.policy.as_str()), ("offload", "qp-pin"));
        assert_eq!((twenty.datapath.as_str(), twenty.policy.as_str()), ("none", ""));
        assert_eq!(
            (leaf.sources["fpm"].as_str(), leaf.sources["kernel"].as_str()),
            ("stale", "live")
        );
        assert_eq!(leaf.reasons(), [("too_big", 20), ("no_route", 3)]);
        // Three queue pairs on two links: two on one of them.
        assert_eq!((leaf.balance.mmr, leaf.balance.floor), (1.5, Some(4.0 / 3.0)));
    }

    #[test]
    fn only_qp_pin_has_a_floor_and_only_vtepd_has_sources() {
        let hash = METRICS.replace("qp-pin", "qp-hash");
        let leaf = LeafStatus::new("leaf1".into(), &[10], Some(&hash), sent(0, 0));
        assert_eq!((leaf.balance.mmr, leaf.balance.floor), (0.0, None));
        let none = METRICS.replace("pairs 3", "pairs 0");
        let leaf = LeafStatus::new("leaf1".into(), &[10], Some(&none), sent(1, 1));
        assert_eq!((leaf.balance.mmr, leaf.balance.floor), (1.0, None));
        let leaf = LeafStatus::new("leaf1".into(), &[10], None, sent(1, 1));
        assert!(!leaf.vtepd && leaf.sources.is_empty() && leaf.drops.is_empty());
        assert_eq!(leaf.vnis[0].datapath, "none");
    }
}
