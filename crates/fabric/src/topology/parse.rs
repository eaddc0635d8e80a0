//! Converts YAML into a [`Topology`]. Each key is used, ignored because it has no effect on
//! namespaces, or refused with its place.

mod container;
mod link;
mod node;
mod placeholders;
mod stages;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use experiment::units::Name;
use serde_norway::Value;

use super::error::TopologyError;
use super::model::{Kind, Node, Topology, is_vtepd};
use node::{Settings, environment, settings};
use value::{Result, entries, expected, mapping, sequence, string, unsupported};

pub(crate) fn topology(file: &Value, directory: &Path) -> Result<Topology> {
    let file = mapping("the file", file)?;
    let mut name = None;
    let mut body = None;
    let mut notes = Vec::new();
    for (key, value) in entries("the file", file)? {
        match key {
            "name" => name = Some(checked("name", &string("name", value)?)?),
            "topology" => body = Some(value),
            "mgmt" => notes
                .push("mgmt: nodes have no management network here, only their links".to_owned()),
            // These name containers, which the lab does not have.
            "prefix" | "debug" => {}
            _ => return Err(unsupported(key, "")),
        }
    }
    let name = name.ok_or(TopologyError::Missing { place: "name".into() })?;
    let body = body.ok_or(TopologyError::Missing { place: "topology".into() })?;

    kinds_are_supported(body)?;
    let mut nodes = None;
    let (mut links, mut half_links) = (Vec::new(), Vec::new());
    let mut defaults = Settings::default();
    let mut kinds = BTreeMap::new();
    let mut groups = BTreeMap::new();
    for (key, value) in entries("topology", mapping("topology", body)?)? {
        let place = format!("topology.{key}");
        match key {
            "nodes" => {
                let all = levels(&place, value, directory)?;
                // Names of nodes are parts of paths, too.
                // `BRIDGE|NODE` is a bridge in the namespace of a node.
                let mut parts = all.keys().flat_map(|name| name.splitn(2, '|'));
                parts.try_for_each(|part| checked(&place, part).map(drop))?;
                nodes = Some(all);
            }
            "defaults" => defaults = settings(&place, value, directory)?,
            "kinds" => kinds = levels(&place, value, directory)?,
            "groups" => groups = levels(&place, value, directory)?,
            "links" => {
                for (index, value) in sequence(&place, value)?.iter().enumerate() {
                    match link::link(&format!("{place}[{index}]"), value)? {
                        link::Parsed::Whole(link) => links.push(link),
                        link::Parsed::Half(link) => half_links.push(link),
                    }
                }
            }
            _ => return Err(unsupported(&place, "")),
        }
    }
    let nodes = nodes.ok_or(TopologyError::Missing { place: "topology.nodes".into() })?;
    let managed: Vec<&str> =
        nodes.iter().filter(|(_, node)| node.management).map(|(name, _)| name.as_str()).collect();
    if !managed.is_empty() {
        notes.push(format!("mgmt-ipv4, mgmt-ipv6: not given to {}", managed.join(", ")));
    }
    let lab = name.to_string();
    let mut missed: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let nodes = nodes
        .into_iter()
        .map(|(name, own)| {
            let (node, keys) = inherit(&name, own, &defaults, &kinds, &groups)?;
            for key in keys {
                missed.entry(key).or_default().push(name.clone());
            }
            let node = placeholders::replaced(&lab, &name, node)?;
            bridge_is_where_it_is_named(&name, &node)?;
            Ok((name, node))
        })
        .collect::<Result<_>>()?;
    let missed = missed.into_iter();
    notes.extend(missed.map(|(key, of)| format!("{key}: has no effect on {}", of.join(", "))));
    Ok(Topology { name, nodes, links, half_links, notes })
}

/// Refuses nodes of other kinds first: their keys have another meaning.
fn kinds_are_supported(body: &Value) -> Result<()> {
    let text = |value: &Value, key| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let defaults = body.get("defaults").unwrap_or(&Value::Null);
    let nodes = body.get("nodes").and_then(Value::as_mapping);
    for (name, own) in nodes.into_iter().flatten() {
        let group = text(own, "group").or_else(|| text(defaults, "group"));
        let group = group.and_then(|group| body.get("groups")?.get(&group));
        let levels = [Some(own), group, Some(defaults)];
        let kind = levels.into_iter().flatten().find_map(|level| text(level, "kind"));
        if kind.is_some_and(|kind| kind != "linux" && kind != "bridge") {
            let place = format!("topology.nodes.{}.kind", name.as_str().unwrap_or_default());
            return Err(unsupported(&place, KINDS));
        }
    }
    Ok(())
}

const KINDS: &str = "only nodes of kind linux and bridge can be namespaces";

