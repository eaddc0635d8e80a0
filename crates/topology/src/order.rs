//! The order in which nodes come up: which stages wait for which, and that none waits for itself.
//!
//! A link is made when both of its ends are ready for links. If one end waits for a later stage of
//! the other, the other does not wait for it, as in ContainerLab: the link is made without it.

use std::collections::{BTreeMap, BTreeSet};

use super::error::TopologyError;
use super::model::{Stage, Topology};

/// Whether another node waits until this one has completed a stage.
#[must_use]
pub fn is_awaited(topology: &Topology, node: &str, stage: Stage) -> bool {
    awaited(topology).any(|awaited| awaited == (node, stage))
}

/// What stages wait for.
fn awaited(topology: &Topology) -> impl Iterator<Item = Step<'_>> {
    let stages = topology.nodes.values().flat_map(|node| node.stages.values());
    stages.flat_map(|stage| &stage.wait_for).map(|(node, stage)| (node.as_str(), *stage))
}

/// Checks that every `wait-for` can be fulfilled.
pub(crate) fn check(topology: &Topology) -> Result<(), TopologyError> {
    let awaited: BTreeSet<Step> = awaited(topology).collect();
    for (name, node) in &topology.nodes {
        for (stage, settings) in &node.stages {
            let place = format!("topology.nodes.{name}.stages.{}.wait-for", stage.name());
            for (waited, _) in &settings.wait_for {
                if !topology.nodes.contains_key(waited) {
                    return Err(TopologyError::NoSuchNode { place, node: waited.clone() });
                }
            }
        }
        for (stage, place, has) in [
            (Stage::Healthy, "healthcheck", node.healthcheck.is_some()),
            (Stage::Exit, "cmd", !node.program.is_empty()),
        ] {
            if awaited.contains(&(name, stage)) && !has {
                return Err(TopologyError::Missing {
                    place: format!("topology.nodes.{name}.{place}"),
                });
            }
        }
    }
    let mut order = Order::new(topology);
    order.complete();
    let mut known = BTreeSet::new();
    topology.nodes.keys().try_for_each(|name| order.follow((name, Stage::Exit), &mut known))
}

/// The ends, as the index of the link and the node, for which their link does not wait.
#[must_use]
pub fn not_awaited(topology: &Topology) -> BTreeSet<(usize, &str)> {
    let mut order = Order::new(topology);
    order.complete();
    order.not_awaited
}

/// A stage of a node.
type Step<'a> = (&'a str, Stage);

/// The error of a way that leads to one of its own steps again.
fn circle<'a>(way: impl Iterator<Item = Step<'a>>, again: Step<'a>) -> TopologyError {
    let circle = way.chain([again]).skip_while(|step| *step != again);
    let circle: Vec<String> =
        circle.map(|(node, stage)| format!("{node} ({})", stage.name())).collect();
    let place = format!("topology.nodes.{}.stages", again.0);
    TopologyError::Circle { place, circle: circle.join(" after ") }
}

/// Which stages wait for which.
struct Order<'a> {
    topology: &'a Topology,
    /// The links of each node, by their index. A node that shares a namespace waits for the links
    /// of its owner.
    links: BTreeMap<&'a str, Vec<usize>>,
    not_awaited: BTreeSet<(usize, &'a str)>,
}

impl<'a> Order<'a> {
    /// No link waits for its ends.
    fn new(topology: &'a Topology) -> Self {
        let mut links: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut not_awaited = BTreeSet::new();
        for (index, link) in topology.links.iter().enumerate() {
            for end in &link.ends {
                not_awaited.insert((index, end.node.as_str()));
                links.entry(&end.node).or_default().push(index);
            }
        }
        for (name, node) in &topology.nodes {
            let of_owner = node.shares.as_deref().and_then(|owner| links.get(owner)).cloned();
            links.entry(name).or_default().extend(of_owner.unwrap_or_default());
        }
        Self { topology, links, not_awaited }
    }

