//! Parses `links` in the brief and the extended form.

use serde_norway::Value;
use wire::MacAddr;

use super::value::{Result, entries, expected, mapping, sequence, string, unsupported};
use crate::topology::model::{EndSettings, Endpoint, LINK_MTU, Link};

pub(super) fn link(place: &str, value: &Value) -> Result<Link> {
    let mut ends = Vec::new();
    let mut addresses: [Vec<String>; 2] = Default::default();
    let mut mtu = LINK_MTU;
    for (key, value) in entries(place, mapping(place, value)?)? {
        let place = format!("{place}.{key}");
        match key {
            "type" if string(&place, value)? == "veth" => {}
            "type" => {
                let why = "only veth is; a link to this machine or to another has no namespace at its end";
                return Err(unsupported(&format!("{place}: {}", string(&place, value)?), why));
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
    let two = |_| expected(&format!("{place}.endpoints"), "two endpoints");
    let [(a, mut of_a), (b, mut of_b)]: [(Endpoint, EndSettings); 2] =
        ends.try_into().map_err(two)?;
    for (settings, more) in [&mut of_a, &mut of_b].into_iter().zip(addresses) {
        settings.addresses.extend(more.into_iter().filter(|address| !address.is_empty()));
    }
    Ok(Link { ends: [a, b], settings: [of_a, of_b], mtu })
}

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
        let (first, second) =
            text.split_once(':').ok_or_else(|| expected(place, "node:interface"))?;
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
    if matches!(node.as_str(), "host" | "mgmt-net" | "macvlan" | "dummy" | "vxlan" | "vxlan-stitch")
    {
        let why = "a link joins two nodes of the file; put a node where it would end";
        return Err(unsupported(&format!("{place}: {node}:{interface}"), why));
    }
    Ok((Endpoint { node, interface }, settings))
}
