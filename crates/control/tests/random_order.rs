//! Whatever the order in which the sources speak, repeat themselves and are lost: in the end the tables say what the
//! sources last meant.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test's helpers may fail it"
)]

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use control::State;
use netlink::{Dump, Message};
use proptest::prelude::*;
use wire::MacAddr;
use world::*;

/// What happens on the leaf. Numbers choose MAC addresses, VTEPs and prefixes out of a few.
#[derive(Debug, Clone)]
enum Step {
    /// The kernel's vxlan FDB gains or changes an entry; zebra may have told the same.
    Learn {
        mac: u8,
        vtep: u8,
        by_zebra: bool,
    },
    /// The kernel's vxlan FDB loses an entry; zebra may tell so, too.
    Withdraw {
        mac: u8,
        by_zebra: bool,
    },
    /// A host appears on the bridge's own port.
    Appear {
        mac: u8,
    },
    /// It ages out.
    Age {
        mac: u8,
    },
    Flood {
        vtep: u8,
        on: bool,
    },
    Route {
        prefix: u8,
        uplink: u32,
        by_zebra: bool,
    },
    Unroute {
        prefix: u8,
    },
    Carrier {
        uplink: u32,
        on: bool,
    },
    /// The state hears what the kernel said so far: this many messages.
    HearKernel {
        messages: usize,
    },
    /// And the same of zebra's frames.
    HearZebra {
        frames: usize,
    },
    /// The kernel's events are lost up to now, and everything is dumped.
    Overrun,
    /// zebra's connection ends, if it has one.
    Disconnect,
    /// It comes back, with a replay of its routes.
    Connect,
    /// The state is asked for tables in the middle.
    Build,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (mac, vtep, prefix) = (0u8..6, 0u8..4, 0u8..4);
    let uplink = || prop_oneof![Just(UP1), Just(UP2)];
    let step = prop_oneof![
        6 => (mac.clone(), vtep.clone(), any::<bool>()).prop_map(|(mac, vtep, by_zebra)| Step::Learn { mac, vtep, by_zebra }),
        3 => (mac.clone(), any::<bool>()).prop_map(|(mac, by_zebra)| Step::Withdraw { mac, by_zebra }),
        2 => mac.clone().prop_map(|mac| Step::Appear { mac }),
        2 => mac.prop_map(|mac| Step::Age { mac }),
        2 => (vtep, any::<bool>()).prop_map(|(vtep, on)| Step::Flood { vtep, on }),
        4 => (prefix.clone(), uplink(), any::<bool>()).prop_map(|(prefix, uplink, by_zebra)| Step::Route { prefix, uplink, by_zebra }),
        2 => prefix.prop_map(|prefix| Step::Unroute { prefix }),
        1 => (uplink(), any::<bool>()).prop_map(|(uplink, on)| Step::Carrier { uplink, on }),
        6 => (1usize..5).prop_map(|messages| Step::HearKernel { messages }),
        6 => (1usize..5).prop_map(|frames| Step::HearZebra { frames }),
        1 => Just(Step::Overrun),
        1 => Just(Step::Disconnect),
        2 => Just(Step::Connect),
        3 => Just(Step::Build),
    ];
    prop::collection::vec(step, 1..120)
}

const VTEPS: [&str; 4] = ["10.0.0.12", "10.0.0.13", "10.0.1.14", "10.0.1.15"];
const PREFIXES: [&str; 4] = ["10.0.0.12/32", "10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/16"];

/// The leaf itself: what is true, and what was said of it that the state has not heard.
struct Leaf {
    kernel: BTreeMap<MacAddr, &'static str>,
    zebra: BTreeMap<MacAddr, &'static str>,
    local: BTreeSet<MacAddr>,
    flood: BTreeSet<&'static str>,
    routes: BTreeMap<&'static str, u32>,
    zebra_routes: BTreeMap<&'static str, u32>,
    carrier: BTreeMap<u32, bool>,

    kernel_says: Vec<Message>,
    connected: bool,
    zebra_frames: Vec<Vec<Message>>,
}

impl Leaf {
    fn new() -> Self {
        Self {
            kernel: BTreeMap::new(),
            zebra: BTreeMap::new(),
            local: BTreeSet::new(),
            flood: BTreeSet::new(),
            routes: BTreeMap::new(),
            zebra_routes: BTreeMap::new(),
            carrier: BTreeMap::from([(UP1, true), (UP2, true)]),
            kernel_says: Vec::new(),
            connected: true,
            zebra_frames: Vec::new(),
        }
    }

