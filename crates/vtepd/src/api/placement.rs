//! Explains where `qp-pin` has placed a queue pair, or where it will.

use api::v1;
use path::{Fate, Key, PathId, Policy};
use pathmap::placer::{Beyond, Flow, FlowId, Target};
use pipeline::explain::{CopyFate, Route};

use super::pinned::{self, LoadedPath, Names};
use crate::pinning::{Probed, Shared, SprayedTo};

const NEW_BY_KERNEL: &str = "it is not placed yet; kernel VXLAN sends its first frame from the port of qp-hash, and \
                             others, after a pause, by the path that adds least load to the links";
const NOT_TOLD: &str = "no known path is one by which the kernel sends; it does not tell with \
                        net.ipv4.fib_multipath_hash_policy 3 and net.ipv4.conf.lo.forwarding 0";
const NEW: &str = "it is not placed yet; its first frame gets the path that adds least load to the \
                   links, or that of the other direction of its connection";

/// Where the queue pair of a copy is placed. `None` if it is no queue pair, its policy is not
/// `qp-pin`, or the copy is dropped.
pub(super) fn placement(
    shared: Option<&Shared>,
    names: &Names,
    vni: u32,
    copy: &CopyFate,
) -> Option<v1::Placement> {
    let path::Explanation { policy, key, .. } = copy.entropy;
    let route = copy.route.as_ref().ok()?;
    let flow = FlowId { vni, key, target: target(route) };
    placement_of(shared, names, policy, flow, Some(route.source_port))
}

/// The path of a queue pair that kernel VXLAN sends.
pub(super) fn placement_by_kernel(
    shared: &Shared,
    names: &Names,
    flow: FlowId,
) -> Option<v1::Placement> {
    placement_of(Some(shared), names, Policy::QpPin, flow, None)
}

/// Where a queue pair is placed. If `port` is set, its frames leave by it.
fn placement_of(
    shared: Option<&Shared>,
    names: &Names,
    policy: Policy,
    flow: FlowId,
    port: Option<u16>,
) -> Option<v1::Placement> {
    let (key, is_by_kernel) = (flow.key, flow.target.by_kernel);
    if !policy.places_queue_pairs() || !matches!(key, Key::QueuePair { .. }) {
        return None;
    }
    let decided = if key.is_management() {
        Err("management queue pairs are not placed")
    } else {
        shared.ok_or("paths are not probed").and_then(|shared| Known::of(shared, flow))
    };
    let of = |state: &str, reason: &str, paths| {
        Some(v1::Placement { state: state.to_owned(), reason: reason.to_owned(), paths })
    };
    if policy == Policy::Spray
        && let Some(sprayed) = shared.and_then(|shared| sprayed(shared, names, &flow))
    {
        return Some(sprayed);
    }
    let known = match decided {
        Ok(known) => known,
        Err(reason) => return of("hashed", reason, Vec::new()),
    };
    let paths = |paths: &mut dyn Iterator<Item = PathId>| -> Vec<v1::Path> {
        paths.map(|path| known.path(names, path)).collect()
    };
    match &known.flow {
        Some(flow)
            if port.is_none_or(|port| port == flow.path.source_port) && names.has(flow.path) =>
        {
            let state = pinned::state(flow);
            let reason = match state {
                "hashed" => "no path was known when it was placed",
                "moving" => "it moves after the next pause in its traffic",
                _ => "a known path was chosen for it",
            };
            of(state, reason, paths(&mut [flow.path].into_iter().chain(flow.wanted)))
        }
        Some(_) => of("hashed", "the path where it was placed is not usable now", Vec::new()),
        None => {
            let first = |(view, _): &LoadedPath| view.paths.first().copied();
            let reason = if is_by_kernel { NEW_BY_KERNEL } else { NEW };
            of("new", reason, paths(&mut known.paths.iter().filter_map(first)))
        }
    }
}

