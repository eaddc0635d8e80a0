//! The result of a verification, as tables with a verdict and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use fabric::deployed::Deployed;
use traffic::spread::Spread;

/// The maximum outage after the loss of an uplink if vtepd forwards, in milliseconds.
const OUTAGE_MAX: f64 = 100.0;
/// The maximum outage after a silent failure of a circuit, in milliseconds. BFD detects it after
/// three times 300 ms, later on a busy machine. BGP then needs some time, too.
const SILENT_OUTAGE_MAX: f64 = 4000.0;
/// How much frames of BGP and BFD may add to the MMR.
const OTHER_FRAMES: f64 = 0.01;
/// The same with probes of qp-pin.
const OTHER_FRAMES_AND_PROBES: f64 = 0.05;

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// `name:` of the topology.
    pub topology: String,
    /// `containerlab` or `lab`.
    pub runtime: &'static str,
    /// Reachability of each ordered pair of hosts of one VNI.
    pub reach: Vec<Reach>,
    /// The nodes with a VXLAN netdev.
    pub leaves: Vec<Leaf>,
    /// The balance of one stream over the uplinks of its leaf.
    pub balance: Balance,
    /// The failure of an uplink; `null` if it was not tested or the leaf has only one uplink.
    pub failover: Option<Failover>,
    /// The failure of a circuit; `null` if it was not tested or the path has no circuits.
    pub wide_area: Option<WideAreaFailover>,
    /// Deviations from the expected state as messages; empty if there are none.
    pub faults: Vec<String>,
}

/// Whether one host reaches another (ICMP echo).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reach {
    /// The host that sends the requests.
    pub from: String,
    /// The host that answers.
    pub to: String,
    /// The VNI of both hosts.
    pub vni: u32,
    /// Whether `ping` succeeded.
    pub reached: bool,
}

/// The vtepd of a leaf, according to its metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leaf {
    /// The name of the node.
    pub node: String,
    /// Whether vtepd answers on this node.
    pub vtepd: bool,
    /// Whether vtepd forwards at least one VNI.
    pub forwards: bool,
    /// The policy of each VNI.
    pub policies: BTreeMap<String, String>,
    /// VTEPs whose paths `qp-pin` is still looking for.
    pub unprobed: usize,
    /// What stays with the kernel: the labels of the metric.
    pub left: Vec<String>,
    /// Why the metrics are not available.
    pub says: Option<String>,
}

/// The distribution of one stream over links.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Balance {
    /// The sending host.
    pub from: String,
    /// The receiving host.
    pub to: String,
    /// The policy of all leaves, `kernel`, or `mixed`.
    pub policy: String,
    /// The number of queue pairs. All have the same inner UDP source port.
    pub queue_pairs: usize,
    /// The number of frames sent.
    pub frames: u64,
    /// The share of each uplink of the sending leaf, 0 to 1.
    pub uplinks: BTreeMap<String, f64>,
    /// The links of the MMR, the tier with the most: the uplinks, or links between routers.
    #[serde(skip)]
    pub widest: Vec<String>,
    /// The loads of the links, and what arrived.
    #[serde(flatten)]
    pub spread: Spread,
    /// The lowest MMR that whole queue pairs allow.
    pub floor_mmr: f64,
    /// The expected max-mean ratio of an ideal random hash of the queue pairs.
    pub random_mmr: f64,
    /// The 99.9th percentile of this ratio.
    pub random_mmr_at_most: f64,
}

impl Balance {
    /// A bar for each uplink, and for each link of the MMR if that is of others.
    fn write_shares(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bar = |f: &mut fmt::Formatter<'_>, link: &str, share: f64| {
            let bar = "█".repeat((share * 20.0).round() as usize);
            writeln!(f, "            {link:<12} {bar:<20} {:>3.0} %", share * 100.0)
        };
        self.uplinks.iter().try_for_each(|(uplink, share)| bar(f, uplink, *share))?;
        let others = self.widest.iter().filter(|link| !self.uplinks.contains_key(*link));
        others.into_iter().try_for_each(|link| bar(f, link, self.spread.share(link, &self.widest)))
    }

    /// The sending leaf.
    fn leaf(&self) -> &str {
        let uplink = self.uplinks.keys().next().map_or("", String::as_str);
        uplink.split(':').next().unwrap_or_default()
    }
}