    fn uplink(&self, ifindex: u32) -> Message {
        let up = ethernet(ifindex, if ifindex == UP1 { "up1" } else { "up2" });
        link(if self.carrier[&ifindex] { up } else { no_carrier(up) })
    }

    fn fdb(&self) -> Vec<Message> {
        let remote = self.kernel.iter().map(|(mac, vtep)| remote(New, *mac, vtep));
        let flood = self.flood.iter().map(|vtep| flood(New, vtep));
        remote.chain(flood).chain(self.local.iter().map(|mac| bridged(New, HOST, *mac))).collect()
    }

    fn dump(&self, what: Dump) -> Vec<Message> {
        match what {
            Dump::Links => {
                let others = leaf().into_iter().filter(|message| {
                    matches!(message, Message::Link(_, link) if ![UP1, UP2].contains(&link.ifindex))
                });
                others.chain([self.uplink(UP1), self.uplink(UP2)]).collect()
            }
            Dump::Addresses => {
                leaf().into_iter().filter(|message| matches!(message, Message::Address(..))).collect()
            }
            Dump::Routes => self.routes.iter().map(|(prefix, uplink)| hop(prefix, *uplink)).collect(),
            Dump::Fdb => self.fdb(),
            Dump::Neighbours | Dump::NextHops => vec![],
        }
    }

    /// What zebra says while it is connected.
    fn zebra_says(&mut self, frame: Vec<Message>) {
        if self.connected {
            self.zebra_frames.push(frame);
        }
    }

    /// What was said and not heard.
    fn pending(&self) -> Vec<Message> {
        self.kernel_says.iter().chain(self.zebra_frames.iter().flatten()).cloned().collect()
    }

    /// What is forwarded by in the end.
    fn expected_fdb(&self) -> BTreeMap<MacAddr, Ipv4Addr> {
        let mut fdb = BTreeMap::new();
        for (mac, vtep) in self.zebra.iter().chain(&self.kernel) {
            fdb.insert(*mac, v4(vtep));
        }
        fdb.retain(|mac, _| !self.local.contains(mac));
        fdb
    }

    fn expected_interfaces(&self, vtep: &str) -> Vec<u32> {
        let matching = |prefix: &&str| {
            let (network, length) = prefix.split_once('/').unwrap();
            let shift = 32 - length.parse::<u32>().unwrap();
            v4(vtep).to_bits() >> shift == v4(network).to_bits() >> shift
        };
        // PREFIXES lists longer ones first; zebra's version comes first while it lives.
        for prefix in PREFIXES.iter().filter(|prefix| matching(prefix)) {
            let candidates = [self.zebra_routes.get(prefix), self.routes.get(prefix)];
            let mut known = candidates.into_iter().flatten().peekable();
            if known.peek().is_some() {
                return known.find(|uplink| self.carrier[uplink]).into_iter().copied().collect();
            }
        }
        vec![]
    }
}

fn hop(prefix: &str, uplink: u32) -> Message {
    let gateway = if uplink == UP1 { "10.1.0.1" } else { "10.2.0.1" };
    let route = netlink::Route { replace: true, ..route(prefix, &[via(uplink, gateway)]) };
    Message::Route(New, route)
}

fn run(steps: Vec<Step>) {
    let mut truth = Leaf::new();
    let mut state = told(leaf());
    let mut now = Instant::now();
    state.fpm_connected();
    state.take_doubtful();
    for step in steps {
        now += Duration::from_millis(10);
        happen(&mut truth, &mut state, &step, now);
        // The run loop verifies what may have changed silently at once, here as there.
        resync_doubtful(&truth, &mut state);
    }
    happen(&mut truth, &mut state, &Step::Connect, now);
    truth.kernel_says.drain(..).for_each(|message| state.apply_kernel(message));
    for frame in truth.zebra_frames.drain(..) {
        state.apply_fpm(frame, now);
    }
    // A last frame, lest a session that said nothing never ends its replay.
    state.apply_fpm(vec![Message::Other(0)], now);
    state.tick(now + Duration::from_secs(5));
    resync_doubtful(&truth, &mut state);
    let update = state.build();

    let table = table(&update).expect("the VNI is taken");
    let fdb: BTreeMap<MacAddr, Ipv4Addr> =
        table.fdb.iter().map(|(mac, _)| (mac, behind(&update, mac).unwrap())).collect();
    assert_eq!(fdb, truth.expected_fdb());
    let flood: BTreeSet<Ipv4Addr> = flood_list(&update).into_iter().collect();
    assert_eq!(flood, truth.flood.iter().map(|vtep| v4(vtep)).collect());
    let named: BTreeSet<Ipv4Addr> = fdb.values().copied().chain(flood).collect();
    assert_eq!(update.snapshot.vteps().map(|vtep| vtep.address).collect::<BTreeSet<_>>(), named);
    for vtep in VTEPS.iter().filter(|vtep| named.contains(&v4(vtep))) {
        assert_eq!(interfaces(&update, vtep), truth.expected_interfaces(vtep), "towards {vtep}");
    }
}