/// A node `BRIDGE|NODE` is a bridge that is made in the namespace of NODE.
fn bridge_is_where_it_is_named(name: &str, node: &Node) -> Result<()> {
    let Some((_, owner)) = name.split_once('|') else { return Ok(()) };
    if node.kind == Kind::Bridge && node.shares.as_deref() == Some(owner) {
        return Ok(());
    }
    Err(expected(
        &format!("topology.nodes.{name}"),
        "kind bridge and 'network-mode: container:NODE' of a node BRIDGE|NODE",
    ))
}

fn checked(place: &str, name: &str) -> Result<Name> {
    name.parse().map_err(|error| TopologyError::Name { place: place.to_owned(), error })
}

fn levels(place: &str, value: &Value, directory: &Path) -> Result<BTreeMap<String, Settings>> {
    entries(place, mapping(place, value)?)?
        .map(|(name, value)| {
            Ok((name.to_owned(), settings(&format!("{place}.{name}"), value, directory)?))
        })
        .collect()
}

/// Merges a node's own settings with those of its group, its kind and the defaults. Lists and maps
/// are joined, single values replaced. Also returns the keys that have no effect.
fn inherit(
    name: &str,
    own: Settings,
    defaults: &Settings,
    kinds: &BTreeMap<String, Settings>,
    groups: &BTreeMap<String, Settings>,
) -> Result<(Node, BTreeSet<&'static str>)> {
    let group_name = own.node.group.clone().or(defaults.node.group.clone());
    let group = group_name.as_ref().and_then(|name| groups.get(name));
    let kind_name = own
        .kind
        .clone()
        .or_else(|| group.and_then(|group| group.kind.clone()))
        .or_else(|| defaults.kind.clone());
    let place = format!("topology.nodes.{name}.kind");
    let kind = match kind_name.as_deref() {
        Some("linux") => Kind::Linux,
        Some("bridge") => Kind::Bridge,
        Some(_) => return Err(unsupported(&place, KINDS)),
        None => return Err(TopologyError::Missing { place }),
    };

    let mut node = Node { kind, ..Node::default() };
    let (mut entrypoint, mut cmd, mut env_files) = (None, None, Vec::new());
    let (mut image, mut missed) = (None, BTreeSet::new());
    let kind_settings = kind_name.as_ref().and_then(|name| kinds.get(name));
    for level in [Some(defaults), kind_settings, group, Some(&own)].into_iter().flatten() {
        let level = level.clone();
        node.shares = level.network.unwrap_or(node.shares);
        entrypoint = level.entrypoint.or(entrypoint);
        cmd = level.cmd.or(cmd);
        image = level.image.or(image);
        node.startup_delay = level.startup_delay.unwrap_or(node.startup_delay);
        env_files.extend(level.env_files);
        missed.extend(level.missed);
        let level = level.node;
        node.hostname = level.hostname.or(node.hostname);
        node.exec.extend(level.exec);
        node.env.extend(level.env);
        node.sysctls.extend(level.sysctls);
        node.stages.extend(level.stages);
        node.healthcheck = level.healthcheck.or(node.healthcheck);
        node.binds.retain(|bind| level.binds.iter().all(|newer| newer.target != bind.target));
        node.binds.extend(level.binds);
        node.tmpfs.extend(level.tmpfs);
        node.resolver = level.resolver.or(node.resolver);
        node.machine_pids |= level.machine_pids;
    }
    node.group = group_name;
    let mut env = environment(&env_files)?;
    env.append(&mut node.env);
    node.env = env;
    let words: Vec<String> =
        entrypoint.iter().chain(&cmd).flatten().map(String::to_owned).collect();
    node.vtepd = sidecar(name, &node, image.as_deref(), &words);
    if node.vtepd.is_none() {
        node.program = program(name, &node, entrypoint, cmd)?;
    }
    Ok((node, missed))
}

/// The flags of vtepd, if the node runs it beside another node. `words` are its entry point and its
/// command.
fn sidecar(name: &str, node: &Node, image: Option<&str>, words: &[String]) -> Option<Vec<String>> {
    node.shares.as_ref()?;
    let named = image.is_some_and(is_vtepd)
        || name.starts_with("vtepd")
        || node.group.as_deref() == Some("vtepd");
    match words.split_first() {
        Some((program, flags)) if is_vtepd(program) => Some(flags.to_vec()),
        Some((first, _)) if !first.starts_with('-') => None,
        _ => named.then(|| words.to_vec()),
    }
}

/// The program of the node, from `entrypoint` and `cmd`.
fn program(
    name: &str,
    node: &Node,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
) -> Result<Vec<String>> {
    let options_only =
        cmd.as_ref().and_then(|words| words.first()).is_some_and(|word| word.starts_with('-'));
    if entrypoint.is_none() && options_only {
        // A node that shares a namespace needs no program of its own.
        if node.shares.is_some() {
            return Ok(Vec::new());
        }
        let why =
            "options of the program in the image, which lab does not know; name it as entrypoint";
        return Err(unsupported(&format!("topology.nodes.{name}.cmd"), why));
    }
    Ok(entrypoint.into_iter().chain(cmd).flatten().collect())
}

#[cfg(test)]
mod tests;
