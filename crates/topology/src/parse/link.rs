//! Parses `links` in the brief and the extended form.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use serde_norway::Value;
use wire::MacAddr;

use super::value::{Result, expected, fields, sequence, string, typed, unsupported};
use crate::TopologyError;
use crate::model::{EndSettings, Endpoint, FarEnd, HalfLink, LINK_MTU, Link, Tunnel};

/// The links of the file.
#[derive(Default)]
pub(super) struct Links {
    pub(super) whole: Vec<Link>,
    pub(super) half: Vec<HalfLink>,
    /// Whether one has addresses. As in ContainerLab, they have no effect on linux nodes.
    pub(super) addresses: bool,
    /// Whether one has variables for templates.
    pub(super) variables: bool,
}

/// The keys of a link.
#[derive(Default)]
struct Keys {
    kind: Option<String>,
    ends: Vec<(Endpoint, EndSettings)>,
    addresses: bool,
    variables: bool,
    mtu: Option<u32>,
    tunnel: TunnelKeys,
}

/// The keys of the links to other machines.
#[derive(Default)]
struct TunnelKeys {
    remote: Option<IpAddr>,
    vni: Option<u32>,
    port: Option<u16>,
    parent: Option<String>,
    /// The place of one of them.
    place: Option<String>,
}

impl Links {
    /// Parses a link. In the brief form, words stand for ends that are no nodes of this file.
    pub(super) fn add(&mut self, place: &str, value: &Value, nodes: &BTreeSet<&str>) -> Result<()> {
        let mut keys = Keys::default();
        for (key, value) in fields(place, value)? {
            keys.read(&format!("{place}.{key}"), key, value)?;
        }
        let Keys { kind, mut ends, addresses, variables, mtu, tunnel } = keys;
        self.addresses |= addresses;
        self.variables |= variables;
        // In the brief form, the other end is a word.
        let named = ends.len();
        retain_nodes(&mut ends, DUMMY, nodes);
        let kind = kind.unwrap_or_else(|| if ends.len() < named { DUMMY } else { VETH }.to_owned());
        if let Some(place) = tunnel.place.as_ref().filter(|_| !TUNNELS.contains(&kind.as_str())) {
            return Err(unsupported(place, "only links of type vxlan and vxlan-stitch have it"));
        }
        let to = match kind.as_str() {
            VETH => {
                self.whole.push(whole(place, ends, mtu, nodes)?);
                return Ok(());
            }
            DUMMY => FarEnd::Dummy,
            kind => {
                // netlab names the machine as the other end.
                retain_nodes(&mut ends, HOST, nodes);
                let tunnel = tunnel.tunnel(place)?;
                if kind == VXLAN { FarEnd::Vxlan(tunnel) } else { FarEnd::Stitched(tunnel) }
            }
        };
        let one = |_| expected(&format!("{place}.endpoint"), "one endpoint");
        let [(end, settings)]: [(Endpoint, EndSettings); 1] = ends.try_into().map_err(one)?;
        joins_nodes(place, &end, nodes)?;
        self.half.push(HalfLink { end, settings, mtu, to });
        Ok(())
    }
}

impl Keys {
    fn read(&mut self, place: &str, key: &str, value: &Value) -> Result<()> {
        match key {
            "type" => {
                let kind = string(place, value)?.trim().to_ascii_lowercase();
                // Its stitch passes all frames.
                let kind = if kind == "veth-stitch" { VETH.to_owned() } else { kind };
                if ![VETH, DUMMY].iter().chain(&TUNNELS).any(|known| *known == kind) {
                    let why = "only veth, dummy, vxlan and vxlan-stitch are; a link to this machine has no namespace at its end";
                    return Err(unsupported(&format!("{place}: {kind}"), why));
                }
                self.kind = Some(kind);
            }
            "endpoint" => self.endpoint(place, value)?,
            "endpoints" => {
                for value in sequence(place, value)? {
                    self.endpoint(place, value)?;
                }
            }
            "mtu" if value.as_str() == Some("0") => {}
            "mtu" => self.mtu = Some(number(place, value, 68..=65535, "68 to 65535")?),
            "ipv4" | "ipv6" => self.addresses = true,
            "labels" => {}
            "vars" => self.variables = true,
            _ => return self.tunnel.read(place, key, value),
        }
        Ok(())
    }

    /// Parses an endpoint: `node:interface`, or a mapping.
    fn endpoint(&mut self, place: &str, value: &Value) -> Result<()> {
        let mut settings = EndSettings::default();
        let (mut node, mut interface) = (None, None);
        if let Value::String(text) = value {
            let halves = text.split_once(':').or((text == DUMMY).then_some((DUMMY, "")));
            let (first, second) = halves.ok_or_else(|| expected(place, "node:interface"))?;
            (node, interface) = (Some(first.to_owned()), Some(second.to_owned()));
        } else {
            for (key, value) in fields(place, value)? {
                let place = format!("{place}.{key}");
                match key {
                    "node" => node = Some(string(&place, value)?),
                    "interface" => interface = Some(string(&place, value)?),
                    "mac" => settings.mac = Some(mac(&place, value)?),
                    "ipv4" | "ipv6" => self.addresses = true,
                    "vars" => self.variables = true,
                    _ => return Err(unsupported(&place, "")),
                }
            }
        }
        let (node, interface) =
            node.zip(interface).ok_or_else(|| expected(place, "node and interface"))?;
        let (interface, alternative) = of_kernel(&node, interface);
        settings.alternative = alternative;
        self.ends.push((Endpoint { node, interface }, settings));
        Ok(())
    }
}