/// The paths over which the sends and writes of a queue pair are sprayed, if they are.
fn sprayed(shared: &Shared, names: &Names, flow: &FlowId) -> Option<v1::Placement> {
    let probed = shared.probed().into_iter().find(|probed| probed.target == flow.target)?;
    let SprayedTo { vnis, paths, .. } = probed.sprayed;
    let path = |(path, ..): &(PathId, u64, Fate)| v1::Path {
        uplink: names.of_path(*path),
        source_ports: vec![path.source_port.into()],
        ..v1::Path::default()
    };
    vnis.contains(&flow.vni).then(|| v1::Placement {
        state: pinned::SPRAYED.to_owned(),
        reason: "packets of its sends and writes take these paths in turns, and others one path"
            .to_owned(),
        paths: paths.iter().map(path).collect(),
    })
}

const fn target(route: &Route) -> Target {
    Target {
        local: route.local,
        address: route.remote,
        port: route.destination_port,
        by_kernel: false,
    }
}

/// What is known of a queue pair, and of the paths to its VTEP.
struct Known {
    paths: Vec<LoadedPath>,
    /// The fewest and the most routers on the paths.
    routers: (u8, u8),
    /// `None` if it is not placed yet, and can be placed on one of the paths.
    flow: Option<Flow>,
}

impl Known {
    /// Fails with the reason if `qp-hash` would place it.
    fn of(shared: &Shared, id: FlowId) -> Result<Self, &'static str> {
        let (paths, flow, beyond) = shared.read(|placer| {
            let flow = placer.flow(&id).cloned();
            (pinned::loaded_paths(placer, id.target), flow, placer.beyond(&id))
        });
        let probed = shared.probed().into_iter().find(|probed| probed.target == id.target.vtep());
        if let Some(beyond) = beyond.filter(|_| flow.is_none()) {
            return Err(match beyond {
                Beyond::Host | Beyond::HostRate => "its host has its share of the queue pairs",
                Beyond::Vni | Beyond::VniRate => "its VNI has its share of the queue pairs",
                Beyond::Table => "the table of queue pairs is full",
            });
        }
        if flow.is_none() && paths.is_empty() {
            let of_others = id.target.by_kernel && probed.as_ref().is_some_and(|p| p.known > 0);
            return Err(if of_others { NOT_TOLD } else { unknown(probed.as_ref()) });
        }
        // Without them, numbers that differ.
        let routers = probed.map_or((0, u8::MAX), |probed| probed.routers);
        Ok(Self { paths, routers, flow })
    }

    /// A path, with its port only. If its route is not known, only its uplink is.
    fn path(&self, names: &Names, id: PathId) -> v1::Path {
        let known = self.paths.iter().find(|(view, _)| view.paths.contains(&id));
        let path = known.map(|known| pinned::path(names, known, self.routers)).unwrap_or_default();
        v1::Path { uplink: names.of_path(id), source_ports: vec![id.source_port.into()], ..path }
    }
}