    /// Lets links wait for their ends, one after the other, where nothing waits for itself then.
    fn complete(&mut self) {
        let nodes = self.topology.nodes.values();
        let waits = nodes.flat_map(|node| node.stages.values()).flat_map(|stage| &stage.wait_for);
        let waited: BTreeSet<&str> = waits
            .filter(|(_, stage)| *stage >= Stage::CreateLinks)
            .map(|(node, _)| node.as_str())
            .collect();
        // Only what is waited for can wait for itself.
        let mut risky: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for (name, links) in self.links.iter().filter(|(name, _)| waited.contains(*name)) {
            links.iter().for_each(|link| risky.entry(*link).or_default().push(name));
        }
        self.not_awaited.retain(|(link, _)| risky.contains_key(link));
        for end in self.not_awaited.clone() {
            self.not_awaited.remove(&end);
            let mut waiting = risky.get(&end.0).into_iter().flatten();
            let mut known = BTreeSet::new();
            if waiting.any(|node| self.follow((node, Stage::CreateLinks), &mut known).is_err()) {
                self.not_awaited.insert(end);
            }
        }
    }

    /// Refuses a step that waits for itself, or for one that does. `known` has steps that do not.
    /// Searches depth first. The way is a list and not the stack: it may be as long as the file.
    fn follow(&self, step: Step<'a>, known: &mut BTreeSet<Step<'a>>) -> Result<(), TopologyError> {
        if known.contains(&step) {
            return Ok(());
        }
        // The steps of the way, each with those before it that are left, and once more as a set.
        let mut way = vec![(step, self.before(step).into_iter())];
        let mut on_way = BTreeSet::from([step]);
        while let Some((at, left)) = way.last_mut() {
            match left.next() {
                None => {
                    on_way.remove(at);
                    known.insert(*at);
                    way.pop();
                }
                Some(before) if known.contains(&before) => {}
                Some(before) if on_way.insert(before) => {
                    way.push((before, self.before(before).into_iter()));
                }
                Some(again) => return Err(circle(way.iter().map(|(step, _)| *step), again)),
            }
        }
        Ok(())
    }

