//! In any order of messages, repetitions and losses, the tables finally have what the sources
//! reported last. The bypass has what the bridge has.

#![cfg(test)]

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use control::{Settings, State, Update};
use netlink::{BridgePort, Dump, Link, Message};
use proptest::prelude::*;
use tables::MacLocation;
use wire::MacAddr;
use world::*;

/// What happens on the leaf. Numbers select one of a few MAC addresses, VTEPs and prefixes.
#[derive(Debug, Clone)]
enum Step {
    /// The kernel's vxlan FDB gains or changes an entry. zebra may have reported the same.
    Learn {
        mac: u8,
        vtep: u8,
        by_zebra: bool,
    },
    /// The kernel's vxlan FDB loses an entry. zebra may report that as well.
    Withdraw {
        mac: u8,
        by_zebra: bool,
    },
    /// A host appears on the bridge's host port.
    Appear {
        mac: u8,
    },
    /// Its entry ages out.
    Age {
        mac: u8,
    },
    /// A host appears on the host port while zebra moves it to the vxlan netdev, or the other way
    /// round. The notifications arrive in the wrong order.
    Meet {
        mac: u8,
        here: bool,
    },
    /// The bridge's host port is isolated, or is not any more.
    Port {
        isolated: bool,
    },
    Flood {
        vtep: u8,
        on: bool,
    },
    /// The weight of each uplink. An uplink without weight is not used.
    Route {
        prefix: u8,
        weights: (u8, u8),
        by_zebra: bool,
    },
    Unroute {
        prefix: u8,
    },
    Carrier {
        uplink: u32,
        on: bool,
    },
    /// A host's IP address is bound to its MAC address, or to none.
    Bind {
        address: u8,
        mac: Option<u8>,
    },
    /// The vxlan netdev itself changes.
    Netdev(Change),
    /// The state receives this many waiting messages of the kernel, each of them once or twice.
    HearKernel {
        messages: usize,
        twice: bool,
    },
    /// The same for zebra's frames.
    HearZebra {
        frames: usize,
        twice: bool,
    },
    /// The kernel's waiting notifications are lost, and everything is dumped.
    Overrun,
    /// zebra's connection ends, if there is one.
    Disconnect,
    /// zebra connects again and replays its routes.
    Connect,
    /// This many seconds pass without messages.
    Wait {
        seconds: u64,
    },
    /// A publication is built in between.
    Build,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Rename,
    Down,
    Up,
    LeaveBridge,
    JoinBridge,
    /// Deleted and created again, with another index and without entries.
    Recreate,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (mac, vtep, prefix) = (0u8..6, 0u8..4, 0u8..4);
    let uplink = || prop_oneof![Just(UP1), Just(UP2)];
    let weights = prop_oneof![Just((1, 0)), Just((0, 1)), Just((1, 1)), Just((3, 1)), Just((2, 4))];
    let change = prop::sample::select(vec![
        Change::Rename,
        Change::Down,
        Change::Up,
        Change::LeaveBridge,
        Change::JoinBridge,
        Change::Recreate,
    ]);
    let step = prop_oneof![
        6 => (mac.clone(), vtep.clone(), any::<bool>()).prop_map(|(mac, vtep, by_zebra)| Step::Learn { mac, vtep, by_zebra }),
        3 => (mac.clone(), any::<bool>()).prop_map(|(mac, by_zebra)| Step::Withdraw { mac, by_zebra }),
        2 => mac.clone().prop_map(|mac| Step::Appear { mac }),
        2 => mac.clone().prop_map(|mac| Step::Age { mac }),
        2 => (mac.clone(), any::<bool>()).prop_map(|(mac, here)| Step::Meet { mac, here }),
        1 => any::<bool>().prop_map(|isolated| Step::Port { isolated }),
        2 => (vtep, any::<bool>()).prop_map(|(vtep, on)| Step::Flood { vtep, on }),
        4 => (prefix.clone(), weights, any::<bool>()).prop_map(|(prefix, weights, by_zebra)| Step::Route { prefix, weights, by_zebra }),
        2 => prefix.prop_map(|prefix| Step::Unroute { prefix }),
        1 => (uplink(), any::<bool>()).prop_map(|(uplink, on)| Step::Carrier { uplink, on }),
        2 => (0u8..3, prop::option::of(mac.clone())).prop_map(|(address, mac)| Step::Bind { address, mac }),
        2 => change.prop_map(Step::Netdev),
        6 => (1usize..5, any::<bool>()).prop_map(|(messages, twice)| Step::HearKernel { messages, twice }),
        6 => (1usize..5, any::<bool>()).prop_map(|(frames, twice)| Step::HearZebra { frames, twice }),
        1 => Just(Step::Overrun),
        1 => Just(Step::Disconnect),
        2 => Just(Step::Connect),
        1 => prop_oneof![Just(6), Just(200)].prop_map(|seconds| Step::Wait { seconds }),
        3 => Just(Step::Build),
    ];
    prop::collection::vec(step, 1..120)
}

