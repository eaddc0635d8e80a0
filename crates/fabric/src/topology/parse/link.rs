//! Parses `links` in the brief and the extended form.

use serde_norway::Value;
use wire::MacAddr;

use super::value::{Result, entries, expected, mapping, sequence, string, unsupported};
use crate::topology::model::{Dummy, EndSettings, Endpoint, LINK_MTU, Link};

/// A link of the file.
pub(super) enum Parsed {
    Veth(Link),
    Dummy(Dummy),
}

pub(super) fn link(place: &str, value: &Value) -> Result<Parsed> {
    let mut ends = Vec::new();
    let mut is_dummy = false;
    let mut addresses: [Vec<String>; 2] = Default::default();
    let mut mtu = LINK_MTU;
    for (key, value) in entries(place, mapping(place, value)?)? {
        let place = format!("{place}.{key}");
        match key {
            "type" if string(&place, value)? == "veth" => {}
            "type" if string(&place, value)? == DUMMY => is_dummy = true,
            "type" => {
                let why = "only veth and dummy are; a link to this machine or to another has no namespace at its end";
                return Err(unsupported(&format!("{place}: {}", string(&place, value)?), why));
            }
            "endpoint" => ends.push(endpoint(&place, value)?),
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
            // One address for each end, in the order of the ends; an empty string for none.
            "ipv4" | "ipv6" => {
                let values = sequence(&place, value)?;
                if values.len() > 2 {
                    return Err(expected(&place, "an address for each endpoint"));
                }
                for (own, value) in addresses.iter_mut().zip(values) {
                    own.push(string(&place, value)?);
                }
            }
            "labels" => {}
            "vars" => {
                return Err(unsupported(
                    &place,
                    "there is no configuration engine; write what it would make",
                ));
            }
            _ => return Err(unsupported(&place, "")),
        }
    }
    // In the brief form, the other end is the word.
    let named = ends.len();
    ends.retain(|(end, _)| end.node != DUMMY);
    if is_dummy || ends.len() < named {
        return dummy(place, ends, addresses, mtu).map(Parsed::Dummy);
    }
    let two = |_| expected(&format!("{place}.endpoints"), "two endpoints");
    let [(a, mut of_a), (b, mut of_b)]: [(Endpoint, EndSettings); 2] =
        ends.try_into().map_err(two)?;
    for (settings, more) in [&mut of_a, &mut of_b].into_iter().zip(addresses) {
        settings.addresses.extend(more.into_iter().filter(|address| !address.is_empty()));
    }
    Ok(Parsed::Veth(Link { ends: [a, b], settings: [of_a, of_b], mtu }))
}

fn dummy(
    place: &str,
    ends: Vec<(Endpoint, EndSettings)>,
    [addresses, _]: [Vec<String>; 2],
    mtu: u32,
) -> Result<Dummy> {
    let one = |_| expected(&format!("{place}.endpoint"), "one endpoint");
    let [(end, mut settings)]: [(Endpoint, EndSettings); 1] = ends.try_into().map_err(one)?;
    settings.addresses.extend(addresses.into_iter().filter(|address| !address.is_empty()));
    Ok(Dummy { end, settings, mtu })
}

/// The type of a link with one end, and the word for the other end in the brief form.
const DUMMY: &str = "dummy";

/// A MAC address, as text.
fn mac(place: &str, value: &Value) -> Result<String> {
    let text = string(place, value)?;
    match text.parse::<MacAddr>() {
        Ok(_) => Ok(text),
        Err(_) => Err(expected(place, "a MAC address")),
    }
}

/// Parses an endpoint: `node:interface`, or a mapping.
fn endpoint(place: &str, value: &Value) -> Result<(Endpoint, EndSettings)> {
    let mut settings = EndSettings::default();
    let (mut node, mut interface) = (None, None);
    if let Value::String(text) = value {
        let halves = text.split_once(':').or((text == DUMMY).then_some((DUMMY, "")));
        let (first, second) = halves.ok_or_else(|| expected(place, "node:interface"))?;
        (node, interface) = (Some(first.to_owned()), Some(second.to_owned()));
    } else {
        for (key, value) in entries(place, mapping(place, value)?)? {
            let place = format!("{place}.{key}");
            match key {
                "node" => node = Some(string(&place, value)?),
                "interface" => interface = Some(string(&place, value)?),
                "mac" => settings.mac = Some(mac(&place, value)?),
                "ipv4" | "ipv6" => settings.addresses.push(string(&place, value)?),
                _ => return Err(unsupported(&place, "")),
            }
        }
    }
    let (node, interface) =
        node.zip(interface).ok_or_else(|| expected(place, "node and interface"))?;
    if matches!(node.as_str(), "host" | "mgmt-net" | "macvlan" | "vxlan" | "vxlan-stitch") {
        let why = "a link joins two nodes of the file; put a node where it would end";
        return Err(unsupported(&format!("{place}: {node}:{interface}"), why));
    }
    Ok((Endpoint { node, interface }, settings))
}
