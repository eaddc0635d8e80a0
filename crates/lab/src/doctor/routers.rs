//! The routers of a fabric that is up: how they choose among equal paths, and what leaves need.

use std::collections::BTreeSet;

use fabric::deployed::{Deployed, DeployedError};
use fabric::netns::{Namespace, NetnsError};
use fabric::process::command_line;

use super::Finding;

/// The bytes that a tunnel over IPv4 adds: outer Ethernet, IPv4, UDP and VXLAN headers.
const OVERHEAD: u32 = 50;
const HASH_POLICY: &str = "net/ipv4/fib_multipath_hash_policy";
const HASH_SEED: &str = "net/ipv4/fib_multipath_hash_seed";
const RP_FILTER: &str = "net/ipv4/conf/all/rp_filter";

/// What was read of a router.
#[derive(Debug, Clone, Default)]
pub(super) struct Router {
    node: String,
    /// The most interfaces that one of its routes has.
    paths: usize,
    /// `net.ipv4.fib_multipath_hash_policy`.
    hash_policy: u32,
    /// `net.ipv4.fib_multipath_hash_seed`; `None` where the kernel has none.
    hash_seed: Option<u32>,
    /// `net.ipv4.conf.all.rp_filter`.
    rp_filter: u32,
    /// Of a node with VXLAN netdevs.
    leaf: Option<Leaf>,
}

#[derive(Debug, Clone, Default)]
struct Leaf {
    /// The largest MTU of its VXLAN netdevs.
    inner: u32,
    /// The smallest MTU of its uplinks, and that uplink.
    uplink: Option<(u32, String)>,
    /// Whether its zebra has the module for FPM; `None` if no zebra runs.
    fpm: Option<bool>,
}

/// Reads all nodes that have a namespace of their own.
pub(super) fn read(deployed: &Deployed) -> Result<Vec<Router>, DeployedError> {
    let nodes = deployed.namespaces();
    let routers = nodes.map(|node| of(deployed.namespace(node)?, node));
    Ok(routers.collect::<Result<_, NetnsError>>()?)
}

fn of(namespace: Namespace, node: &str) -> Result<Router, NetnsError> {
    let links = namespace.rtnl(|rtnl| rtnl.links())?;
    let routes = namespace.rtnl(|rtnl| rtnl.routes())?;
    let [hash_policy, hash_seed, rp_filter] =
        namespace.enter(|| [HASH_POLICY, HASH_SEED, RP_FILTER].map(number))?;
    let several = routes.iter().map(fabric::rtnl::Route::interfaces);
    let several = several.filter(|interfaces| interfaces.len() > 1);
    let largest = several.max_by_key(Vec::len).unwrap_or_default();
    let tunnels = links.iter().filter(|link| link.vxlan.is_some());
    let leaf = match tunnels.map(|link| link.mtu).max() {
        Some(inner) => {
            // What routes from FRR use.
            let frr = routes.iter().filter(|route| route.is_from_frr());
            let used: BTreeSet<u32> = frr.flat_map(fabric::rtnl::Route::interfaces).collect();
            let uplinks = links.iter().filter(|link| used.contains(&link.index));
            let uplink = uplinks.map(|link| (link.mtu, link.name.clone())).min();
            Some(Leaf { inner, uplink, fpm: fpm(&namespace)? })
        }
        None => None,
    };
    Ok(Router {
        node: node.to_owned(),
        paths: largest.len(),
        hash_policy: hash_policy.unwrap_or_default(),
        hash_seed,
        rp_filter: rp_filter.unwrap_or_default(),
        leaf,
    })
}

/// A sysctl of the namespace that the thread is in.
fn number(path: &str) -> Option<u32> {
    std::fs::read_to_string(format!("/proc/sys/{path}")).ok()?.trim().parse().ok()
}

/// Whether the zebra of a namespace has the module for FPM; `None` if there is no zebra.
pub(crate) fn fpm(namespace: &Namespace) -> Result<Option<bool>, NetnsError> {
    let lines = namespace.pids()?.into_iter().filter_map(command_line);
    let zebra = lines.filter(|line| {
        let program = line.split_whitespace().next().unwrap_or_default();
        program.rsplit('/').next() == Some("zebra")
    });
    Ok(zebra.map(|line| line.contains("fpm")).reduce(|one, other| one || other))
}

/// What follows from it, with a line for the whole fabric where all routers are as they should be.
pub(super) fn judge(routers: &[Router]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = routers.iter().flat_map(paths).collect();
    findings.extend(seeds(routers));
    findings.extend(routers.iter().flat_map(leaf));
    if findings.is_empty() {
        let text = format!("IPv4 of {} nodes is as experiments need it", routers.len());
        findings.push(Finding::ok("fabric", "routers", text));
    }
    findings
}

