//! The bridge of standalone mode: forwarding, learning, ageing and accounting.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::common::{
    self, HOST, LEAF_1, LEAF_2, Leaf, Owned, UDP_AT, VNI, Worker, leaked, leave_to_card, open, tcp,
};
use pipeline::{
    AccessPortSettings, Bridge, BridgeLimits, Destination, DropReason, Explanation, GsoKind,
    Location, TxFrame, explain_switched,
};
use proptest::prelude::*;
use tables::{Snapshot, VtepIndex};
use test_frames::{Ipv4, tunnelled as tunnelled_from};
use wire::{MacAddr, Vni};

const AGEING: Duration = Duration::from_secs(10);
const BROADCAST: [u8; 6] = [0xff; 6];
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

fn mac(number: u8) -> [u8; 6] {
    [2, 7, 0, 0, 0, number]
}

fn frame(to: [u8; 6], from: [u8; 6]) -> Owned {
    Owned::plain([&to[..], &from, &EXPERIMENT, &[7; 46]].concat())
}

/// A frame that leaf 2 sends to leaf 1.
fn tunnelled(to: [u8; 6], from: [u8; 6]) -> Owned {
    let inner = frame(to, from).data;
    let vteps = (LEAF_2.octets(), LEAF_1.octets());
    let bytes = tunnelled_from(([1; 6], [2; 6]), vteps, 50_000, VNI, &inner, Ipv4::default());
    Owned::plain(bytes)
}

/// Leaf 1 with three access ports, and the current time.
struct Switch {
    worker: Worker,
    snapshot: Snapshot,
    now: Instant,
}

impl Switch {
    fn settings(stations: usize) -> AccessPortSettings {
        AccessPortSettings {
            vni: Vni::try_from(VNI).unwrap(),
            local: LEAF_1.into(),
            destination_port: 4789,
            stations,
            ageing: Some(AGEING),
        }
    }

    fn with(leaf: &Leaf, stations: usize, moves: u32) -> Self {
        let settings = Self::settings(stations);
        let mut worker = Worker::new();
        worker
            .pipeline
            .set_bridge(Bridge::new(vec![settings; 3], BridgeLimits { total: 100, moves }));
        Self { worker, snapshot: leaf.snapshot(), now: Instant::now() }
    }

    fn new() -> Self {
        Self::with(&Leaf { fdb: Vec::new(), strict: true, ..Leaf::one() }, 50, 5)
    }

    /// Forwards frames from an access port. Returns the egress ports, and the last octets of the
    /// destination VTEPs.
    fn port_sends(&mut self, port: u16, frames: &[Owned]) -> (Vec<u16>, Vec<u8>) {
        self.worker.batch.clear();
        self.worker.out.clear();
        for frame in frames {
            assert!(self.worker.batch.push(leaked(frame)));
        }
        let Worker { pipeline, batch, out } = &mut self.worker;
        pipeline.switch(batch, port, &self.snapshot, self.now, out);
        let sent = self.settled();
        if let [frame] = frames {
            self.is_explained(port, frame, &sent);
        }
        sent
    }

    /// The explanation agrees with what was sent, if the bridge has learned the frame's source.
    fn is_explained(&mut self, port: u16, frame: &Owned, sent: &(Vec<u16>, Vec<u8>)) {
        let source = frame.data.get(6..12).and_then(|source| source.try_into().ok());
        if source.and_then(|source| self.location(source)) != Some(Location::Port(port)) {
            return;
        }
        let stations = self.worker.pipeline.stations(self.now);
        let table = self.snapshot.vni(common::SLOT).unwrap();
        let access = [Vni::try_from(VNI).unwrap(); 3].into_iter();
        let access = (access, stations.as_slice());
        let explained = explain_switched(
            &frame.frame(),
            table,
            access,
            &self.snapshot,
            (self.now, &path::Pins::default()),
        );
        let explained = match explained {
            Explanation::Dropped(_) => (Vec::new(), Vec::new()),
            Explanation::Forwarded(forwarded) => {
                let sent = forwarded.copies.into_iter().filter(|copy| copy.route.is_ok());
                let last = |address: IpAddr| match address {
                    IpAddr::V4(address) => address.octets()[3],
                    IpAddr::V6(_) => 0,
                };
                (forwarded.ports, sent.map(|copy| last(copy.remote.unwrap())).collect())
            }
        };
        assert_eq!(explained, *sent);
    }

    fn leaf_2_sends(&mut self, frame: Owned) -> (Vec<u16>, Vec<u8>) {
        self.worker.decapsulate_at(&[frame], &self.snapshot, self.now);
        self.settled()
    }

    fn settled(&mut self) -> (Vec<u16>, Vec<u8>) {
        self.worker.assert_balance(self.worker.out.len());
        let (mut ports, mut vteps) = (Vec::new(), Vec::new());
        for transmit in &self.worker.out {
            match transmit.to {
                Destination::Port(port) => ports.push(port),
                Destination::Uplink { .. } => {
                    vteps.push(open(&transmit.to_vec(&self.worker.batch)).ip.destination[3]);
                }
                Destination::Bridge | Destination::Host(_) => {
                    panic!("there is no bridge of the kernel")
                }
            }
            self.worker.pipeline.account_frame(transmit, Ok(()));
        }
        (ports, vteps)
    }

