//! A leaf of a large fabric, as the messages that its kernel and zebra send.

use std::net::{IpAddr, Ipv4Addr};

use control::{Namespace, Settings, State};
use netlink::{
    Address, FdbEntry, Link, LinkKind, Message, Neighbour, Operation, Route, RouteNextHop,
    RouteTarget, Vxlan,
};
use wire::MacAddr;

/// The size of a fabric.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The number of remote MAC addresses, distributed over VNIs and VTEPs in turn.
    pub macs: u32,
    /// The number of VNIs, each with a bridge and a vxlan netdev. At most 4,094 are supported.
    pub vnis: u32,
    /// The number of remote VTEPs.
    pub vteps: u32,
    /// The number of routes to /32 prefixes. The first are those to the VTEPs.
    pub routes: u32,
    /// The number of uplinks. Every route has a next hop through each.
    pub uplinks: u32,
}

/// The size for all measurements.
pub const LARGE: Scale =
    Scale { macs: 100_000, vnis: 4000, vteps: 1000, routes: 10_000, uplinks: 16 };

const BRIDGES: u32 = 10_000;
const VXLANS: u32 = 20_000;
const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// The address of the remote VTEP with this number.
#[must_use]
pub const fn vtep(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a01_0000 + number)
}

/// The remote MAC address with this number.
#[must_use]
pub const fn mac(number: u32) -> MacAddr {
    let [a, b, c, d] = number.to_be_bytes();
    MacAddr([2, 1, a, b, c, d])
}

fn link(ifindex: u32, name: String, kind: LinkKind, master: Option<u32>) -> Message {
    let [a, b, c, d] = ifindex.to_be_bytes();
    let link = Link {
        ifindex,
        name,
        hardware_type: 1,
        flags: 0x1_0043,
        mtu: 9000,
        mac: Some(MacAddr([0xaa, 0, a, b, c, d])),
        carrier: true,
        operstate: 6,
        kind,
        master,
        ..Link::default()
    };
    Message::Link(Operation::New, link)
}

/// The link message of the uplink with this number, with or without a carrier.
#[must_use]
pub fn uplink(number: u32, carrier: bool) -> Message {
    match link(number + 2, format!("up{number}"), LinkKind::Veth, None) {
        Message::Link(operation, link) => {
            let flags = if carrier { link.flags } else { link.flags & !0x1_0000 };
            Message::Link(operation, Link { flags, carrier, ..link })
        }
        other => other,
    }
}

const fn gateway(uplink: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0x0aff_0001 + uplink * 256))
}

/// The neighbour message of the gateway behind an uplink.
#[must_use]
pub fn neighbour(uplink: u32, mac: MacAddr) -> Message {
    let (ifindex, address) = (uplink + 2, gateway(uplink));
    Message::Neighbour(
        Operation::New,
        Neighbour { ifindex, address, mac: Some(mac), state: 2, flags: 0 },
    )
}

/// The route message with this number, over `uplinks` uplinks.
#[must_use]
pub fn route(number: u32, uplinks: u32) -> Message {
    let hop = |uplink| RouteNextHop {
        ifindex: uplink + 2,
        gateway: Some(gateway(uplink)),
        weight: 1,
        flags: 0,
        vni: None,
        encapsulation: None,
    };
    let via = RouteTarget::NextHops((0..uplinks).map(hop).collect());
    let route = Route::new(IpAddr::V4(vtep(number)), 32, via);
    Message::Route(Operation::New, Route { priority: 20, replace: true, ..route })
}

impl Scale {
    /// A state with links, routes and neighbours, but without MAC addresses.
    #[must_use]
    pub fn state(&self) -> State {
        let mut state = State::new(Settings::default(), Namespace::default());
        let mut say = |message| state.apply_kernel(message);
        say(Message::Address(
            Operation::New,
            Address { ifindex: 1, address: IpAddr::V4(LOCAL), prefix_length: 32 },
        ));
        for number in 0..self.uplinks {
            say(uplink(number, true));
            say(neighbour(number, MacAddr([0xee, 0, 0, 0, 0, number as u8])));
        }
        for vni in 0..self.vnis {
            let bridge = LinkKind::Bridge(netlink::Bridge::default());
            say(link(BRIDGES + vni, format!("br{vni}"), bridge, None));
            let vxlan = Vxlan {
                id: 1 + vni,
                local: Some(IpAddr::V4(LOCAL)),
                destination_port: 4789,
                udp_checksum: true,
                ..Vxlan::default()
            };
            let kind = LinkKind::Vxlan(Box::new(vxlan));
            say(link(VXLANS + vni, format!("vx{vni}"), kind, Some(BRIDGES + vni)));
        }
        (0..self.routes).for_each(|number| say(route(number, self.uplinks)));
        state
    }

    /// The kernel's messages when a MAC address appears at, or moves to, a VTEP: for the netdev's
    /// FDB and for the bridge's.
    #[must_use]
    pub fn remote(&self, number: u32, at: u32) -> [Message; 2] {
        let vni = number % self.vnis;
        let own = FdbEntry {
            ifindex: VXLANS + vni,
            mac: mac(number),
            destination: Some(IpAddr::V4(vtep(at))),
            state: 0x40,
            flags: 0x12,
            ..FdbEntry::default()
        };
        let bridged =
            FdbEntry { master: Some(BRIDGES + vni), destination: None, flags: 0x10, ..own.clone() };
        [own, bridged].map(|entry| Message::Fdb(Operation::New, entry))
    }

    /// zebra's message for the same event.
    #[must_use]
    pub fn from_zebra(&self, number: u32, at: u32) -> Message {
        let vni = number % self.vnis;
        let entry = FdbEntry {
            ifindex: VXLANS + vni,
            mac: mac(number),
            destination: Some(IpAddr::V4(vtep(at))),
            master: Some(BRIDGES + vni),
            source_vni: Some(1 + vni),
            state: 0x40,
            flags: 0x16,
            ..FdbEntry::default()
        };
        Message::Fdb(Operation::New, entry)
    }

    /// The VTEP that has a MAC address initially.
    #[must_use]
    pub const fn home(&self, number: u32) -> u32 {
        number % self.vteps
    }

    /// Applies the messages of the kernel and zebra for all MAC addresses, and builds a snapshot
    /// after every 10,000.
    pub fn tell_macs(&self, state: &mut State) {
        let now = std::time::Instant::now();
        for number in 0..self.macs {
            let at = self.home(number);
            self.remote(number, at).into_iter().for_each(|message| state.apply_kernel(message));
            state.apply_fpm(vec![self.from_zebra(number, at)], now);
            if number % 10_000 == 0 {
                drop(state.build());
            }
        }
        drop(state.build());
    }
}
