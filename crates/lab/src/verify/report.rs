//! What was seen: as tables with a verdict for people, as JSON for programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::deployed::Deployed;
use crate::spread::Spread;

/// A lost uplink may cost this long, in milliseconds, where vtepd forwards.
const OUTAGE_MAX: f64 = 100.0;
/// A circuit that fails silently may: BFD notices after three times 300 ms, on a machine that does
/// much else; BGP does the rest.
const SILENT_OUTAGE_MAX: f64 = 4000.0;

/// What was seen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// `name:` of the topology.
    pub topology: String,
    /// `containerlab` or `lab`.
    pub runtime: &'static str,
    /// Each pair of hosts of one VNI, both ways.
    pub reach: Vec<Reach>,
    /// Each node with a VXLAN netdev.
    pub leaves: Vec<Leaf>,
    /// Of one stream, over the uplinks of its leaf.
    pub balance: Balance,
    /// `null` where it was not asked for, or a leaf has one uplink only.
    pub failover: Option<Failover>,
    /// `null` where it was not asked for, or no circuits lie on the way.
    pub wide_area: Option<WideAreaFailover>,
    /// What is not as it should be, in words; nothing if all is well.
    pub faults: Vec<String>,
}

/// Whether one host reaches another (ICMP echo).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reach {
    /// Who asks.
    pub from: String,
    /// Who answers.
    pub to: String,
    /// In which VNI.
    pub vni: u32,
    /// Whether all of three were answered.
    pub reached: bool,
}

/// A leaf's vtepd, by its metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leaf {
    /// The node.
    pub node: String,
    /// Whether vtepd answers there.
    pub vtepd: bool,
    /// Whether it forwards at least one VNI.
    pub forwards: bool,
    /// The policy of each VNI.
    pub policies: BTreeMap<String, String>,
    /// What stays with the kernel: the metric's labels.
    pub left: Vec<String>,
    /// Why it is not known what it does.
    pub says: Option<String>,
}

/// How one stream was spread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Balance {
    /// The sending host.
    pub from: String,
    /// The receiving host.
    pub to: String,
    /// What the leaves do: a policy of vtepd, `kernel`, or `mixed`.
    pub policy: String,
    /// All with one inner UDP source port.
    pub queue_pairs: usize,
    /// Frames sent.
    pub frames: u64,
    /// Share of each uplink of the sending leaf, 0 to 1.
    pub uplinks: BTreeMap<String, f64>,
    /// What became of them.
    #[serde(flatten)]
    pub spread: Spread,
    /// What a perfect random hash of the queue pairs gives on average.
    pub random_mmr: f64,
    /// What it stays within in 999 of 1000 draws.
    pub random_mmr_at_most: f64,
}

/// What it cost that a circuit between two sites passed nothing on any more, while the routers at
/// both its ends kept their carrier.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WideAreaFailover {
    /// The interface that the circuit was cut at, `node:interface`.
    pub circuit: String,
    /// When the sending router's BFD gave its session up; `null` if it did not.
    pub detected_after_milliseconds: Option<f64>,
    /// The rest; `uplink` is the sending router's, and what was lost is also how long it took until
    /// traffic was whole again.
    #[serde(flatten)]
    pub failover: Failover,
}

/// What the loss and the return of an uplink cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failover {
    /// The uplink, `node:interface`.
    pub uplink: String,
    /// What it had carried, 0 to 1.
    pub share: f64,
    /// Its loss.
    pub lost: Outage,
    /// Its return.
    pub returned: Outage,
    /// When frames took it again; `null` if they did not.
    pub returned_after_seconds: Option<f64>,
}

/// What happened to a stream meanwhile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outage {
    /// Frames sent.
    pub frames: u64,
    /// Frames that did not arrive.
    pub lost: u64,
    /// Frames that arrived after a later one of their queue pair.
    pub reordered: u64,
    /// How long the uplink's share of the stream takes to send as many frames.
    pub milliseconds: f64,
}

