//! YAML into a [`Topology`]: each key is understood, known to be harmless here, or refused with its place.

use std::collections::BTreeMap;
use std::path::Path;

use serde_norway::{Mapping, Value};

use crate::topology::{Bind, Endpoint, LINK_MTU, Link, Node, Topology, TopologyError};

/// Keys of a node that describe its container and change nothing that a namespace has.
const HARMLESS: [&str; 14] = [
    "image",
    "image-pull-policy",
    "restart-policy",
    "auto-remove",
    "labels",
    "hostname",
    "mgmt-ipv4",
    "mgmt-ipv6",
    "privileged",
    "cap-add",
    "security-opts",
    "cgroupns-mode",
    "cgroup-parent",
    "shm-size",
];

type Result<T> = core::result::Result<T, TopologyError>;

/// A node's settings at one level: of the file's defaults, its kind, its group, or its own.
#[derive(Debug, Clone, Default)]
struct Settings {
    kind: Option<String>,
    /// Whether the image is to run something else.
    cmd: bool,
    node: Node,
}

pub(crate) fn topology(file: &Value, directory: &Path) -> Result<Topology> {
    let file = mapping("the file", file)?;
    let mut name = None;
    let mut body = None;
    for (key, value) in entries("the file", file)? {
        match key {
            "name" => name = Some(string("name", value)?),
            "topology" => body = Some(value),
            // Where containers, their management network and their names go; there are none here.
            "prefix" | "mgmt" | "debug" => {}
            _ => return Err(unsupported(key, "")),
        }
    }
    let name = name.ok_or(TopologyError::Missing { place: "name".into() })?;
    let body = body.ok_or(TopologyError::Missing { place: "topology".into() })?;

    let mut nodes = None;
    let mut links = Vec::new();
    let mut defaults = Settings::default();
    let mut kinds = BTreeMap::new();
    let mut groups = BTreeMap::new();
    for (key, value) in entries("topology", mapping("topology", body)?)? {
        let place = format!("topology.{key}");
        match key {
            "nodes" => nodes = Some(levels(&place, value, directory)?),
            "defaults" => defaults = settings(&place, value, directory)?,
            "kinds" => kinds = levels(&place, value, directory)?,
            "groups" => groups = levels(&place, value, directory)?,
            "links" => {
                for (index, value) in sequence(&place, value)?.iter().enumerate() {
                    links.push(link(&format!("{place}[{index}]"), value)?);
                }
            }
            _ => return Err(unsupported(&place, "")),
        }
    }
    let nodes = nodes.ok_or(TopologyError::Missing { place: "topology.nodes".into() })?;
    let nodes = nodes
        .into_iter()
        .map(|(name, own)| {
            let node = inherit(&name, own, &defaults, &kinds, &groups)?;
            Ok((name, node))
        })
        .collect::<Result<_>>()?;
    Ok(Topology { name, nodes, links })
}

fn levels(place: &str, value: &Value, directory: &Path) -> Result<BTreeMap<String, Settings>> {
    entries(place, mapping(place, value)?)?
        .map(|(name, value)| Ok((name.to_owned(), settings(&format!("{place}.{name}"), value, directory)?)))
        .collect()
}

fn settings(place: &str, value: &Value, directory: &Path) -> Result<Settings> {
    let mut settings = Settings::default();
    if value.is_null() {
        return Ok(settings);
    }
    let node = &mut settings.node;
    for (key, value) in entries(place, mapping(place, value)?)? {
        let place = format!("{place}.{key}");
        match key {
            "kind" => settings.kind = Some(string(&place, value)?),
            "group" => node.group = Some(string(&place, value)?),
            "network-mode" => node.shares = network_mode(&place, &string(&place, value)?)?,
            "cmd" => settings.cmd = !string(&place, value)?.is_empty(),
            "env" => node.env = strings(&place, value)?,
            "sysctls" => {
                node.sysctls = strings(&place, value)?;
                if let Some(name) = node.sysctls.keys().find(|name| !name.starts_with("net.")) {
                    return Err(unsupported(
                        &format!("{place}.{name}"),
                        "it is the machine's, not a namespace's",
                    ));
                }
            }
            "exec" => {
                for value in sequence(&place, value)? {
                    let words = shlex::split(&string(&place, value)?).filter(|words| !words.is_empty());
                    node.exec.push(words.ok_or_else(|| expected(&place, "a command with closed quotes"))?);
                }
            }
            "binds" => {
                for value in sequence(&place, value)? {
                    node.binds.push(bind(&place, &string(&place, value)?, directory)?);
                }
            }
            key if HARMLESS.contains(&key) => {}
            _ => return Err(unsupported(&place, "")),
        }
    }
    Ok(settings)
}