    /// The steps that must be complete before this one can be.
    fn before(&self, (name, stage): Step<'a>) -> Vec<Step<'a>> {
        let previous = Stage::ALL.into_iter().rev().find(|earlier| *earlier < stage);
        let previous = previous.map(|previous| (name, previous));
        let mut all: Vec<_> = previous.into_iter().chain(self.waits((name, stage))).collect();
        if stage == Stage::CreateLinks {
            for index in self.links.get(name).into_iter().flatten() {
                let ends = self.topology.links.get(*index).map(|link| &link.ends);
                for end in ends.into_iter().flatten().map(|end| end.node.as_str()) {
                    if end != name && !self.not_awaited.contains(&(*index, end)) {
                        all.push((end, Stage::Create));
                        all.extend(self.waits((end, Stage::CreateLinks)));
                    }
                }
            }
        }
        all
    }

    /// The steps that the file has this one wait for.
    fn waits(&self, (name, stage): Step<'a>) -> impl Iterator<Item = Step<'a>> {
        let settings = self.topology.nodes.get(name).and_then(|node| node.stages.get(&stage));
        let waits = settings.into_iter().flat_map(|settings| &settings.wait_for);
        waits.map(|(node, stage)| (node.as_str(), *stage))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A topology of these nodes, without links.
    fn parsed(nodes: &str) -> Result<Topology, String> {
        let text = format!("{{name: x, topology: {{defaults: {{kind: linux}}, nodes: {nodes}}}}}");
        Topology::parse(&text, Path::new("/labs"), |_| None).map_err(|error| error.to_string())
    }

    #[test]
    fn a_long_chain_of_nodes_needs_no_stack() {
        let node = |number: u32| {
            let wait = format!("wait-for: [{{node: n{}, stage: create}}]", number + 1);
            format!("n{number}: {{stages: {{create: {{{wait}}}}}}}")
        };
        let nodes = |last: &str| {
            let chain: Vec<String> = (0..8_000).map(node).collect();
            parsed(&format!("{{{}, n8000: {last}}}", chain.join(", ")))
        };
        assert_eq!(nodes("").unwrap().nodes.len(), 8_001);
        let last = "{stages: {create: {wait-for: [{node: n0, stage: create}]}}}";
        let error = nodes(last).unwrap_err();
        assert!(error.starts_with("topology.nodes.n0.stages: waits for itself"), "{error:.200}");
    }

    #[test]
    fn who_waits_for_what_never_comes_is_refused() {
        let wait =
            |node: &str, stage: &str| format!("wait-for: [{{node: {node}, stage: {stage}}}]");
        for (nodes, named) in [
            (
                format!("{{a: {{stages: {{configure: {{{}}}}}}}}}", wait("b", "create")),
                "topology.nodes.a.stages.configure.wait-for: no node 'b'",
            ),
            (
                format!("{{a: , b: {{stages: {{create: {{{}}}}}}}}}", wait("a", "healthy")),
                "topology.nodes.a.healthcheck: missing",
            ),
            (
                format!("{{a: , b: {{stages: {{create: {{{}}}}}}}}}", wait("a", "exit")),
                "topology.nodes.a.cmd: missing",
            ),
            (
                format!(
                    "{{a: {{stages: {{create: {{{}}}}}}}, b: {{stages: {{create-links: {{{}}}}}}}}}",
                    wait("b", "configure"),
                    wait("a", "create")
                ),
                "topology.nodes.a.stages: waits for itself: a (create) after b (configure) after b (create-links) after a (create)",
            ),
        ] {
            let error = parsed(&nodes).unwrap_err();
            assert!(error.starts_with(named), "{nodes}: {error}");
        }
        parsed(&format!("{{a: , b: {{stages: {{create: {{{}}}}}}}}}", wait("a", "configure")))
            .unwrap();
    }

    /// The ends that their links do not wait for, of nodes that wait for stages of others.
    fn not_awaited(links: &[&str], waits: &[(&str, &str, &str, &str)]) -> Vec<(usize, String)> {
        let mut text = "name: x\ntopology:\n  defaults: {kind: linux}\n  nodes:\n".to_owned();
        for name in ["a", "b", "c", "d"] {
            text += &format!("    {name}:\n      stages:\n");
            for (_, stage, node, waited) in waits.iter().filter(|wait| wait.0 == name) {
                text += &format!(
                    "        {stage}: {{wait-for: [{{node: {node}, stage: {waited}}}]}}\n"
                );
            }
        }
        text += "    s: {network-mode: 'container:a'}\n  links:\n";
        for (index, link) in links.iter().enumerate() {
            let (one, other) = link.split_at(1);
            text += &format!("    - endpoints: ['{one}:e{index}', '{other}:e{index}']\n");
        }
        let topology = Topology::parse(&text, Path::new("/labs"), |_| None).unwrap();
        let ends = super::not_awaited(&topology).into_iter();
        ends.map(|(link, node)| (link, node.to_owned())).collect()
    }

    #[test]
    fn a_link_does_not_wait_for_an_end_that_waits_for_the_other() {
        let configured = |node, waited| (node, "create", waited, "configure");
        for (links, waits, ends) in [
            (&["ab"][..], &[][..], &[][..]),
            (&["ab"], &[("b", "create", "a", "create")], &[]),
            (&["ab"], &[configured("b", "a")], &[(0, "b")]),
            (&["ba", "ac"], &[("b", "create-links", "a", "configure")], &[(0, "b")]),
            // By another node, and by the link of another.
            (&["ab"], &[configured("b", "c"), configured("c", "a")], &[(0, "b")]),
            (&["ab", "cd"], &[configured("b", "c"), configured("d", "a")], &[(1, "d")]),
            // A node beside an end waits for the links, too.
            (&["ab"], &[configured("b", "s")], &[(0, "b")]),
            (&["ac", "sb"], &[configured("b", "s")], &[(1, "b")]),
            (&["cd"], &[configured("b", "a")], &[]),
        ] {
            let found = not_awaited(links, waits);
            let found: Vec<(usize, &str)> =
                found.iter().map(|(link, node)| (*link, node.as_str())).collect();
            assert_eq!(found, ends, "{links:?} {waits:?}");
        }
    }
}