const VTEPS: [&str; 4] = ["10.0.0.12", "10.0.0.13", "10.0.1.14", "10.0.1.15"];
const PREFIXES: [&str; 4] = ["10.0.0.12/32", "10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/16"];

/// The leaf: its true state, and the messages that the state under test has not received yet.
struct Leaf {
    kernel: BTreeMap<MacAddr, &'static str>,
    zebra: BTreeMap<MacAddr, &'static str>,
    /// Where the bridge has addresses: on its host port, or on the vxlan netdev.
    bridged: BTreeMap<MacAddr, u32>,
    /// Whether the bridge's host port is isolated.
    isolated: bool,
    flood: BTreeSet<&'static str>,
    routes: BTreeMap<&'static str, (u8, u8)>,
    zebra_routes: BTreeMap<&'static str, (u8, u8)>,
    carrier: BTreeMap<u32, bool>,
    hosts: BTreeMap<u8, MacAddr>,
    /// The vxlan netdev.
    netdev: Link,

    kernel_says: Vec<Message>,
    connected: bool,
    zebra_frames: Vec<Vec<Message>>,
}

impl Leaf {
    fn new() -> Self {
        Self {
            kernel: BTreeMap::new(),
            zebra: BTreeMap::new(),
            bridged: BTreeMap::new(),
            isolated: false,
            flood: BTreeSet::new(),
            routes: BTreeMap::new(),
            zebra_routes: BTreeMap::new(),
            carrier: BTreeMap::from([(UP1, true), (UP2, true)]),
            hosts: BTreeMap::new(),
            netdev: Link { bridge_port: Some(FORWARDING), ..vxlan(VXLAN, BRIDGE, vxlan_of(VNI)) },
            kernel_says: Vec::new(),
            connected: true,
            zebra_frames: Vec::new(),
        }
    }

    fn uplink(&self, ifindex: u32) -> Message {
        let up = ethernet(ifindex, if ifindex == UP1 { "up1" } else { "up2" });
        link(if self.carrier[&ifindex] { up } else { no_carrier(up) })
    }

    fn remote(&self, operation: netlink::Operation, mac: MacAddr, vtep: &str) -> Message {
        Message::Fdb(operation, remote_of(self.netdev.ifindex, mac, vtep))
    }

    fn flood(&self, operation: netlink::Operation, vtep: &str) -> Message {
        self.remote(operation, MacAddr::ZERO, vtep)
    }

    fn zebra_mac(&self, operation: netlink::Operation, mac: MacAddr, vtep: &str) -> Message {
        let entry = netlink::FdbEntry {
            source_vni: Some(VNI),
            ..remote_of(self.netdev.ifindex, mac, vtep)
        };
        Message::Fdb(operation, entry)
    }

    /// Whether the VNI can be taken over.
    fn is_taken(&self) -> bool {
        self.netdev.master.is_some() && self.netdev.flags & 1 != 0
    }

    fn fdb(&self) -> Vec<Message> {
        let remote = self.kernel.iter().map(|(mac, vtep)| self.remote(New, *mac, vtep));
        let flood = self.flood.iter().map(|vtep| self.flood(New, vtep));
        remote
            .chain(flood)
            .chain(self.bridged.iter().map(|(mac, port)| bridged(New, *port, *mac)))
            .collect()
    }

    fn host_port(&self) -> Message {
        link(host_port_with(BridgePort { isolated: self.isolated, ..FORWARDING }))
    }