    fn location(&mut self, station: [u8; 6]) -> Option<Location> {
        let stations = self.worker.pipeline.stations(self.now);
        stations.into_iter().find(|known| known.mac == MacAddr(station)).map(|known| known.location)
    }

    fn count(&self, count: fn(&pipeline::counters::StationCounters) -> u64) -> u64 {
        count(&self.worker.pipeline.counters().stations)
    }
}

#[test]
fn unknown_unicast_is_flooded_with_split_horizon() {
    let mut switch = Switch::new();
    for to in [mac(2), BROADCAST] {
        assert_eq!(switch.port_sends(1, &[frame(to, mac(1))]), (vec![0, 2], vec![2, 3]));
        assert_eq!(switch.leaf_2_sends(tunnelled(to, mac(9))), (vec![0, 1, 2], vec![]));
    }
    assert_eq!(switch.worker.pipeline.counters().dropped_in_all(), 0);
}

#[test]
fn a_station_is_where_it_was_heard_last() {
    let mut switch = Switch::new();
    switch.port_sends(1, &[frame(BROADCAST, mac(1))]);
    assert_eq!(switch.location(mac(1)), Some(Location::Port(1)));
    assert_eq!(switch.port_sends(0, &[frame(mac(1), mac(2))]), (vec![1], vec![]));
    assert_eq!(switch.leaf_2_sends(tunnelled(mac(1), mac(3))), (vec![1], vec![]));
    // A station moves from a port to a VTEP and back.
    assert_eq!(switch.port_sends(0, &[frame(mac(3), mac(2))]), (vec![], vec![2]));
    switch.leaf_2_sends(tunnelled(BROADCAST, mac(1)));
    assert_eq!(switch.location(mac(1)), Some(Location::Vtep(VtepIndex(0), LEAF_2.into())));
    assert_eq!(switch.port_sends(0, &[frame(mac(1), mac(2))]), (vec![], vec![2]));
    // The destination is where the frame came from.
    assert_eq!(switch.leaf_2_sends(tunnelled(mac(3), mac(1))), (vec![], vec![]));
    assert_eq!(switch.port_sends(0, &[frame(mac(2), mac(4))]), (vec![], vec![]));
    assert_eq!(switch.worker.dropped(DropReason::SamePort), 2);
}

#[test]
fn a_silent_station_is_forgotten() {
    let mut switch = Switch::new();
    // Twice, because the last frame determines the age.
    for _ in 0..2 {
        switch.port_sends(1, &[frame(BROADCAST, mac(1))]);
        switch.now += AGEING - Duration::from_millis(1);
    }
    assert_eq!(switch.port_sends(0, &[frame(mac(1), mac(2))]), (vec![1], vec![]));
    switch.now += Duration::from_millis(1);
    assert_eq!(switch.port_sends(0, &[frame(mac(1), mac(2))]), (vec![1, 2], vec![2, 3]));
    assert_eq!(switch.location(mac(1)), None);
}

#[test]
fn made_up_addresses_find_no_room_until_others_are_forgotten() {
    let mut switch = Switch::with(&Leaf { fdb: Vec::new(), ..Leaf::one() }, 3, 5);
    for number in 1..=5 {
        assert_eq!(
            switch.port_sends(0, &[frame(BROADCAST, mac(number))]).0,
            [1, 2],
            "forwarded all the same"
        );
    }
    assert_eq!((switch.count(|c| c.new.get()), switch.count(|c| c.too_many.get())), (3, 2));
    assert_eq!(switch.worker.pipeline.stations(switch.now).len(), 3);
    switch.now += AGEING;
    switch.port_sends(0, &[frame(BROADCAST, mac(9))]);
    assert_eq!(switch.location(mac(9)), Some(Location::Port(0)));
    assert_eq!(switch.worker.pipeline.stations(switch.now).len(), 1);
}

#[test]
fn an_address_that_moves_too_often_stays_until_the_second_is_over() {
    let mut switch = Switch::with(&Leaf { fdb: Vec::new(), ..Leaf::one() }, 50, 2);
    for port in [0, 1, 0, 1, 2] {
        switch.port_sends(port, &[frame(BROADCAST, mac(1))]);
    }
    assert_eq!(switch.location(mac(1)), Some(Location::Port(0)), "the second move was the last");
    assert_eq!((switch.count(|c| c.moved.get()), switch.count(|c| c.flapping.get())), (2, 2));
    switch.now += Duration::from_secs(1);
    switch.port_sends(2, &[frame(BROADCAST, mac(1))]);
    assert_eq!(switch.location(mac(1)), Some(Location::Port(2)));
}