/// Why no path to a VTEP is known.
fn unknown(probed: Option<&Probed>) -> &'static str {
    match probed {
        None => "the VTEP is not probed",
        Some(Probed { ready: false, traced: true, .. }) => "its paths are still being traced",
        Some(Probed { ready: false, .. }) => "its paths are still being probed",
        Some(_) => "no path to the VTEP is known: it answers no probes, or all paths are dead",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use path::{Decision, Reason, SourcePortRange};
    use pathmap::load::Link;
    use pathmap::placer::{Found, Options, Reading};
    use pathmap::way::Way;
    use wire::MacAddr;

    use super::*;

    const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const VTEP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const TARGET: Target = Target {
        local: IpAddr::V4(LOCAL),
        address: IpAddr::V4(VTEP),
        port: 4789,
        by_kernel: false,
    };
    const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 2, 1, 0);
    const KNOWN: PathId = PathId { hop: 1, source_port: 50_001 };
    const BLIND: PathId = PathId { hop: 2, source_port: 50_002 };

    fn id(queue_pair: u32) -> FlowId {
        let [source, destination] = [1, 2].map(|host| Ipv4Addr::new(192, 168, 10, host).into());
        let queue_pair = queue_pair.try_into().unwrap();
        FlowId { vni: 10, key: Key::QueuePair { source, destination, queue_pair }, target: TARGET }
    }

    /// A copy for a queue pair that leaves by a port.
    fn copy(queue_pair: u32, source_port: u16) -> CopyFate {
        let decision = Decision { source_port, hash: 5, bin: None };
        let range = SourcePortRange::DEFAULT;
        let route = Route {
            local: LOCAL.into(),
            remote: VTEP.into(),
            source_port,
            destination_port: TARGET.port,
            tos: 0,
            ttl: 64,
            flow_label: None,
            dont_fragment: true,
            length: 200,
            hash: 5,
            choices: 2,
            bucket: None,
            weights: (1, 2),
            uplink: 7,
            gateway: ROUTER.into(),
            source_mac: MacAddr::default(),
            destination_mac: None,
            by_default: false,
        };
        let (policy, reason, key) = (Policy::QpPin, Reason::Roce, id(queue_pair).key);
        CopyFate {
            segment: 0,
            remote: Some(VTEP.into()),
            entropy: path::Explanation { policy, key, reason, range, decision },
            route: Ok(route),
        }
    }

    fn names() -> Names {
        Names::from([(1, "up1".to_owned()), (2, "up2".to_owned())])
    }

    fn of(shared: &Shared, copy: &CopyFate) -> v1::Placement {
        placement(Some(shared), &names(), 10, copy).unwrap()
    }

    fn place(shared: &Shared, queue_pair: u32, hashed: PathId) -> PathId {
        let nothing = |_| Reading::default();
        let now = shared.now();
        let placed =
            shared.change(|placer| placer.place(id(queue_pair), 50_000, hashed, nothing, now));
        placed.unwrap().path
    }

    /// One path with its router, and one of which only both uplinks are known.
    fn probed(shared: &Shared) {
        let found = |path: PathId, link: Link| Found {
            path,
            links: vec![Link::Uplink(path.hop), link],
            way: Way { uplink: 1, arrival: 4, routers: 1, recorded: None },
            delay: Duration::from_micros(90),
        };
        let found =
            [found(KNOWN, Link::Router(ROUTER)), found(BLIND, Link::Arrival(VTEP.into(), 4))];
        let weights = BTreeMap::from([(1, 1), (2, 1)]);
        shared.change(|placer| placer.update(TARGET, &weights, &found, &BTreeSet::new()));
    }

    #[test]
    fn a_sprayed_queue_pair_has_all_paths_if_its_vni_is_agreed() {
        let shared = Shared::new(Options::default(), 1);
        let vtep = |vnis| Probed {
            target: TARGET,
            ready: true,
            paths: 2,
            known: 2,
            lost: 0,
            routers: (1, 1),
            recorded: true,
            traced: false,
            heard: None,
            counts: [0; 3],
            sprayed: SprayedTo {
                up: 2,
                vnis,
                paths: [KNOWN, BLIND].map(|path| (path, 0, Fate::default())).into(),
                waits: vec![Some((0, false)); 2],
            },
        };
        let said =
            |policy| placement_of(Some(&shared), &names(), policy, id(9), Some(50_009)).unwrap();
        shared.set_probed(vec![vtep(vec![10])], Default::default());
        let paths = said(Policy::Spray);
        assert_eq!((&*paths.state, paths.paths.len()), ("sprayed", 2));
        assert!(["new", "hashed"].contains(&&*said(Policy::QpPin).state));
        shared.set_probed(vec![vtep(vec![11])], Default::default());
        assert_ne!(said(Policy::Spray).state, "sprayed");
    }

    #[test]
    fn without_a_path_it_is_that_of_qp_hash_and_the_reason_is_told() {
        let shared = Shared::new(Options { most: 1, ..Options::default() }, 1);
        let said = of(&shared, &copy(9, 50_009));
        assert_eq!((&*said.state, &*said.reason), ("hashed", "the VTEP is not probed"));
        assert_eq!(of(&shared, &copy(1, 50_009)).reason, "management queue pairs are not placed");
        let unprobed = placement(None, &names(), 10, &copy(9, 50_009)).unwrap();
        assert_eq!((&*unprobed.state, &*unprobed.reason), ("hashed", "paths are not probed"));
        let path = place(&shared, 9, PathId { hop: 2, source_port: 50_009 });
        let said = of(&shared, &copy(9, path.source_port));
        assert_eq!(
            (&*said.state, &*said.reason),
            ("hashed", "no path was known when it was placed")
        );
        // Nothing but the uplink is known of it.
        let [path] = said.paths.as_slice() else { panic!("{said:?}") };
        assert_eq!((&*path.uplink, &path.routers, path.arrival), ("up2", &Vec::new(), None));
        probed(&shared);
        assert_eq!(of(&shared, &copy(8, 50_008)).reason, "the table of queue pairs is full");
    }

    #[test]
    fn a_new_queue_pair_can_get_each_known_path() {
        let shared = Shared::new(Options::default(), 1);
        probed(&shared);
        let said = of(&shared, &copy(9, 50_009));
        assert_eq!(said.state, "new");
        let paths: Vec<_> = said
            .paths
            .iter()
            .map(|path| (&*path.uplink, path.source_ports[0], path.routers.len(), path.arrival))
            .collect();
        assert_eq!(paths, [("up1", 50_001, 1, None), ("up2", 50_002, 0, Some(4))]);
        // Explaining places nothing.
        assert_eq!(shared.read(|placer| placer.flows().count()), 0);
    }

    #[test]
    fn a_placed_queue_pair_has_one_path_and_others_tell_their_load() {
        let shared = Shared::new(Options::default(), 1);
        probed(&shared);
        let on = |path: PathId, queue_pair: &u32| {
            place(&shared, *queue_pair, PathId { hop: 2, source_port: 9 }) == path
        };
        let queue_pair = (20..40).find(|queue_pair| on(KNOWN, queue_pair)).unwrap();
        let link = pathmap::message::LinkLoad { link: ROUTER, kilobytes: 77 };
        let report = pathmap::Report { loads: vec![link], ..pathmap::Report::default() };
        let now = shared.now();
        shared.change(|placer| placer.report(TARGET, &report, now));
        let said = of(&shared, &copy(queue_pair, KNOWN.source_port));
        let [path] = said.paths.as_slice() else { panic!("{said:?}") };
        assert_eq!(
            (&*said.state, &*path.uplink, &*path.routers),
            ("pinned", "up1", &["10.2.1.0".to_owned()][..])
        );
        assert_eq!(
            (&*path.source_ports, path.others_kilobytes_per_second),
            (&[50_001][..], Some(77))
        );
        // The path is there, but frames do not take it.
        let said = of(&shared, &copy(queue_pair, 50_009));
        assert_eq!((&*said.state, said.paths.len()), ("hashed", 0));
    }

    #[test]
    fn other_policies_and_other_frames_have_no_placement() {
        let shared = Shared::new(Options::default(), 1);
        let mut hashed = copy(9, 50_009);
        hashed.entropy.policy = Policy::QpHash;
        assert_eq!(placement(Some(&shared), &names(), 10, &hashed), None);
        let mut tcp = copy(9, 50_009);
        let [source, destination] = [LOCAL, VTEP].map(Into::into);
        tcp.entropy.key = Key::Addresses { source, destination, protocol: 6 };
        assert_eq!(placement(Some(&shared), &names(), 10, &tcp), None);
    }
}