fn paths(router: &Router) -> Vec<Finding> {
    let Router { node, paths, hash_policy, rp_filter, .. } = router;
    let mut findings = Vec::new();
    // 0 hashes addresses only (`fib_multipath_hash()` in net/ipv4/route.c); 1 the ports, too; 2
    // and 3 the inner headers of some tunnels, or chosen fields.
    if *paths > 1 && *hash_policy == 0 {
        findings.push(Finding::fault(
            node,
            "hash policy",
            "it hashes addresses only: all packets between two VTEPs take one path, whatever \
             source ports vtepd chooses",
            "sysctl -w net.ipv4.fib_multipath_hash_policy=1 on the node",
        ));
    }
    if *paths > 1 && *rp_filter == 1 {
        findings.push(Finding::limit(
            node,
            "rp_filter",
            "strict: packets that come by another link than the route back are dropped while \
             routes change",
            "sysctl -w net.ipv4.conf.all.rp_filter=2 on the node",
        ));
    }
    findings
}

/// Routers one behind the other with one seed make the same choice, whatever ports they hash.
fn seeds(routers: &[Router]) -> Option<Finding> {
    let several = routers.iter().filter(|router| router.paths > 1 && router.hash_policy > 0);
    let seeds: Vec<u32> = several.filter_map(|router| router.hash_seed).collect();
    let different: BTreeSet<u32> = seeds.iter().copied().collect();
    (seeds.len() > 1 && different.len() < seeds.len()).then(|| {
        let text = format!(
            "{} routers with several paths have {} different seeds: where one follows the other, \
             it repeats its choice, and some paths stay unused",
            seeds.len(),
            different.len()
        );
        let remedy = "sysctl -w net.ipv4.fib_multipath_hash_seed=NUMBER, another on each router";
        Finding::limit("fabric", "hash seeds", text, remedy)
    })
}

fn leaf(router: &Router) -> Vec<Finding> {
    let (Router { node, paths, .. }, Some(leaf)) = (router, &router.leaf) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    if *paths < 2 {
        findings.push(Finding::limit(
            node,
            "uplinks",
            "no route has several: all policies of vtepd send packets by the same one",
            "more uplinks, or 'maximum-paths' in FRR's configuration",
        ));
    }
    if let Some((uplink, name)) = &leaf.uplink
        && *uplink < leaf.inner + OVERHEAD
    {
        let text = format!(
            "{name} has {uplink} bytes and VXLAN netdevs {}: hosts' packets above {} bytes are lost \
             or fragmented",
            leaf.inner,
            uplink.saturating_sub(OVERHEAD)
        );
        let remedy = format!("ip link set {name} mtu {} at both ends", leaf.inner + OVERHEAD);
        findings.push(Finding::fault(node, "MTU", text, &remedy));
    }
    if leaf.fpm == Some(false) {
        findings.push(Finding::fault(
            node,
            "FPM",
            "zebra runs without the module: vtepd learns no routes from it",
            "'-M dplane_fpm_nl' in zebra_options of /etc/frr/daemons, and a restart of FRR",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    /// A change, and the check and the state of what is found then.
    type Case = (fn(&mut Router), &'static str, State);

    fn good(node: &str, seed: u32) -> Router {
        Router {
            node: node.to_owned(),
            paths: 4,
            hash_policy: 1,
            hash_seed: Some(seed),
            rp_filter: 0,
            leaf: Some(Leaf { inner: 1500, uplink: Some((1550, "up1".into())), fpm: Some(true) }),
        }
    }

    #[test]
    fn each_lack_is_found_alone() {
        let all = judge(&[good("leaf1", 1), good("leaf2", 2)]);
        assert_eq!(
            all,
            [Finding::ok("fabric", "routers", "IPv4 of 2 nodes is as experiments need it")]
        );
        let cases: [Case; 6] = [
            (|router| router.hash_policy = 0, "hash policy", State::Fault),
            (|router| router.rp_filter = 1, "rp_filter", State::Limit),
            (|router| router.hash_seed = Some(1), "hash seeds", State::Limit),
            (|router| router.paths = 1, "uplinks", State::Limit),
            (|router| router.leaf.as_mut().unwrap().inner = 1501, "MTU", State::Fault),
            (|router| router.leaf.as_mut().unwrap().fpm = Some(false), "FPM", State::Fault),
        ];
        for (change, check, state) in cases {
            let mut other = good("leaf2", 2);
            change(&mut other);
            let all = judge(&[good("leaf1", 1), other]);
            let found: Vec<_> = all.iter().map(|finding| (finding.check, finding.state)).collect();
            assert_eq!(found, [(check, state)]);
            assert!(!all[0].remedy.is_empty());
        }
    }

    /// Of the policies that hash ports, the fabrics of `lab` have 3.
    #[test]
    fn one_seed_counts_with_each_policy() {
        for hash_policy in 1..=3 {
            let same = ["leaf1", "leaf2"].map(|node| Router { hash_policy, ..good(node, 1) });
            let all = judge(&same);
            assert!(matches!(all.as_slice(), [one] if one.check == "hash seeds"), "{all:?}");
        }
    }

    #[test]
    fn a_router_with_one_path_and_no_tunnel_needs_nothing() {
        let spine = Router { node: "spine1".into(), paths: 1, rp_filter: 1, ..Router::default() };
        assert_eq!(judge(&[spine])[0].state, State::Ok);
    }
}
