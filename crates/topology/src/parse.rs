//! Converts YAML into a [`Topology`]. Each key is used, ignored because it has no effect on
//! namespaces, or refused with its place.

mod container;
mod env_file;
mod git;
mod inherit;
mod link;
mod management;
mod node;
mod placeholders;
mod size;
mod stages;
mod texts;
mod value;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use experiment::units::Name;
use serde_norway::Value;

use super::error::TopologyError;
use super::model::{ETH0, Endpoint, Kind, Node, Topology};
use inherit::{Levels, kind_and_group};
pub(crate) use link::INTERFACE_NAME_MAX;
use link::Links;
use management::Network;
use node::{Settings, settings};
pub(crate) use texts::read;
use value::{Result, entries, expected, fields, sequence, string, unsupported};

/// Where a topology comes from.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    /// Relative paths begin here.
    pub(crate) directory: &'a Path,
    /// The file.
    pub(crate) path: Option<&'a Path>,
    /// What replaces the name that the file gives.
    pub(crate) name: Option<&'a Name>,
}

/// Converts a file as [`read`] gives it.
pub(crate) fn topology(file: &Value, origin: Origin) -> Result<Topology> {
    let directory = origin.directory;
    let mut network = Network::default();
    let mut prefix = network.management.prefix.clone();
    let mut name = None;
    let mut body = None;
    let mut notes = Vec::new();
    for (key, value) in entries("the file", file)?.filter(|(_, value)| !value.is_null()) {
        match key {
            "name" => name = Some(checked("name", &git::named(string("name", value)?, directory))?),
            "topology" => body = Some(value),
            "mgmt" => network = Network::parse(value)?,
            "prefix" => prefix = string("prefix", value)?,
            "settings" => notes.push("settings: lab makes no certificates".to_owned()),
            "debug" => {}
            _ => return Err(unsupported(key, "")),
        }
    }
    let name =
        origin.name.cloned().or(name).ok_or(TopologyError::Missing { place: "name".into() })?;
    let body = body.ok_or(TopologyError::Missing { place: "topology".into() })?;

    size::check_inherited(body)?;
    let used = Used::of(body)?;
    network.management.prefix = prefix;
    notes.extend(network.note.clone());
    let management = network.management.clone();
    let base = std::env::var("CLAB_LABDIR_BASE").ok();
    let lab = placeholders::lab_directory(directory, base.as_deref(), name.as_str());
    let levels = Levels::new(&name, origin.path, lab, management);
    let Body { nodes, levels, links } = self::body(body, levels, &used, directory)?;
    if links.variables {
        let note = "links: vars have no effect: lab has no configuration engine";
        notes.push(note.to_owned());
    }
    if links.addresses {
        let note = "links: ipv4 and ipv6 have no effect on linux nodes; set them by exec";
        notes.push(note.to_owned());
    }
    let of_links = links.whole.iter().flat_map(|link| &link.ends);
    let mut interfaces: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Endpoint { node, interface } in of_links.chain(links.half.iter().map(|link| &link.end)) {
        interfaces.entry(node).or_default().push(interface);
    }
    let mut missed: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut nodes: BTreeMap<String, Node> = nodes
        .into_iter()
        .map(|(name, own)| {
            let own_ends = interfaces.get(name.as_str()).map_or(&[][..], Vec::as_slice);
            let has_own_eth0 = own_ends.contains(&ETH0);
            let (mut node, keys) = levels.inherit(&name, own, own_ends.len())?;
            node.management = node.management.filter(|_| !has_own_eth0);
            for key in keys {
                missed.entry(key).or_default().push(name.clone());
            }
            let node = placeholders::replaced(directory, &levels.directory, &name, node);
            bridge_is_where_it_is_named(&name, &node)?;
            Ok((name, node))
        })
        .collect::<Result<_>>()?;
    notes.extend(network.assign(&mut nodes)?);
    let missed = missed.into_iter();
    notes.extend(missed.map(|(key, of)| format!("{key}: has no effect on {}", of.join(", "))));
    let Links { whole: links, half: half_links, .. } = links;
    Ok(Topology { name, nodes, links, half_links, management: network.management, notes })
}