/// The effect of a circuit that failed silently: the routers at both ends kept their carrier.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WideAreaFailover {
    /// The interface where the circuit was cut, as `node:interface`.
    pub circuit: String,
    /// When the sending router's BFD session went down after the cut; `null` if it did not.
    pub detected_after_milliseconds: Option<f64>,
    /// The effect on traffic. `uplink` belongs to the sending router. The milliseconds of `lost`
    /// are also the time until traffic recovered.
    #[serde(flatten)]
    pub failover: Failover,
}

/// The effect of the loss and the return of an uplink.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failover {
    /// The uplink, as `node:interface`.
    pub uplink: String,
    /// Its share of the traffic before, 0 to 1.
    pub share: f64,
    /// The effect of its loss.
    pub lost: Outage,
    /// The effect of its return.
    pub returned: Outage,
    /// When frames used it again after its return; `null` if they did not.
    pub returned_after_seconds: Option<f64>,
}

/// What happened to a stream during a failure or return.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outage {
    /// The number of frames sent.
    pub frames: u64,
    /// Frames that did not arrive.
    pub lost: u64,
    /// Frames that arrived after a later frame of their queue pair.
    pub reordered: u64,
    /// The number of lost frames, expressed as sending time of the uplink's share.
    pub milliseconds: f64,
}

impl Leaf {
    pub(super) fn of(node: &str, metrics: Result<&str, &String>) -> Self {
        let mut leaf = Self {
            node: node.to_owned(),
            vtepd: metrics.is_ok(),
            forwards: false,
            policies: BTreeMap::new(),
            unprobed: 0,
            left: Vec::new(),
            says: metrics.err().cloned(),
        };
        let label = |labels: &str, name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        for line in metrics.unwrap_or_default().lines() {
            if let Some(labels) = line.strip_prefix("vtepd_vni_info{") {
                if let (Some(vni), Some(policy)) = (label(labels, "vni"), label(labels, "policy")) {
                    leaf.policies.insert(vni, policy);
                }
            } else if let Some((labels, _)) =
                line.strip_prefix("vtepd_left_to_kernel{").and_then(|rest| rest.split_once('}'))
            {
                leaf.left.push(labels.to_owned());
            } else if line == "vtepd_ready 1" {
                leaf.forwards = true;
            } else if line.starts_with("vtepd_probing_ready{") && line.ends_with(" 0") {
                leaf.unprobed += 1;
            }
        }
        leaf.forwards &= !leaf.policies.is_empty();
        leaf
    }
}

impl Failover {
    /// Deviations from the expected behaviour. `outage_max` is in milliseconds.
    fn faults(&self, outage_max: f64) -> Vec<String> {
        let Self { uplink, lost, returned, returned_after_seconds, .. } = self;
        let mut faults = Vec::new();
        if lost.milliseconds > outage_max {
            faults.push(format!(
                "traffic stopped for {:.0} ms when {uplink} failed",
                lost.milliseconds
            ));
        }
        if returned.lost > 0 {
            faults.push(format!("{} frames were lost when {uplink} recovered", returned.lost));
        }
        if returned_after_seconds.is_none() {
            faults.push(format!("{uplink} is not used after its recovery"));
        }
        faults
    }

    fn write_return(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = self.returned_after_seconds.map_or_else(
            || "not used again".to_owned(),
            |seconds| format!("used again after {seconds:.1} s"),
        );
        writeln!(f, "            recovery: {} frames lost, {after}", self.returned.lost)
    }
}