impl TunnelKeys {
    fn read(&mut self, place: &str, key: &str, value: &Value) -> Result<()> {
        match key {
            "remote" => {
                let address = string(place, value)?.parse();
                self.remote = Some(address.map_err(|_| expected(place, "an IP address"))?);
            }
            "vni" => self.vni = Some(number(place, value, 1..=0x00ff_ffff, "1 to 16777215")?),
            // `dst-port` is written by editors of topologies.
            "udp-port" | "dst-port" => {
                self.port = Some(number(place, value, 1..=65535, "1 to 65535")?);
            }
            "parent-interface" => self.parent = Some(string(place, value)?),
            _ => return Err(unsupported(place, "")),
        }
        self.place = Some(place.to_owned());
        Ok(())
    }

    fn tunnel(self, place: &str) -> Result<Tunnel> {
        let missing = |key: &str| TopologyError::Missing { place: format!("{place}.{key}") };
        Ok(Tunnel {
            remote: self.remote.ok_or_else(|| missing("remote"))?,
            vni: self.vni.ok_or_else(|| missing("vni"))?,
            port: self.port.unwrap_or(Tunnel::PORT),
            parent: self.parent,
        })
    }
}

/// A link between two nodes.
fn whole(
    place: &str,
    ends: Vec<(Endpoint, EndSettings)>,
    mtu: Option<u32>,
    nodes: &BTreeSet<&str>,
) -> Result<Link> {
    let two = |_| expected(&format!("{place}.endpoints"), "two endpoints");
    let [(a, of_a), (b, of_b)]: [(Endpoint, EndSettings); 2] = ends.try_into().map_err(two)?;
    joins_nodes(place, &a, nodes)?;
    joins_nodes(place, &b, nodes)?;
    Ok(Link { ends: [a, b], settings: [of_a, of_b], mtu: mtu.unwrap_or(LINK_MTU) })
}

/// Removes the ends that are this word and no node.
fn retain_nodes(ends: &mut Vec<(Endpoint, EndSettings)>, word: &str, nodes: &BTreeSet<&str>) {
    ends.retain(|(end, _)| end.node != word || nodes.contains(word));
}

/// Refuses the words that ContainerLab has for ends which are no nodes.
fn joins_nodes(place: &str, end: &Endpoint, nodes: &BTreeSet<&str>) -> Result<()> {
    let words = [HOST, "mgmt-net", "macvlan", "vxlan", "vxlan-stitch"];
    if words.contains(&end.node.as_str()) && !nodes.contains(end.node.as_str()) {
        let why = "a link joins two nodes of the file; put a node where it would end";
        return Err(unsupported(&format!("{place}.endpoints: {end}"), why));
    }
    Ok(())
}

fn number<T: TryFrom<u64> + PartialOrd>(
    place: &str,
    value: &Value,
    range: RangeInclusive<T>,
    text: &'static str,
) -> Result<T> {
    let number = typed::<u64>(value).and_then(|number| T::try_from(number).ok());
    number.filter(|number| range.contains(number)).ok_or_else(|| expected(place, text))
}

/// The types of a link. `dummy` is also the word for the other end in the brief form.
const VETH: &str = "veth";
const DUMMY: &str = "dummy";
const VXLAN: &str = "vxlan";
const TUNNELS: [&str; 2] = [VXLAN, "vxlan-stitch"];
/// The word for this machine.
const HOST: &str = "host";

/// The longest interface name that the kernel accepts (`IFNAMSIZ` without the terminating zero).
pub(crate) const INTERFACE_NAME_MAX: usize = 15;
/// The longest alternative one (`ALTIFNAMSIZ`).
const ALTERNATIVE_NAME_MAX: usize = 127;

/// The name that the kernel has for an interface of a node. As in ContainerLab, one that is too long
/// or has `/` or a blank is an alternative name, with `-` in their place.
fn of_kernel(node: &str, interface: String) -> (String, Option<String>) {
    let is_plain = interface.len() <= INTERFACE_NAME_MAX && !interface.contains([' ', '/']);
    if is_plain || interface.len() > ALTERNATIVE_NAME_MAX {
        return (interface, None);
    }
    // FNV-1a, so that each run of lab has the same name.
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = node.bytes().chain([0]).chain(interface.bytes()).fold(0x811c_9dc5, mix);
    (format!("clab-{hash:08x}"), Some(interface.replace([' ', '/'], "-")))
}

/// A MAC address, as text: `02:00:00:00:00:01`, with `-`, or as `0200.0000.0001`.
fn mac(place: &str, value: &Value) -> Result<String> {
    let text = string(place, value)?.replace('-', ":");
    let groups: Vec<&str> = text.split('.').collect();
    let has_dots = groups.len() == 3 && groups.iter().all(|group| group.len() == 4);
    let text = match has_dots.then(|| groups.concat()).filter(|digits| digits.is_ascii()) {
        Some(digits) => {
            let pairs = digits.as_bytes().chunks(2).map(String::from_utf8_lossy);
            pairs.collect::<Vec<_>>().join(":")
        }
        None => text,
    };
    match text.parse::<MacAddr>() {
        Ok(_) => Ok(text),
        Err(_) => Err(expected(place, "a MAC address")),
    }
}
