//! The tables that vtepd forwards with and the kernel's, entry by entry, in the normal form of
//! `docs/reference/api.md`: a set of lines.
//!
//! - `fdb NETDEV MAC VTEP`: entries with a VTEP, without addresses that the bridge has on another
//!   port
//! - `flood NETDEV VTEP`: entries with a VTEP and the MAC address zero
//! - `route VTEP UPLINK GATEWAY WEIGHT`: the live next hops of the longest prefix, weights in
//!   lowest terms
//! - `host BRIDGE ADDRESS MAC`: bindings of MAC and IP addresses

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Entries in the normal form.
pub type Lines = BTreeSet<String>;

const FLOOD: &str = "00:00:00:00:00:00";

/// Lines that only one side has, with a prefix that names the side. Empty if both are equal.
#[must_use]
pub fn differences(vtepd: &Lines, kernel: &Lines) -> Vec<String> {
    let only = |sign: &str, one: &Lines, other: &Lines| {
        one.difference(other).map(|line| format!("{sign} {line}")).collect::<Vec<_>>()
    };
    [only("vtepd alone:", vtepd, kernel), only("vtepd lacks:", kernel, vtepd)].concat()
}

/// vtepd's entries for these VNIs. `ask` runs vtepctl with `-o json`.
pub fn of_vtepd(ask: impl Fn(&[&str]) -> Value, vnis: &[u32]) -> Lines {
    let rows =
        |answer: Value| answer.as_array().cloned().unwrap_or_else(|| panic!("no list: {answer}"));
    let mut lines = Lines::new();
    for vni in vnis.iter().map(u32::to_string) {
        for row in rows(ask(&["fdb", "--vni", &vni])) {
            lines.insert(format!(
                "fdb {} {} {}",
                text(&row["netdev"]),
                text(&row["mac"]),
                text(&row["vtep"])
            ));
        }
        for row in rows(ask(&["flood", "--vni", &vni])) {
            lines.insert(format!("flood {} {}", text(&row["netdev"]), text(&row["vtep"])));
        }
    }
    let named = vteps(&lines);
    for route in
        rows(ask(&["route"])).into_iter().filter(|route| named.contains(text(&route["vtep"])))
    {
        let hops = rows(route["next_hops"].clone());
        let hop = |hop: &Value| (pair(hop, "uplink", "gateway"), hop["weight"].as_u64().unwrap());
        add_route(&mut lines, text(&route["vtep"]), hops.iter().map(hop));
    }
    for row in rows(ask(&["neigh"])) {
        if row["kind"] == "host" && vnis.iter().any(|vni| row["vni"] == *vni) {
            let (interface, address, mac) = (&row["interface"], &row["address"], &row["mac"]);
            lines.insert(format!("host {} {} {}", text(interface), text(address), text(mac)));
        }
    }
    lines
}

/// The kernel's entries for these vxlan netdevs, each with its bridge. `run` runs a command in the
/// leaf and returns its output.
pub fn of_kernel(run: impl Fn(&str) -> String, netdevs: &[(&str, &str)]) -> Lines {
    let json = |command: &str| {
        let printed = run(command);
        // iproute2 prints nothing for an empty table.
        let printed = if printed.trim().is_empty() { "[]" } else { printed.as_str() };
        let rows: Vec<Value> = serde_json::from_str(printed)
            .unwrap_or_else(|error| panic!("{command}: {error}: {printed}"));
        rows
    };
    let mut lines = Lines::new();
    for (netdev, bridge) in netdevs {
        let of_bridge = json(&format!("bridge -j fdb show br {bridge}"));
        let local: BTreeSet<&str> = of_bridge
            .iter()
            .filter(|entry| entry["master"] == *bridge && entry["ifname"] != *netdev)
            .filter(|entry| entry["state"] != "permanent")
            .map(|entry| text(&entry["mac"]))
            .collect();
        for entry in json(&format!("bridge -j fdb show dev {netdev}")) {
            let (mac, vtep) = (text(&entry["mac"]), entry["dst"].as_str());
            match vtep {
                Some(vtep) if mac == FLOOD => lines.insert(format!("flood {netdev} {vtep}")),
                Some(vtep) if !local.contains(mac) => {
                    lines.insert(format!("fdb {netdev} {mac} {vtep}"))
                }
                _ => false,
            };
        }
        for entry in json(&format!("ip -j neigh show dev {bridge} nud all")) {
            let state = entry["state"].to_string();
            let address = text(&entry["dst"]);
            let multicast = address.parse::<std::net::IpAddr>().unwrap().is_multicast();
            if let Some(mac) = entry["lladdr"].as_str()
                && !multicast
                && !["FAILED", "INCOMPLETE", "NONE"].iter().any(|dead| state.contains(dead))
            {
                lines.insert(format!("host {bridge} {address} {mac}"));
            }
        }
    }
    for vtep in vteps(&lines) {
        add_route(
            &mut lines,
            &vtep,
            kernel_route(&json(&format!("ip -j route show match {vtep}/32")), &vtep),
        );
    }
    lines
}