/// A node's own settings over its group's, its kind's and the defaults: lists are joined, single values replaced.
fn inherit(
    name: &str,
    own: Settings,
    defaults: &Settings,
    kinds: &BTreeMap<String, Settings>,
    groups: &BTreeMap<String, Settings>,
) -> Result<Node> {
    let group_name = own.node.group.clone().or(defaults.node.group.clone());
    let group = group_name.as_ref().and_then(|name| groups.get(name));
    let kind_name = own
        .kind
        .clone()
        .or_else(|| group.and_then(|group| group.kind.clone()))
        .or_else(|| defaults.kind.clone());
    let place = format!("topology.nodes.{name}.kind");
    match kind_name.as_deref() {
        Some("linux") => {}
        Some(_) => return Err(unsupported(&place, "only linux nodes can be namespaces")),
        None => return Err(TopologyError::Missing { place }),
    }

    let mut node = Node::default();
    for level in [Some(defaults), kinds.get("linux"), group, Some(&own)].into_iter().flatten() {
        let level = level.node.clone();
        node.shares = level.shares.or(node.shares);
        node.exec.extend(level.exec);
        node.env.extend(level.env);
        node.sysctls.extend(level.sysctls);
        node.binds.retain(|bind| level.binds.iter().all(|newer| newer.target != bind.target));
        node.binds.extend(level.binds);
    }
    // Nothing is started for a node that shares another's namespace.
    let cmd =
        [Some(defaults), kinds.get("linux"), group, Some(&own)].into_iter().flatten().any(|level| level.cmd);
    if cmd && node.shares.is_none() {
        return Err(unsupported(&format!("topology.nodes.{name}.cmd"), ""));
    }
    node.group = group_name;
    Ok(node)
}

fn network_mode(place: &str, mode: &str) -> Result<Option<String>> {
    match mode.split_once(':') {
        None if mode == "none" || mode == "bridge" => Ok(None),
        Some(("container", node)) if !node.is_empty() => Ok(Some(node.to_owned())),
        _ => Err(unsupported(place, "none and container:NODE are")),
    }
}

fn bind(place: &str, text: &str, directory: &Path) -> Result<Bind> {
    let mut parts = text.split(':');
    let (Some(source), Some(target), options, None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(expected(place, "source:target[:ro]"));
    };
    let read_only = match options {
        None | Some("rw") => false,
        Some("ro") => true,
        Some(_) => return Err(expected(place, "source:target[:ro]")),
    };
    if !target.starts_with('/') {
        return Err(expected(place, "an absolute path behind the colon"));
    }
    if source.contains("__clab") {
        return Err(unsupported(&format!("{place}: {text}"), "there is no directory of the deployed lab"));
    }
    Ok(Bind { source: directory.join(source), target: target.into(), read_only })
}

fn link(place: &str, value: &Value) -> Result<Link> {
    let mut ends = Vec::new();
    let mut mtu = LINK_MTU;
    for (key, value) in entries(place, mapping(place, value)?)? {
        let place = format!("{place}.{key}");
        match key {
            "type" if string(&place, value)? == "veth" => {}
            "type" => {
                return Err(unsupported(&format!("{place}: {}", string(&place, value)?), "only veth is"));
            }
            "endpoints" => {
                for value in sequence(&place, value)? {
                    ends.push(endpoint(&place, value)?);
                }
            }
            "mtu" => {
                mtu = value
                    .as_u64()
                    .and_then(|mtu| u32::try_from(mtu).ok())
                    .filter(|mtu| (68..=65535).contains(mtu))
                    .ok_or_else(|| expected(&place, "68 to 65535"))?;
            }
            "labels" => {}
            _ => return Err(unsupported(&place, "")),
        }
    }
    let ends = ends.try_into().map_err(|_| expected(&format!("{place}.endpoints"), "two endpoints"))?;
    Ok(Link { ends, mtu })
}