fn resync_doubtful(truth: &Leaf, state: &mut State) {
    for what in state.take_doubtful() {
        state.resync(what, truth.dump(what));
    }
}

fn happen(truth: &mut Leaf, state: &mut State, step: &Step, now: Instant) {
    match *step {
        Step::Learn { mac: number, vtep, by_zebra } => {
            let (mac, vtep) = (mac(number), VTEPS[usize::from(vtep)]);
            truth.local.remove(&mac);
            truth.kernel.insert(mac, vtep);
            truth.kernel_says.extend([bridged(New, VXLAN, mac), remote(New, mac, vtep)]);
            if by_zebra {
                truth.zebra.insert(mac, vtep);
                truth.zebra_says(vec![zebra_mac(New, mac, vtep)]);
            }
        }
        Step::Withdraw { mac: number, by_zebra } => {
            let mac = mac(number);
            if let Some(vtep) = truth.kernel.remove(&mac) {
                // zebra says nothing of a remote MAC that becomes local: the kernel's word counts for both. (What was
                // said before must have been heard: else the state has only zebra's word, which nobody takes back.)
                let pending = truth.pending();
                let said = |said: &Message| matches!(said, Message::Fdb(_, entry) if entry.mac == mac);
                let silent = !by_zebra && !pending.iter().any(said);
                truth.kernel_says.push(remote(Delete, mac, vtep));
                if truth.zebra.remove(&mac).is_some() && !silent {
                    truth.zebra_says(vec![zebra_mac(Delete, mac, vtep)]);
                }
            }
        }
        Step::Appear { mac: number } => {
            truth.local.insert(mac(number));
            truth.kernel_says.push(bridged(New, HOST, mac(number)));
        }
        Step::Age { mac: number } => {
            if truth.local.remove(&mac(number)) {
                truth.kernel_says.push(bridged(Delete, HOST, mac(number)));
            }
        }
        Step::Flood { vtep, on } => {
            let vtep = VTEPS[usize::from(vtep)];
            if on {
                truth.flood.insert(vtep);
            } else {
                truth.flood.remove(vtep);
            }
            truth.kernel_says.push(flood(if on { New } else { Delete }, vtep));
        }
        Step::Route { prefix, uplink, by_zebra } => {
            let prefix = PREFIXES[usize::from(prefix)];
            truth.routes.insert(prefix, uplink);
            truth.kernel_says.push(hop(prefix, uplink));
            // zebra's route is the kernel's, or there is none of zebra's.
            if by_zebra {
                truth.zebra_routes.insert(prefix, uplink);
                truth.zebra_says(vec![del_route(prefix, &[]), hop(prefix, uplink)]);
            } else if truth.zebra_routes.remove(prefix).is_some() {
                truth.zebra_says(vec![del_route(prefix, &[])]);
            }
        }
        Step::Unroute { prefix } => {
            let prefix = PREFIXES[usize::from(prefix)];
            if let Some(uplink) = truth.routes.remove(prefix) {
                let Message::Route(_, gone) = hop(prefix, uplink) else { return };
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
        Step::HearKernel { messages } => {
            let heard = messages.min(truth.kernel_says.len());
            truth.kernel_says.drain(..heard).for_each(|message| state.apply_kernel(message));
        }
        Step::HearZebra { frames } => {
            let heard = frames.min(truth.zebra_frames.len());
            truth.zebra_frames.drain(..heard).for_each(|frame| state.apply_fpm(frame, now));
        }
        Step::Overrun => {
            // Some of what was lost is heard late and twice, as after a dump that began before it was said.
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
                // What was under way died with the connection.
                truth.zebra_frames.clear();
            }
        }
        Step::Connect => {
            if !std::mem::replace(&mut truth.connected, true) {
                state.fpm_connected();
                // Routes are replayed, MAC addresses are not.
                let replay = truth.zebra_routes.iter().map(|(prefix, uplink)| vec![hop(prefix, *uplink)]);
                truth.zebra_frames = replay.collect();
            }
        }
        Step::Build => {
            state.build();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_tables_end_as_the_sources_meant_them(steps in steps()) {
        run(steps);
    }
}