/// What is below the key `topology`.
struct Body {
    nodes: BTreeMap<String, Settings>,
    levels: Levels,
    links: Links,
}

fn body(value: &Value, mut levels: Levels, used: &Used, directory: &Path) -> Result<Body> {
    let mut nodes = None;
    let mut links = Links::default();
    let names = value.get("nodes").and_then(Value::as_mapping).into_iter().flatten();
    let names: BTreeSet<&str> = names.filter_map(|(name, _)| name.as_str()).collect();
    for (key, value) in fields("topology", value)? {
        let place = format!("topology.{key}");
        match key {
            "nodes" => {
                let all = named(&place, value, directory, |_| true)?;
                // Names of nodes are parts of paths, too.
                // `BRIDGE|NODE` is a bridge in the namespace of a node.
                let mut parts = all.keys().flat_map(|name| name.splitn(2, '|'));
                parts.try_for_each(|part| checked(&place, part).map(drop))?;
                nodes = Some(all);
            }
            "defaults" => levels.defaults = settings(&place, value, directory)?,
            "kinds" => {
                levels.kinds = named(&place, value, directory, |kind| used.kinds.contains(kind))?
            }
            "groups" => {
                levels.groups =
                    named(&place, value, directory, |group| used.groups.contains(group))?;
            }
            "links" => {
                for (index, value) in sequence(&place, value)?.iter().enumerate() {
                    links.add(&format!("{place}[{index}]"), value, &names)?;
                }
            }
            _ => return Err(unsupported(&place, "")),
        }
    }
    let nodes = nodes.ok_or(TopologyError::Missing { place: "topology.nodes".into() })?;
    Ok(Body { nodes, levels, links })
}

/// The kind of this name. Capital letters are small ones.
fn supported(kind: &str) -> Option<Kind> {
    match kind.to_ascii_lowercase().as_str() {
        "linux" => Some(Kind::Linux),
        "bridge" => Some(Kind::Bridge),
        _ => None,
    }
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

/// The kinds and groups that nodes have. Others are not checked: they may be for other kinds of
/// machines.
#[derive(Default)]
struct Used {
    kinds: BTreeSet<String>,
    groups: BTreeSet<String>,
}

impl Used {
    /// Refuses nodes of other kinds first: their keys have another meaning.
    fn of(body: &Value) -> Result<Self> {
        let text = |value: Option<&Value>, key| Some(value?.get(key)?.as_str()?.to_owned());
        let of = |level| (text(level, "kind"), text(level, "group"));
        let defaults = of(body.get("defaults"));
        let mut used = Self::default();
        let nodes = body.get("nodes").and_then(Value::as_mapping);
        for (name, own) in nodes.into_iter().flatten() {
            let own = of(Some(own));
            let (kind, group) = kind_and_group(
                own.clone(),
                defaults.clone(),
                |group| text(body.get("groups")?.get(group), "kind"),
                |kind| text(body.get("kinds")?.get(kind), "group"),
            );
            if kind.as_ref().is_some_and(|kind| supported(kind).is_none()) {
                let place = format!("topology.nodes.{}.kind", name.as_str().unwrap_or_default());
                return Err(unsupported(&place, KINDS));
            }
            used.kinds.extend(kind);
            // The kind may be that of a group which is not the node's.
            used.groups.extend([own.1, defaults.1.clone(), group].into_iter().flatten());
        }
        Ok(used)
    }
}

/// Settings by the names of nodes, kinds or groups, if they are used.
fn named(
    place: &str,
    value: &Value,
    directory: &Path,
    is_used: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Settings>> {
    entries(place, value)?
        .filter(|(name, _)| is_used(name))
        .map(|(name, value)| {
            Ok((name.to_owned(), settings(&format!("{place}.{name}"), value, directory)?))
        })
        .collect()
}

#[cfg(test)]
mod tests;