    fn is_local(&self, mac: MacAddr) -> bool {
        self.bridged.get(&mac) == Some(&HOST)
    }

    /// A port leaves the bridge, which removes the port's addresses.
    fn flush(&mut self, port: u32) {
        let gone = self.bridged.iter().filter(|(_, on)| **on == port);
        self.kernel_says.extend(gone.map(|(mac, port)| bridged(Delete, *port, *mac)));
        self.bridged.retain(|_, on| *on != port);
    }

    /// The locations that the bypass finally has.
    fn expected_locations(&self, update: &Update, slot: tables::VniIndex) -> BTreeSet<MacLocation> {
        if self.isolated || !self.is_taken() {
            return BTreeSet::new();
        }
        let fdb = self.expected_fdb();
        let location = |(mac, port): (&MacAddr, &u32)| match *port {
            HOST => Some(MacLocation::Port { port: HOST, index: slot, mac: *mac }),
            port if port == self.netdev.ifindex && fdb.contains_key(mac) => {
                let vtep = update.snapshot.find_vtep(fdb[mac]).unwrap();
                Some(MacLocation::Remote { index: slot, vtep, mac: *mac })
            }
            _ => None,
        };
        self.bridged.iter().filter_map(location).collect()
    }

    fn dump(&self, what: Dump) -> Vec<Message> {
        match what {
            Dump::Links => {
                let others = leaf().into_iter().filter(|message| {
                    matches!(message, Message::Link(_, link) if ![UP1, UP2, VXLAN, HOST].contains(&link.ifindex))
                });
                let netdev = link(self.netdev.clone());
                others
                    .chain([self.uplink(UP1), self.uplink(UP2), netdev, self.host_port()])
                    .collect()
            }
            Dump::Addresses => leaf()
                .into_iter()
                .filter(|message| matches!(message, Message::Address(..)))
                .collect(),
            Dump::Routes => {
                self.routes.iter().map(|(prefix, weights)| hops(prefix, *weights)).collect()
            }
            Dump::Fdb => self.fdb(),
            Dump::Neighbours => {
                self.hosts.iter().map(|(address, mac)| bound(New, *address, Some(*mac))).collect()
            }
            Dump::NextHops | Dump::IpsecPolicies | Dump::Mdb | Dump::ReversePathFilters => vec![],
            Dump::Rules => netlink::Rule::defaults().map(|rule| Message::Rule(New, rule)).into(),
        }
    }

    /// What zebra sends while it is connected.
    fn zebra_says(&mut self, frame: Vec<Message>) {
        if self.connected {
            self.zebra_frames.push(frame);
        }
    }

    /// The entries that are finally used for forwarding.
    fn expected_fdb(&self) -> BTreeMap<MacAddr, IpAddr> {
        let mut fdb = BTreeMap::new();
        for (mac, vtep) in self.zebra.iter().chain(&self.kernel) {
            fdb.insert(*mac, ip(vtep));
        }
        fdb.retain(|mac, _| !self.is_local(*mac));
        fdb
    }

    /// The interfaces of the next hops towards a VTEP, with their weights.
    fn expected_hops(&self, vtep: &str) -> Vec<(u32, u16)> {
        let bits = |text: &str| text.parse::<Ipv4Addr>().unwrap().to_bits();
        let matching = |prefix: &&str| {
            let (network, length) = prefix.split_once('/').unwrap();
            let shift = 32 - length.parse::<u32>().unwrap();
            bits(vtep) >> shift == bits(network) >> shift
        };
        // PREFIXES has longer ones first. zebra's version comes first while its next hops are live.
        for prefix in PREFIXES.iter().filter(|prefix| matching(prefix)) {
            let candidates = [self.zebra_routes.get(prefix), self.routes.get(prefix)];
            let mut known = candidates.into_iter().flatten().peekable();
            if known.peek().is_some() {
                return known
                    .map(|weights| self.live(*weights))
                    .find(|live| !live.is_empty())
                    .unwrap_or_default();
            }
        }
        vec![]
    }