impl Leaf {
    pub(super) fn of(node: &str, metrics: Result<&str, &String>) -> Self {
        let mut leaf = Self {
            node: node.to_owned(),
            vtepd: metrics.is_ok(),
            forwards: false,
            policies: BTreeMap::new(),
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
            }
        }
        leaf.forwards &= !leaf.policies.is_empty();
        leaf
    }
}

impl Failover {
    /// What is not as it should be; its loss may cost so many milliseconds.
    fn faults(&self, outage_max: f64) -> Vec<String> {
        let Self { uplink, lost, returned, returned_after_seconds, .. } = self;
        let mut faults = Vec::new();
        if lost.milliseconds > outage_max {
            faults.push(format!("the loss of {uplink} cost {:.0} ms", lost.milliseconds));
        }
        if returned.lost > 0 {
            faults.push(format!("the return of {uplink} cost {} frames", returned.lost));
        }
        if returned_after_seconds.is_none() {
            faults.push(format!("{uplink} is not used again after its return"));
        }
        faults
    }

    fn write_return(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = self.returned_after_seconds.map_or_else(
            || "not used again".to_owned(),
            |seconds| format!("used again after {seconds:.1} s"),
        );
        writeln!(f, "            comes back: {} frames lost, {after}", self.returned.lost)
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
                "of {} frames {lost} were lost, {reordered} reordered, {duplicated} doubled",
                balance.frames
            ));
        }
        let hashes = |leaf: &Leaf| leaf.policies.values().all(|policy| policy == "qp-hash");
        if vtepd && leaves.iter().all(hashes) && mmr > balance.random_mmr_at_most + 0.01 {
            faults.push(format!(
                "the queue pairs are spread worse than chance allows: MMR {mmr:.2}, chance {:.2} at most",
                balance.random_mmr_at_most
            ));
        }
        if vtepd {
            faults.extend(failover.iter().flat_map(|failover| failover.faults(OUTAGE_MAX)));
            let silent = wide_area.iter().map(|wide_area| &wide_area.failover);
            faults.extend(silent.flat_map(|failover| failover.faults(SILENT_OUTAGE_MAX)));
        }
        if let Some(cut) = wide_area.iter().find(|cut| cut.failover.lost.lost == 0) {
            faults.push(format!(
                "the circuit at {} was cut, and no frame was lost: it is not the way",
                cut.circuit
            ));
        }
        Self {
            topology: deployed.topology().name.clone(),
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
            "  balance   {queue_pairs} queue pairs from {from} to {to}, {frames} frames: {lost} lost, {reordered} reordered"
        )?;
        for (uplink, share) in &self.balance.uplinks {
            let bar = "█".repeat((share * 20.0).round() as usize);
            writeln!(f, "            {uplink:<12} {bar:<20} {:>3.0} %", share * 100.0)?;
        }
        writeln!(
            f,
            "            MMR {mmr:.2} (1 is even; a random hash gives {:.2} on average), Jain's index {jain:.2}",
            self.balance.random_mmr
        )?;
        if let Some(failover) = &self.failover {
            let Failover { uplink, share, lost, .. } = failover;
            writeln!(
                f,
                "  failover  {uplink}, which carried {:.0} %, goes down: {} frames lost, {:.1} ms of its share",
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
                || "not noticed by BFD".to_owned(),
                |milliseconds| format!("BFD says so after {milliseconds:.0} ms"),
            );
            writeln!(
                f,
                "  wide area {circuit}, to which {uplink} sent {:.0} %, falls silent: {detected}, whole after {:.0} ms, {} frames lost",
                share * 100.0,
                lost.milliseconds,
                lost.lost
            )?;
            failover.write_return(f)?;
        }
        if self.faults.is_empty() {
            return writeln!(f, "  verdict   all is well");
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
        let silent = Leaf::of("leaf1", Err(&"no metrics".to_owned()));
        assert!(!silent.vtepd && silent.says.as_deref() == Some("no metrics"));
    }
}
