//! What a run measures: the processes of the fabric, and what vtepd does on the leaves. A run counts
//! only if all of them are the same from the switch to its dataplane to its end.

use std::collections::{BTreeMap, BTreeSet};

use super::{Bench, RunError, program_name};
use fabric::process::Identity;

/// The programs that are looked at in ContainerLab's containers, where the lab has not started them.
const PROGRAMS: [&str; 7] = ["bfdd", "bgpd", "lab", "mgmtd", "ospfd", "staticd", "zebra"];
/// The metrics that tell what vtepd does.
const METRICS: [&str; 2] = ["vtepd_vni_datapath{", "vtepd_configuration_generation "];
const VTEPD: &str = "vtepd";

/// Processes and dataplanes at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Subjects {
    /// By node and program.
    processes: BTreeMap<(String, String), Identity>,
    /// The lines of [`METRICS`] by leaf; empty if vtepd does not answer there.
    dataplanes: BTreeMap<String, BTreeSet<String>>,
}

/// Something that is no longer what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// The node.
    pub(super) node: String,
    /// The program.
    pub(super) program: String,
    /// What happened to it.
    what: String,
}

impl Change {
    pub(super) fn is_vtepd(&self) -> bool {
        self.program == VTEPD
    }

    pub(super) fn is_circuit(&self) -> bool {
        self.program == "lab"
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {} {}", self.program, self.node, self.what)
    }
}

impl Subjects {
    /// Those of a fabric now, with the dataplanes if vtepd is to forward.
    pub(super) fn of(bench: &Bench<'_>) -> Result<Self, RunError> {
        let leaves = bench.leaves.iter().filter(|_| bench.has_vtepd()).cloned().collect();
        Self::with(bench, leaves)
    }

    /// The same ones at a later time, whatever has become of them.
    pub(super) fn again(&self, bench: &Bench<'_>) -> Result<Self, RunError> {
        Self::with(bench, self.dataplanes.keys().cloned().collect())
    }

    fn with(bench: &Bench<'_>, leaves: Vec<String>) -> Result<Self, RunError> {
        let mut all = Self::default();
        for record in bench.fabric.processes()? {
            all.processes.insert((record.node, record.name), record.identity);
        }
        if bench.fabric.has_containers() {
            for node in bench.fabric.nodes() {
                for pid in node.namespace()?.pids()? {
                    let (program, identity) = (program_name(pid), Identity::of(pid));
                    if let Some(identity) = identity.ok().filter(|_| PROGRAMS.contains(&&*program))
                    {
                        all.processes.insert((node.name().to_owned(), program), identity);
                    }
                }
            }
        }
        for leaf in leaves {
            let namespace = bench.deployed.namespace(&leaf)?;
            let metrics = fabric::metrics::read(&namespace).unwrap_or_default();
            let is_told = |line: &&str| METRICS.iter().any(|metric| line.starts_with(metric));
            let lines = metrics.lines().filter(is_told).map(str::to_owned).collect();
            all.dataplanes.insert(leaf, lines);
        }
        Ok(all)
    }

    /// Leaves where vtepd does not answer.
    pub(super) fn missing(&self) -> Vec<Change> {
        let silent = self.dataplanes.iter().filter(|(_, lines)| lines.is_empty());
        silent.map(|(leaf, _)| change(leaf, VTEPD, "does not answer")).collect()
    }

    /// Leaves out what a failure restarts.
    pub(super) fn forget(&mut self, restarts: impl Fn(&str, &str) -> bool) {
        self.processes.retain(|(node, program), _| !restarts(node, program));
        self.dataplanes.retain(|leaf, _| !restarts(leaf, VTEPD));
    }

    /// What has changed until a later time. What has come since then does not count.
    pub(super) fn changes(&self, after: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        for ((node, program), before) in &self.processes {
            match after.processes.get(&(node.clone(), program.clone())) {
                Some(now) if now == before => {}
                Some(_) => changes.push(change(node, program, "ended and was started again")),
                None => changes.push(change(node, program, "ended")),
            }
        }
        // That it does not answer follows from its end.
        if !changes.iter().any(Change::is_vtepd) {
            for (leaf, before) in &self.dataplanes {
                let none = BTreeSet::new();
                let now = after.dataplanes.get(leaf).unwrap_or(&none);
                if now != before {
                    let lost = before.difference(now).map(|line| format!(" -{line}"));
                    let new = now.difference(before).map(|line| format!(" +{line}"));
                    let lines: String = lost.chain(new).collect();
                    let what = format!("has another datapath or configuration:{lines}");
                    changes.push(change(leaf, VTEPD, &what));
                }
            }
        }
        changes
    }
}

fn change(node: &str, program: &str, what: &str) -> Change {
    Change { node: node.to_owned(), program: program.to_owned(), what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects(vtepd: Option<i32>, datapath: &str) -> Subjects {
        let key = |node: &str, program: &str| (node.to_owned(), program.to_owned());
        let identity = |pid| Identity { pid, start_time: 7 };
        let vtepd = vtepd.map(|pid| (key("leaf1", VTEPD), identity(pid)));
        let line = format!("vtepd_vni_datapath{{vni=\"10\",datapath=\"{datapath}\"}} 1");
        let lines = [line].into_iter().filter(|_| vtepd.is_some()).collect();
        Subjects {
            processes: vtepd.into_iter().chain([(key("spine1", "bgpd"), identity(4))]).collect(),
            dataplanes: [("leaf1".to_owned(), lines)].into(),
        }
    }

    #[test]
    fn a_change_is_told_once() {
        let before = subjects(Some(3), "offload");
        let told = |after: &Subjects| {
            before.changes(after).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(told(&before), [""; 0]);
        assert_eq!(told(&subjects(None, "")), ["vtepd on leaf1 ended"]);
        let again = subjects(Some(5), "offload");
        assert_eq!(told(&again), ["vtepd on leaf1 ended and was started again"]);
        let moved = subjects(Some(3), "kernel");
        assert_eq!(
            told(&moved),
            ["vtepd on leaf1 has another datapath or configuration: \
              -vtepd_vni_datapath{vni=\"10\",datapath=\"offload\"} 1 \
              +vtepd_vni_datapath{vni=\"10\",datapath=\"kernel\"} 1"]
        );
        let mut dead = before.clone();
        dead.processes.remove(&("spine1".to_owned(), "bgpd".to_owned()));
        assert_eq!(told(&dead), ["bgpd on spine1 ended"]);
        assert_eq!(subjects(None, "").missing()[0].to_string(), "vtepd on leaf1 does not answer");
        assert_eq!(before.missing(), []);
    }

    #[test]
    fn what_a_failure_restarts_is_left_out() {
        let mut before = subjects(Some(3), "offload");
        before.forget(|node, program| (node, program) == ("leaf1", VTEPD));
        assert_eq!(before.changes(&subjects(Some(5), "kernel")), []);
        before.forget(|node, _| node == "spine1");
        assert_eq!(before, Subjects::default());
    }
}