    /// The weights of the uplinks that have carrier, in lowest terms.
    fn live(&self, (one, two): (u8, u8)) -> Vec<(u32, u16)> {
        let all = [(UP1, u16::from(one)), (UP2, u16::from(two))];
        let live: Vec<_> = all
            .into_iter()
            .filter(|(uplink, weight)| *weight > 0 && self.carrier[uplink])
            .collect();
        match live[..] {
            [(uplink, _)] => vec![(uplink, 1)],
            [(_, a), (_, b)] if a % b == 0 => vec![(UP1, a / b), (UP2, 1)],
            [(_, a), (_, b)] if b % a == 0 => vec![(UP1, 1), (UP2, b / a)],
            _ => live,
        }
    }
}

/// A route over the uplinks that have weight.
fn hops(prefix: &str, (one, two): (u8, u8)) -> Message {
    let hops = [(UP1, "10.1.0.1", one), (UP2, "10.2.0.1", two)].map(|(uplink, gateway, weight)| {
        netlink::RouteNextHop { weight: weight.into(), ..via(uplink, gateway) }
    });
    let hops: Vec<_> = hops.into_iter().filter(|hop| hop.weight > 0).collect();
    Message::Route(New, netlink::Route { replace: true, ..route(prefix, &hops) })
}

fn host_address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 168, 10, number))
}

/// A neighbour on the bridge.
fn bound(operation: netlink::Operation, address: u8, mac: Option<MacAddr>) -> Message {
    let address = host_address(address).to_string();
    Message::Neighbour(operation, neighbour_of(BRIDGE, &address, mac, 0x40))
}

fn run(steps: Vec<Step>) {
    let mut truth = Leaf::new();
    let mut state = state_with(Settings { bypass: true, ..Settings::default() });
    apply(&mut state, leaf());
    apply(&mut state, [link(truth.netdev.clone()), truth.host_port()]);
    let mut locations = BTreeSet::new();
    let mut now = Instant::now();
    state.fpm_connected();
    state.take_wanted_dumps();
    for step in steps {
        now += Duration::from_millis(10);
        if let Step::Wait { seconds } = step {
            now += Duration::from_secs(seconds);
        }
        happen(&mut truth, &mut state, &step, now);
        state.tick(now);
        if matches!(step, Step::Build) {
            state.build();
            follow(&mut locations, &mut state);
        }
        // As the run loop does: dumps what may have changed without a notification.
        resync_doubtful(&truth, &mut state);
    }
    happen(&mut truth, &mut state, &Step::Connect, now);
    truth.kernel_says.drain(..).for_each(|message| state.apply_kernel(message));
    for frame in truth.zebra_frames.drain(..) {
        state.apply_fpm(frame, now);
    }
    // A last frame, because a session without frames never ends its replay.
    state.apply_fpm(vec![Message::Other(0)], now);
    state.tick(now + Duration::from_secs(5));
    resync_doubtful(&truth, &mut state);
    let update = state.build();
    follow(&mut locations, &mut state);

    if !truth.is_taken() {
        assert!(locations.is_empty(), "{locations:?}");
        assert!(update.plan.vnis.is_empty() && update.snapshot.vteps().next().is_none());
        assert_eq!(state.hosts().count(), 0);
        return;
    }
    let hosts: BTreeSet<_> = state.hosts().map(|host| (host.address, host.mac)).collect();
    assert_eq!(
        hosts,
        truth.hosts.iter().map(|(number, mac)| (host_address(*number), *mac)).collect()
    );
    let taken = &update.plan.vnis[&Netdev(truth.netdev.ifindex)];
    assert_eq!((update.plan.vnis.len(), &taken.name), (1, &truth.netdev.name));
    assert_eq!(update.plan.ports[&HOST].sends, !truth.isolated);
    assert_eq!(locations, truth.expected_locations(&update, taken.index));
    let table = table(&update).expect("the VNI is taken");
    let fdb: BTreeMap<MacAddr, IpAddr> =
        table.fdb.iter().map(|(mac, _)| (mac, behind(&update, mac).unwrap())).collect();
    assert_eq!(fdb, truth.expected_fdb());
    let flood: BTreeSet<IpAddr> = flood_list(&update).into_iter().collect();
    assert_eq!(flood, truth.flood.iter().map(|vtep| ip(vtep)).collect());
    let named: BTreeSet<IpAddr> = fdb.values().copied().chain(flood).collect();
    assert_eq!(update.snapshot.vteps().map(|vtep| vtep.address).collect::<BTreeSet<_>>(), named);
    for vtep in VTEPS.iter().filter(|vtep| named.contains(&ip(vtep))) {
        let hops = paths(&update, vtep).next_hops().iter().map(|hop| (hop.ifindex, hop.weight));
        assert_eq!(hops.collect::<Vec<_>>(), truth.expected_hops(vtep), "towards {vtep}");
    }
}