impl Outcome {
    pub(super) fn new(
        deployed: &Deployed,
        vtepd: bool,
        reach: Vec<Reach>,
        leaves: Vec<Leaf>,
        balance: Balance,
        (failover, wide_area): (Option<Failover>, Option<WideAreaFailover>),
    ) -> Self {
        let mut faults = Vec::new();
        for pair in reach.iter().filter(|pair| !pair.reached) {
            faults.push(format!("{} does not reach {} (VNI {})", pair.from, pair.to, pair.vni));
        }
        for leaf in &leaves {
            if vtepd && !leaf.forwards {
                let why = leaf.says.clone().unwrap_or_else(|| leaf.left.join(" "));
                faults.push(format!("vtepd does not forward on {}: {why}", leaf.node));
            } else if !vtepd && leaf.vtepd {
                faults.push(format!("vtepd runs on {}, where none is expected", leaf.node));
            }
        }
        let Spread { lost, reordered, duplicated, mmr, .. } = balance.spread;
        if lost + reordered + duplicated > 0 {
            faults.push(format!(
                "of {} frames {lost} were lost, {reordered} reordered, {duplicated} duplicated",
                balance.frames
            ));
        }
        let (floor, chance) = (balance.floor_mmr, balance.random_mmr_at_most);
        if vtepd && balance.policy == "qp-pin" && mmr > floor + OTHER_FRAMES_AND_PROBES {
            faults.push(format!(
                "qp-pin does not spread the queue pairs as evenly as known paths allow: MMR {mmr:.2}, \
                 expected {floor:.2}; see 'vtepctl path' on {}",
                balance.leaf()
            ));
        }
        if vtepd && balance.policy == "qp-hash" && mmr > chance + OTHER_FRAMES {
            faults.push(format!(
                "the queue pairs are spread worse than by a random hash: MMR {mmr:.2}, expected {chance:.2} at most"
            ));
        }
        if vtepd {
            faults.extend(failover.iter().flat_map(|failover| failover.faults(OUTAGE_MAX)));
            let silent = wide_area.iter().map(|wide_area| &wide_area.failover);
            faults.extend(silent.flat_map(|failover| failover.faults(SILENT_OUTAGE_MAX)));
        }
        if let Some(cut) = wide_area.iter().find(|cut| cut.failover.lost.lost == 0) {
            faults.push(format!(
                "the circuit at {} was interrupted and no frame was lost: it carries no traffic",
                cut.circuit
            ));
        }
        Self {
            topology: deployed.topology().name.to_string(),
            runtime: if deployed.is_containerlab() { "containerlab" } else { "lab" },
            reach,
            leaves,
            balance,
            failover,
            wide_area,
            faults,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reached = self.reach.iter().filter(|reach| reach.reached).count();
        writeln!(f, "\n{} (by {})", self.topology, self.runtime)?;
        writeln!(f, "  hosts     {reached} of {} pairs reach each other", self.reach.len())?;
        for Leaf { node, policies, left, says, .. } in &self.leaves {
            let vnis: Vec<String> =
                policies.iter().map(|(vni, policy)| format!("{vni} {policy}")).collect();
            let state = match says {
                Some(_) => "no vtepd: kernel VXLAN".to_owned(),
                None => format!(
                    "vtepd forwards {}",
                    if vnis.is_empty() { "nothing".into() } else { vnis.join(", ") }
                ),
            };
            let left = if left.is_empty() {
                String::new()
            } else {
                format!("; left to the kernel: {}", left.join(" "))
            };
            writeln!(f, "  {node:<9} {state}{left}")?;
        }
        let Balance { from, to, queue_pairs, frames, spread, .. } = &self.balance;
        let Spread { mmr, jain, lost, reordered, .. } = spread;
        writeln!(
            f,
            "  balance   {queue_pairs} queue pairs from {from} to {to}, {frames} frames: {lost} lost, \
             {reordered} reordered"
        )?;
        self.balance.write_shares(f)?;
        let last =
            match self.balance.widest.iter().any(|link| self.balance.uplinks.contains_key(link)) {
                true => String::new(),
                false => format!(" of the last {} links", self.balance.widest.len()),
            };
        writeln!(
            f,
            "            MMR {mmr:.2}{last} (at least {:.2}; a random hash gives {:.2} on average), Jain's \
             index {jain:.2}",
            self.balance.floor_mmr, self.balance.random_mmr
        )?;
        if let Some(failover) = &self.failover {
            let Failover { uplink, share, lost, .. } = failover;
            writeln!(
                f,
                "  failover  {uplink} with {:.0} % of the traffic goes down: {} frames lost, {:.1} ms of its \
                 traffic",
                share * 100.0,
                lost.lost,
                lost.milliseconds
            )?;
            failover.write_return(f)?;
        }
        if let Some(WideAreaFailover { circuit, detected_after_milliseconds, failover }) =
            &self.wide_area
        {
            let Failover { uplink, share, lost, .. } = failover;
            let detected = detected_after_milliseconds.map_or_else(
                || "not detected by BFD".to_owned(),
                |milliseconds| format!("detected by BFD after {milliseconds:.0} ms"),
            );
            writeln!(
                f,
                "  wide area {circuit} with {:.0} % of the traffic, from {uplink}, fails silently: {detected}, \
                 recovered after {:.0} ms, {} frames lost",
                share * 100.0,
                lost.milliseconds,
                lost.lost
            )?;
            failover.write_return(f)?;
        }
        if self.faults.is_empty() {
            return writeln!(f, "  result    all checks passed");
        }
        self.faults.iter().try_for_each(|fault| writeln!(f, "  FAULT     {fault}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_by_its_metrics() {
        let metrics = "# TYPE x\nvtepd_ready 1\nvtepd_vni_info{vni=\"10010\",netdev=\"vx\",policy=\"qp-hash\"} 1\n\
                       vtepd_left_to_kernel{netdev=\"vx9\",reason=\"external\"} 1\n";
        let leaf = Leaf::of("leaf1", Ok(metrics));
        assert!(leaf.vtepd && leaf.forwards && leaf.says.is_none());
        assert_eq!(leaf.policies["10010"], "qp-hash");
        assert_eq!(leaf.left, ["netdev=\"vx9\",reason=\"external\""]);
        assert!(!Leaf::of("leaf1", Ok("vtepd_ready 1\n")).forwards, "ready, but for no VNI");
        let probing =
            "vtepd_probing_ready{vtep=\"10.0.0.2\"} 0\nvtepd_probing_ready{vtep=\"10.0.0.3\"} 1\n";
        assert_eq!((leaf.unprobed, Leaf::of("leaf1", Ok(probing)).unprobed), (0, 1));
        let silent = Leaf::of("leaf1", Err(&"no metrics".to_owned()));
        assert!(!silent.vtepd && silent.says.as_deref() == Some("no metrics"));
    }

    #[test]
    fn the_links_of_the_mmr_are_shown() {
        let of = |links: &[(&str, u64)]| -> BTreeMap<String, u64> {
            links.iter().map(|(name, load)| ((*name).to_owned(), *load)).collect()
        };
        let balance = Balance {
            from: "host1".into(),
            to: "host4".into(),
            policy: "qp-hash".into(),
            queue_pairs: 4,
            frames: 8,
            uplinks: [("leaf1:up1".to_owned(), 0.5), ("leaf1:up2".to_owned(), 0.5)].into(),
            widest: ["spine1:a", "spine1:b", "spine2:a"].map(str::to_owned).to_vec(),
            spread: Spread {
                links: of(&[("spine1:a", 2), ("spine1:b", 2), ("spine2:a", 4)]),
                mmr: 1.5,
                jain: 0.9,
                reordered: 0,
                lost: 0,
                duplicated: 0,
            },
            floor_mmr: 1.0,
            random_mmr: 1.5,
            random_mmr_at_most: 3.0,
        };
        let outcome = Outcome {
            topology: "t".into(),
            runtime: "lab",
            reach: Vec::new(),
            leaves: Vec::new(),
            balance,
            failover: None,
            wide_area: None,
            faults: Vec::new(),
        };
        let text = outcome.to_string();
        let shares = text.lines().filter(|line| line.ends_with(" %")).map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[0].to_owned(), words[words.len() - 2].to_owned())
        });
        let expected =
            ["leaf1:up1 50", "leaf1:up2 50", "spine1:a 25", "spine1:b 25", "spine2:a 50"];
        assert_eq!(
            shares.map(|(link, share)| format!("{link} {share}")).collect::<Vec<_>>(),
            expected
        );
        assert!(text.contains("MMR 1.50 of the last 3 links"), "{text}");
    }
}