/// `node:interface`, or a mapping of the two.
fn endpoint(place: &str, value: &Value) -> Result<Endpoint> {
    if let Value::String(text) = value {
        let (node, interface) = text.split_once(':').ok_or_else(|| expected(place, "node:interface"))?;
        return Ok(Endpoint { node: node.to_owned(), interface: interface.to_owned() });
    }
    let (mut node, mut interface) = (None, None);
    for (key, value) in entries(place, mapping(place, value)?)? {
        let place = format!("{place}.{key}");
        match key {
            "node" => node = Some(string(&place, value)?),
            "interface" => interface = Some(string(&place, value)?),
            _ => return Err(unsupported(&place, "")),
        }
    }
    match (node, interface) {
        (Some(node), Some(interface)) => Ok(Endpoint { node, interface }),
        _ => Err(expected(place, "node and interface")),
    }
}

fn unsupported(place: &str, why: &'static str) -> TopologyError {
    TopologyError::Unsupported { place: place.to_owned(), why }
}

fn expected(place: &str, expected: &'static str) -> TopologyError {
    TopologyError::Expected { place: place.to_owned(), expected }
}

fn mapping<'a>(place: &str, value: &'a Value) -> Result<&'a Mapping> {
    value.as_mapping().ok_or_else(|| expected(place, "a mapping"))
}

fn sequence<'a>(place: &str, value: &'a Value) -> Result<&'a [Value]> {
    value.as_sequence().map(Vec::as_slice).ok_or_else(|| expected(place, "a list"))
}

fn entries<'a>(
    place: &str,
    mapping: &'a Mapping,
) -> Result<impl Iterator<Item = (&'a str, &'a Value)> + use<'a>> {
    if mapping.keys().any(|key| !key.is_string()) {
        return Err(expected(place, "keys that are text"));
    }
    Ok(mapping.iter().filter_map(|(key, value)| Some((key.as_str()?, value))))
}

/// Text, or a number or truth value that stands for text.
fn string(place: &str, value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(truth) => Ok(truth.to_string()),
        _ => Err(expected(place, "text")),
    }
}

