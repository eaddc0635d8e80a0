//! The order in which nodes come up: which stages wait for which, and that none waits for itself.

use std::collections::BTreeMap;

use super::error::TopologyError;
use super::model::{Stage, Topology};

/// Whether the node must reach this stage: another node waits for it, or the node has settings for
/// this stage or a later one.
#[must_use]
pub fn must_reach(topology: &Topology, node: &str, stage: Stage) -> bool {
    let own =
        topology.nodes.get(node).is_some_and(|node| node.stages.keys().any(|own| *own >= stage));
    let waits = topology
        .nodes
        .values()
        .flat_map(|node| node.stages.values())
        .flat_map(|stage| &stage.wait_for);
    own || waits.into_iter().any(|(waited, of)| waited == node && *of >= stage)
}

/// Checks that every `wait-for` can be fulfilled.
pub(crate) fn check(topology: &Topology) -> Result<(), TopologyError> {
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
            // A node without a health check may have the stage `exit`, although that is after
            // `healthy`.
            let required = must_reach(topology, name, stage)
                && (stage == Stage::Exit || !must_reach(topology, name, Stage::Exit));
            if required && !has {
                return Err(TopologyError::Missing {
                    place: format!("topology.nodes.{name}.{place}"),
                });
            }
        }
    }
    let mut known = BTreeMap::new();
    for name in topology.nodes.keys() {
        follow(topology, (name, Stage::Exit), &mut Vec::new(), &mut known)?;
    }
    Ok(())
}

/// Searches for dependency cycles, depth first. `known` has the stages that are already known to be
/// in none.
fn follow<'a>(
    topology: &'a Topology,
    at: (&'a str, Stage),
    way: &mut Vec<(&'a str, Stage)>,
    known: &mut BTreeMap<(&'a str, Stage), ()>,
) -> Result<(), TopologyError> {
    if known.contains_key(&at) {
        return Ok(());
    }
    let (name, stage) = at;
    if way.contains(&at) {
        let circle: Vec<String> = way
            .iter()
            .chain([&at])
            .skip_while(|step| **step != at)
            .map(|(node, stage)| format!("{node} ({})", stage.name()))
            .collect();
        let place = format!("topology.nodes.{name}.stages");
        return Err(TopologyError::Circle { place, circle: circle.join(" after ") });
    }
    way.push(at);
    for before in before(topology, name, stage) {
        follow(topology, before, way, known)?;
    }
    way.pop();
    known.insert(at, ());
    Ok(())
}

/// The stages that must be complete before this stage of the node can be.
fn before<'a>(topology: &'a Topology, name: &'a str, stage: Stage) -> Vec<(&'a str, Stage)> {
    let waits = |name: &str, stage: Stage| {
        let settings = topology.nodes.get(name).and_then(|node| node.stages.get(&stage));
        let waits = settings.map(|settings| settings.wait_for.as_slice()).unwrap_or_default();
        waits.iter().map(|(node, stage)| (node.as_str(), *stage))
    };
    let previous = Stage::ALL.into_iter().rev().find(|earlier| *earlier < stage);
    let mut all: Vec<(&str, Stage)> =
        previous.map(|previous| (name, previous)).into_iter().chain(waits(name, stage)).collect();
    if stage == Stage::CreateLinks {
        // A link is made only when its other end is ready, too.
        for link in
            topology.links.iter().filter(|link| link.ends.iter().any(|end| end.node == name))
        {
            for end in link.ends.iter().filter(|end| end.node != name) {
                all.push((&end.node, Stage::Create));
                all.extend(waits(&end.node, Stage::CreateLinks));
            }
        }
    }
    all
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
}