/// Compares the number of addresses that the bypass uses with the kernel's tables. `netdevs` are
/// all vxlan netdevs that are taken over, each with its bridge. The kernel's side is the addresses
/// that these bridges have on ports with the bypass or behind these netdevs. Returns `None` if the
/// numbers are equal.
pub fn bypass_differences(
    ask: impl Fn(&[&str]) -> Value,
    run: impl Fn(&str) -> String,
    netdevs: &[(&str, &str)],
) -> Option<String> {
    let rows = |answer: Value| answer.as_array().cloned().unwrap_or_default();
    let json = |command: &str| rows(serde_json::from_str(&run(command)).unwrap_or_default());
    let ports: BTreeSet<String> = rows(ask(&["port"]))
        .iter()
        .filter(|port| port["bypass"] == true)
        .map(|port| format!("{} {}", text(&port["bridge"]), text(&port["port"])))
        .collect();
    let mut places = BTreeSet::new();
    for (netdev, bridge) in netdevs {
        let remote: BTreeSet<String> = json(&format!("bridge -j fdb show dev {netdev}"))
            .iter()
            .filter(|entry| entry["dst"].is_string())
            .map(|entry| text(&entry["mac"]).to_owned())
            .collect();
        let used = ports.iter().any(|port| port.starts_with(&format!("{bridge} ")));
        for entry in json(&format!("bridge -j fdb show br {bridge}")) {
            let (mac, on) = (text(&entry["mac"]), text(&entry["ifname"]));
            let place = match on == *netdev {
                true => used && remote.contains(mac),
                false => ports.contains(&format!("{bridge} {on}")),
            };
            if place && entry["master"] == *bridge && entry["state"] != "permanent" {
                places.insert(format!("{bridge} {on} {mac}"));
            }
        }
    }
    let known = ask(&["status"])["bypass"]["addresses"].clone();
    (known != places.len())
        .then(|| format!("the bypass goes by {known} addresses, not by {places:?}"))
}

/// The VTEPs of `fdb` and `flood` lines.
#[must_use]
pub fn vteps(lines: &Lines) -> BTreeSet<String> {
    let named = lines.iter().filter(|line| line.starts_with("fdb ") || line.starts_with("flood "));
    named.filter_map(|line| line.rsplit(' ').next()).map(str::to_owned).collect()
}

/// Replaces the route to a VTEP by these next hops: interface and gateway, and weight.
pub fn set_route(
    lines: &mut Lines,
    vtep: &str,
    hops: impl Iterator<Item = ((String, String), u64)>,
) {
    lines.retain(|line| !line.starts_with(&format!("route {vtep} ")));
    add_route(lines, vtep, hops);
}

fn add_route(lines: &mut Lines, vtep: &str, hops: impl Iterator<Item = ((String, String), u64)>) {
    let mut weights: BTreeMap<(String, String), u64> = BTreeMap::new();
    for (hop, weight) in hops {
        *weights.entry(hop).or_default() += weight;
    }
    let divisor = weights.values().copied().fold(0, greatest_common_divisor).max(1);
    for ((interface, gateway), weight) in weights {
        lines.insert(format!("route {vtep} {interface} {gateway} {}", weight / divisor));
    }
}

/// The live next hops of the longest prefix.
fn kernel_route(routes: &[Value], vtep: &str) -> std::vec::IntoIter<((String, String), u64)> {
    let length = |route: &Value| match text(&route["dst"]) {
        "default" => 0,
        prefix => prefix.split_once('/').map_or(32, |(_, length)| length.parse::<u32>().unwrap()),
    };
    let metric = |route: &Value| route["metric"].as_u64().unwrap_or(0);
    let best = routes.iter().min_by_key(|route| (std::cmp::Reverse(length(route)), metric(route)));
    let hops = best.map_or_else(Vec::new, |route| {
        route["nexthops"].as_array().cloned().unwrap_or_else(|| vec![route.clone()])
    });
    let dead = |hop: &Value| {
        let flags = hop["flags"].as_array().into_iter().flatten();
        flags.into_iter().any(|flag| flag == "dead" || flag == "linkdown")
    };
    let next_hop = |hop: &Value| {
        let gateway = hop["gateway"].as_str().or(hop["via"]["host"].as_str()).unwrap_or(vtep);
        ((text(&hop["dev"]).to_owned(), gateway.to_owned()), hop["weight"].as_u64().unwrap_or(1))
    };
    hops.iter().filter(|hop| !dead(hop)).map(next_hop).collect::<Vec<_>>().into_iter()
}

fn pair(row: &Value, first: &str, second: &str) -> (String, String) {
    (text(&row[first]).to_owned(), text(&row[second]).to_owned())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

const fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_and_its_live_next_hops_count_in_lowest_terms() {
        let routes = serde_json::json!([
            {"dst": "default", "gateway": "10.9.0.1", "dev": "mgmt", "flags": []},
            {"dst": "10.0.0.2", "metric": 20, "gateway": "10.9.0.2", "dev": "mgmt", "flags": []},
            {"dst": "10.0.0.2", "nexthops": [
                {"gateway": "10.1.1.0", "dev": "up1", "weight": 6, "flags": []},
                {"via": {"family": "inet6", "host": "fe80::1"}, "dev": "up2", "weight": 2, "flags": []},
                {"gateway": "10.1.3.0", "dev": "up3", "weight": 1, "flags": ["dead", "linkdown"]}
            ]}
        ]);
        let mut lines = Lines::new();
        add_route(&mut lines, "10.0.0.2", kernel_route(routes.as_array().unwrap(), "10.0.0.2"));
        let expected = ["route 10.0.0.2 up1 10.1.1.0 3", "route 10.0.0.2 up2 fe80::1 1"];
        assert_eq!(lines, expected.map(str::to_owned).into());
        set_route(&mut lines, "10.0.0.2", kernel_route(&[], "10.0.0.2"));
        assert!(lines.is_empty());
    }
}