fn resync_doubtful(truth: &Leaf, state: &mut State) {
    for what in state.take_wanted_dumps() {
        state.resync(what, truth.dump(what));
    }
    for (bridge, mac) in state.take_moved(usize::MAX) {
        let entry = truth.bridged.get(&mac).map(|port| bridged_of(*port, mac));
        state.bridge_has(bridge, mac, entry.as_ref());
    }
}

/// As steering does: removals come first.
fn follow(locations: &mut BTreeSet<MacLocation>, state: &mut State) {
    let changes = state.take_mac_locations();
    for left in changes.iter().filter(|change| !change.there) {
        locations.remove(&left.location);
    }
    locations.extend(changes.iter().filter(|change| change.there).map(|change| change.location));
}

fn happen(truth: &mut Leaf, state: &mut State, step: &Step, now: Instant) {
    match *step {
        Step::Learn { mac: number, vtep, by_zebra } => {
            let (mac, vtep) = (mac(number), VTEPS[usize::from(vtep)]);
            // With or without a bridge, it is no local host any more.
            let was = truth.bridged.remove(&mac);
            if truth.netdev.master.is_some() {
                truth.bridged.insert(mac, truth.netdev.ifindex);
                truth.kernel_says.push(bridged(New, truth.netdev.ifindex, mac));
            } else if let Some(port) = was {
                truth.kernel_says.push(bridged(Delete, port, mac));
            }
            truth.kernel.insert(mac, vtep);
            truth.kernel_says.push(truth.remote(New, mac, vtep));
            if by_zebra {
                truth.zebra.insert(mac, vtep);
                truth.zebra_says(vec![truth.zebra_mac(New, mac, vtep)]);
            }
        }
        Step::Withdraw { mac: number, by_zebra } => {
            let mac = mac(number);
            if let Some(vtep) = truth.kernel.remove(&mac) {
                if by_zebra && truth.bridged.get(&mac) == Some(&truth.netdev.ifindex) {
                    truth.bridged.remove(&mac);
                    truth.kernel_says.push(bridged(Delete, truth.netdev.ifindex, mac));
                }
                // zebra sends nothing for a remote MAC address that becomes local. The kernel's
                // notification counts for both.
                truth.kernel_says.push(truth.remote(Delete, mac, vtep));
                if truth.zebra.remove(&mac).is_some() && by_zebra {
                    truth.zebra_says(vec![truth.zebra_mac(Delete, mac, vtep)]);
                }
            }
        }
        Step::Appear { mac: number } => {
            truth.bridged.insert(mac(number), HOST);
            truth.kernel_says.push(bridged(New, HOST, mac(number)));
        }
        Step::Age { mac: number } => {
            if truth.is_local(mac(number)) {
                truth.bridged.remove(&mac(number));
                truth.kernel_says.push(bridged(Delete, HOST, mac(number)));
            }
        }
        Step::Meet { mac: number, here } => {
            if truth.netdev.master.is_some() {
                let mut ports = [HOST, truth.netdev.ifindex];
                ports.rotate_left(usize::from(!here));
                truth.bridged.insert(mac(number), ports[0]);
                truth.kernel_says.extend(ports.map(|port| bridged(New, port, mac(number))));
            }
        }
        Step::Port { isolated } => {
            truth.isolated = isolated;
            truth.kernel_says.push(truth.host_port());
        }
        Step::Flood { vtep, on } => {
            let vtep = VTEPS[usize::from(vtep)];
            if on {
                truth.flood.insert(vtep);
            } else {
                truth.flood.remove(vtep);
            }
            truth.kernel_says.push(truth.flood(if on { New } else { Delete }, vtep));
        }
        Step::Route { prefix, weights, by_zebra } => {
            let prefix = PREFIXES[usize::from(prefix)];
            truth.routes.insert(prefix, weights);
            truth.kernel_says.push(hops(prefix, weights));
            // zebra's route is the same as the kernel's, or there is none of zebra's.
            if by_zebra {
                truth.zebra_routes.insert(prefix, weights);
                truth.zebra_says(vec![del_route(prefix, &[]), hops(prefix, weights)]);
            } else if truth.zebra_routes.remove(prefix).is_some() {
                truth.zebra_says(vec![del_route(prefix, &[])]);
            }
        }
        Step::Unroute { prefix } => {
            let prefix = PREFIXES[usize::from(prefix)];
            if let Some(weights) = truth.routes.remove(prefix) {
                let Message::Route(_, gone) = hops(prefix, weights) else { return };
                truth.kernel_says.push(Message::Route(Delete, gone));
                if truth.zebra_routes.remove(prefix).is_some() {
                    truth.zebra_says(vec![del_route(prefix, &[])]);
                }
            }
        }
        Step::Carrier { uplink, on } => {
            truth.carrier.insert(uplink, on);
            let message = truth.uplink(uplink);
            truth.kernel_says.push(message);
        }
        Step::Bind { address, mac: number } => {
            let mac = number.map(mac);
            match mac {
                Some(mac) => truth.hosts.insert(address, mac),
                None => truth.hosts.remove(&address),
            };
            truth.kernel_says.push(bound(if mac.is_some() { New } else { Delete }, address, mac));
        }
        Step::Netdev(change) => change_netdev(truth, change),
        Step::HearKernel { messages, twice } => {
            let heard = messages.min(truth.kernel_says.len());
            for message in truth.kernel_says.drain(..heard) {
                if twice {
                    state.apply_kernel(message.clone());
                }
                state.apply_kernel(message);
            }
        }
        Step::HearZebra { frames, twice } => {
            let heard = frames.min(truth.zebra_frames.len());
            for frame in truth.zebra_frames.drain(..heard) {
                if twice {
                    state.apply_fpm(frame.clone(), now);
                }
                state.apply_fpm(frame, now);
            }
        }
        Step::Overrun => {
            // Some of the lost notifications arrive late and twice, as after a dump that began
            // before them.
            let late = truth.kernel_says.split_off(truth.kernel_says.len() / 2);
            truth.kernel_says.clear();
            for what in Dump::ALL {
                state.resync(what, truth.dump(what));
            }
            truth.kernel_says = late;
        }
        Step::Disconnect => {
            if std::mem::take(&mut truth.connected) {
                state.fpm_disconnected(now);
                // Frames in flight are lost with the connection.
                truth.zebra_frames.clear();
            }
        }
        Step::Connect => {
            if !std::mem::replace(&mut truth.connected, true) {
                state.fpm_connected();
                // Routes are replayed, MAC addresses are not.
                let replay =
                    truth.zebra_routes.iter().map(|(prefix, weights)| vec![hops(prefix, *weights)]);
                truth.zebra_frames = replay.collect();
            }
        }
        Step::Wait { .. } | Step::Build => {}
    }
}

fn change_netdev(truth: &mut Leaf, change: Change) {
    if matches!(change, Change::LeaveBridge | Change::Recreate) {
        truth.flush(truth.netdev.ifindex);
    }
    let netdev = &mut truth.netdev;
    match change {
        Change::Rename => netdev.name.push('x'),
        Change::Down => netdev.flags &= !1,
        Change::Up => netdev.flags |= 1,
        Change::LeaveBridge => netdev.master = None,
        Change::JoinBridge => netdev.master = Some(BRIDGE),
        Change::Recreate => {
            truth.kernel_says.push(Message::Link(Delete, netdev.clone()));
            // Higher than all other indices.
            netdev.ifindex = netdev.ifindex.max(HOST) + 1;
            truth.kernel.clear();
            truth.flood.clear();
            for (mac, vtep) in std::mem::take(&mut truth.zebra) {
                truth.zebra_says(vec![truth.zebra_mac(Delete, mac, vtep)]);
            }
        }
    }
    truth.kernel_says.push(link(truth.netdev.clone()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_tables_end_as_the_sources_meant_them(steps in steps()) {
        run(steps);
    }
}