fn strings(place: &str, value: &Value) -> Result<BTreeMap<String, String>> {
    entries(place, mapping(place, value)?)?
        .map(|(key, value)| Ok((key.to_owned(), string(&format!("{place}.{key}"), value)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> core::result::Result<Topology, String> {
        Topology::parse(text, Path::new("/labs"), |_| None).map_err(|error| error.to_string())
    }

    fn node(settings: &str) -> core::result::Result<Topology, String> {
        parsed(&format!("name: x\ntopology:\n  nodes:\n    r1:\n      kind: linux\n      {settings}\n"))
    }

    #[test]
    fn levels_join_lists_and_replace_single_values() {
        let text = "
name: x
prefix: ''
topology:
  defaults: {kind: linux, image: a, env: {A: 1, B: 1}}
  kinds: {linux: {exec: [first]}}
  groups:
    router: {sysctls: {net.ipv4.ip_forward: 1}, binds: ['all:/etc/frr/daemons', 'v:/etc/frr/vtysh.conf']}
  nodes:
    r1: {group: router, env: {B: 2}, exec: ['sh -c \"echo a b\"'], binds: ['own:/etc/frr/daemons:ro']}
    h1:
    s1: {network-mode: 'container:r1'}
  links:
    - endpoints: ['r1:up1', 'h1:eth1']
    - {type: veth, mtu: 1500, endpoints: [{node: r1, interface: up2}, {node: h1, interface: eth2}]}
";
        let topology = parsed(text).unwrap();
        let r1 = &topology.nodes["r1"];
        assert_eq!(r1.exec, [vec!["first"], vec!["sh", "-c", "echo a b"]]);
        assert_eq!((r1.env["A"].as_str(), r1.env["B"].as_str()), ("1", "2"));
        assert_eq!(r1.sysctls["net.ipv4.ip_forward"], "1");
        let bind = |source: &str, target: &str, read_only| Bind {
            source: Path::new("/labs").join(source),
            target: target.into(),
            read_only,
        };
        assert_eq!(
            r1.binds,
            [bind("v", "/etc/frr/vtysh.conf", false), bind("own", "/etc/frr/daemons", true)]
        );
        assert_eq!(
            topology.nodes["h1"],
            Node {
                exec: vec![vec!["first".into()]],
                env: [("A", "1"), ("B", "1")].map(|(a, b)| (a.into(), b.into())).into(),
                ..Node::default()
            }
        );
        assert_eq!(topology.nodes["s1"].shares.as_deref(), Some("r1"));
        assert_eq!(topology.links.iter().map(|link| link.mtu).collect::<Vec<_>>(), [LINK_MTU, 1500]);
        let up2 = Endpoint { node: "r1".into(), interface: "up2".into() };
        assert_eq!(topology.peer(&up2).unwrap().to_string(), "h1:eth2");
    }

    #[test]
    fn what_namespaces_cannot_do_is_refused_by_name() {
        for (settings, named) in [
            ("startup-config: a.cfg", "topology.nodes.r1.startup-config: not supported"),
            ("cmd: sleep", "topology.nodes.r1.cmd: not supported"),
            ("ports: ['80:80']", "topology.nodes.r1.ports: not supported"),
            ("stages: {}", "topology.nodes.r1.stages: not supported"),
            ("nonsense: 1", "topology.nodes.r1.nonsense: not supported"),
            ("sysctls: {vm.swappiness: 1}", "topology.nodes.r1.sysctls.vm.swappiness: not supported"),
            ("network-mode: host", "topology.nodes.r1.network-mode: not supported"),
            ("network-mode: container:r9", "topology.nodes.r1.network-mode: no node 'r9'"),
            ("binds: ['/a']", "topology.nodes.r1.binds: expected source:target"),
            (
                "binds: ['__clabNodeDir__/a:/b']",
                "topology.nodes.r1.binds: __clabNodeDir__/a:/b: not supported",
            ),
            ("exec: ['echo \"']", "topology.nodes.r1.exec: expected a command with closed quotes"),
            ("exec: echo", "topology.nodes.r1.exec: expected a list"),
        ] {
            let error = node(settings).unwrap_err();
            assert!(error.starts_with(named), "{settings}: {error}");
        }
        let srl = parsed("{name: x, topology: {nodes: {r1: {kind: nokia_srlinux}}}}").unwrap_err();
        assert!(srl.starts_with("topology.nodes.r1.kind: not supported"), "{srl}");
        assert_eq!(
            parsed("{name: x, topology: {nodes: {r1: }}}").unwrap_err(),
            "topology.nodes.r1.kind: missing"
        );
        assert!(
            parsed("{name: x, settings: {}, topology: {nodes: {}}}").unwrap_err().starts_with("settings:")
        );
        assert_eq!(parsed("{topology: {nodes: {}}}").unwrap_err(), "name: missing");
    }

    #[test]
    fn links_that_lead_nowhere_are_refused() {
        for (link, named) in [
            ("endpoints: ['r1:a']", "topology.links[0].endpoints: expected two endpoints"),
            ("endpoints: ['r1:a', 'host:b']", "topology.links[0]: no node 'host'"),
            ("endpoints: ['r1:a', 'r1:a']", "topology.links[0]: interface 'r1:a' is used twice"),
            ("endpoints: ['r1:a', 'r1:sixteencharacter']", "topology.links[0]: expected an interface name"),
            ("type: mgmt-net", "topology.links[0].type: mgmt-net: not supported"),
            ("mtu: 9", "topology.links[0].mtu: expected 68 to 65535"),
            ("vars: {}", "topology.links[0].vars: not supported"),
        ] {
            let text =
                format!("{{name: x, topology: {{nodes: {{r1: {{kind: linux}}}}, links: [{{{link}}}]}}}}");
            let error = parsed(&text).unwrap_err();
            assert!(error.starts_with(named), "{link}: {error}");
        }
    }
}
