//! Compares zebra's replay to a new FPM client with zebra's own output.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fpm::{DEFAULT_ADDRESS, Event, Server};
use netlink::{Message, NextHopKind, Operation, RouteTarget};
use serde_json::Value;

use super::fixture::{ScaleAcross, TIMEOUT};

/// A replay has ended when zebra has been silent for this time.
const QUIET: Duration = Duration::from_secs(1);

/// Prefixes with the gateways of their next hops. Directly connected prefixes have none.
pub(super) type Routes = BTreeMap<String, BTreeSet<String>>;

/// Acts as the FPM server of zebra on a leaf and records the replay. Also returns whether it
/// contained next-hop objects.
pub(super) fn replayed(fabric: &ScaleAcross, leaf: &str) -> (Routes, bool) {
    let messages = fabric
        .namespace(leaf)
        .enter(|| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(listen())
        })
        .unwrap();
    let mut objects = BTreeMap::new();
    for message in &messages {
        if let Message::NextHop(Operation::New, object) = message {
            objects.insert(object.id, object.kind.clone());
        }
    }
    let mut routes = Routes::new();
    for message in &messages {
        let Message::Route(operation, route) = message else { continue };
        // `shown` covers IPv4 only.
        if route.destination.is_ipv6() {
            continue;
        }
        let prefix = format!("{}/{}", route.destination, route.prefix_length);
        if *operation == Operation::Delete {
            routes.remove(&prefix);
            continue;
        }
        let hops = match &route.via {
            RouteTarget::NextHops(hops) => hops.clone(),
            RouteTarget::Object(id) => members(&objects, *id),
        };
        let gateways = hops.iter().filter_map(|hop| hop.gateway).map(|gateway| gateway.to_string());
        routes.insert(prefix, gateways.collect());
    }
    (routes, !objects.is_empty())
}

fn members(objects: &BTreeMap<u32, NextHopKind>, id: u32) -> Vec<netlink::RouteNextHop> {
    match objects.get(&id) {
        Some(NextHopKind::Single(hop)) => vec![hop.clone()],
        Some(NextHopKind::Group(group)) => {
            group.iter().flat_map(|(member, _)| members(objects, *member)).collect()
        }
        other => panic!("next-hop object {id} is {other:?}"),
    }
}

async fn listen() -> Vec<Message> {
    let users = fpm::Users { anybody: true, ..fpm::Users::default() };
    let mut server = Server::bind(DEFAULT_ADDRESS, users).unwrap();
    let mut messages = Vec::new();
    loop {
        let limit = if messages.is_empty() { TIMEOUT } else { QUIET };
        match tokio::time::timeout(limit, server.next()).await {
            Ok(Event::Transaction(transaction)) => messages.extend(transaction.messages),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    assert!(!messages.is_empty(), "zebra has said nothing");
    messages
}

/// The routes of `show ip route` that zebra has selected and installed.
pub(super) fn shown(fabric: &ScaleAcross, leaf: &str) -> Routes {
    let text = fabric.node(leaf).run(&["vtysh", "-c", "show ip route json"]).unwrap();
    let all: BTreeMap<String, Vec<Value>> = serde_json::from_str(&text).unwrap();
    let mut routes = Routes::new();
    for (prefix, candidates) in all {
        let Some(route) = candidates.into_iter().find(|route| route["selected"] == true) else {
            continue;
        };
        let hops = route["nexthops"].as_array().cloned().unwrap_or_default();
        let gateways =
            hops.iter().filter(|hop| hop["fib"] == true).filter_map(|hop| hop["ip"].as_str());
        routes.insert(prefix, gateways.map(str::to_owned).collect());
    }
    routes
}