#[test]
fn what_the_configuration_fixes_nobody_else_may_be() {
    let mut switch = Switch::with(&Leaf::one(), 50, 5);
    assert_eq!(switch.port_sends(0, &[frame(HOST, mac(1))]), (vec![], vec![2]));
    assert_eq!(switch.port_sends(0, &[frame(BROADCAST, HOST)]), (vec![], vec![]));
    assert_eq!(switch.worker.dropped(DropReason::StaticSource), 1);
    assert_eq!(switch.leaf_2_sends(tunnelled(BROADCAST, HOST)).0, [0, 1, 2]);
    assert_eq!(switch.location(HOST), None, "not learned");
}

#[test]
fn what_no_bridge_forwards_goes_nowhere() {
    let mut switch = Switch::new();
    let reserved = [0x01, 0x80, 0xc2, 0, 0, 0x0e];
    assert_eq!(switch.port_sends(0, &[frame(reserved, mac(1))]), (vec![], vec![]));
    assert_eq!(switch.worker.dropped(DropReason::ReservedGroup), 1);
    for source in [BROADCAST, [0; 6]] {
        assert_eq!(switch.port_sends(0, &[frame(BROADCAST, source)]), (vec![], vec![]));
    }
    assert_eq!(switch.worker.dropped(DropReason::InvalidSource), 2);
}

#[test]
fn a_strangers_frames_are_dropped() {
    let mut switch = Switch::new();
    let mut strange = tunnelled(BROADCAST, mac(1));
    strange.data[26..30].copy_from_slice(&[10, 0, 0, 99]);
    let sum = wire::checksum::checksum(&{
        strange.data[24..26].fill(0);
        strange.data[14..34].to_vec()
    });
    strange.data[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(switch.leaf_2_sends(strange), (vec![], vec![]));
    assert_eq!(switch.worker.dropped(DropReason::UnknownVtep), 1);
}

#[test]
fn a_super_frame_is_whole_for_ports_and_cut_for_vteps() {
    let mut switch = Switch::with(&Leaf { fdb: Vec::new(), ..Leaf::one() }, 50, 5);
    let mut data = tcp(false, 0, &[5; 2500]);
    leave_to_card(&mut data, UDP_AT, 16);
    let whole = Owned::plain(data).partial(UDP_AT, 16).gso(GsoKind::TcpV4, 1000);
    let (ports, vteps) = switch.port_sends(0, std::slice::from_ref(&whole));
    assert_eq!((ports, vteps.len()), (vec![1, 2], 6));
    let to_ports: Vec<&TxFrame> = switch.worker.out.iter().take(2).collect();
    for transmit in to_ports {
        assert_eq!(transmit.to_vec(&switch.worker.batch), whole.data);
        assert_eq!((transmit.offload, transmit.segments), (whole.offload, 3));
    }
}

proptest! {
    /// For all sequences of frames: no frame returns to where it came from or is lost without being
    /// counted, and the limits of learned stations hold.
    #[test]
    fn the_accounts_are_even(steps in prop::collection::vec((0u16..4, 0u8..8, 0u8..8, 0u64..4000), 1..60)) {
        let mut switch = Switch::with(&Leaf { fdb: Vec::new(), ..Leaf::one() }, 4, 3);
        for (port, to, from, later) in steps {
            switch.now += Duration::from_millis(later);
            let to = if to == 0 { BROADCAST } else { mac(to) };
            let (ports, vteps) = match port {
                3 => switch.leaf_2_sends(tunnelled(to, mac(from))),
                port => switch.port_sends(port, &[frame(to, mac(from))]),
            };
            prop_assert!(!ports.contains(&port));
            prop_assert!(port != 3 || vteps.is_empty());
            prop_assert!(switch.worker.pipeline.stations(switch.now).len() <= 4);
        }
    }
}

/// Two workers share a limit. The stations of one age out while it sees no frames.
#[test]
fn a_quiet_bridge_makes_room_for_the_stations_of_others() {
    let all = std::sync::Arc::default();
    let mut switches = [(); 2].map(|()| {
        let mut switch = Switch::new();
        let limits = BridgeLimits { total: 3, moves: 5 };
        let bridge = Bridge::new(vec![Switch::settings(50); 3], limits).sharing(&all);
        switch.worker.pipeline.set_bridge(bridge);
        switch
    });
    let [quiet, busy] = &mut switches;
    for host in 1..=3 {
        quiet.port_sends(0, &[frame([2, 9, 9, 9, 9, 9], [2, 0, 0, 0, 0, host])]);
    }
    let host = [2, 0, 0, 0, 0, 4];
    busy.port_sends(0, &[frame([2, 9, 9, 9, 9, 9], host)]);
    assert_eq!(busy.location(host), None, "the limit is reached");
    for switch in [&mut *quiet, &mut *busy] {
        switch.now += AGEING + Duration::from_secs(10);
    }
    assert_eq!(quiet.worker.pipeline.age(quiet.now), Some(Duration::from_secs(10)));
    assert_eq!(quiet.worker.pipeline.age(quiet.now), None, "all are gone");
    busy.port_sends(0, &[frame([2, 9, 9, 9, 9, 9], host)]);
    assert_eq!(busy.location(host), Some(Location::Port(0)));
}
