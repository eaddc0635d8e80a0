//! Rows of unusual frames, on a leaf with default settings.

use std::net::Ipv4Addr;

use crate::equivalence::stimulus::{BROADCAST, Damage, Inner, Kind, PEER, Stimulus, Tunnel};
use crate::equivalence::table::Row;
use crate::equivalence::wires::Wire;

const fn from(source: [u8; 4]) -> Stimulus {
    let [a, b, c, d] = source;
    Stimulus::Tunnel(Tunnel::from(Wire::U1, Ipv4Addr::new(a, b, c, d)), Inner::udp(77, 1))
}

const fn from_host(inner: Inner) -> Stimulus {
    Stimulus::Host(Wire::H1, inner)
}

const fn from_peer(inner: Inner) -> Stimulus {
    Stimulus::Tunnel(Tunnel::from(Wire::U1, PEER), inner)
}

const OUT: Inner = Inner::udp(1, 3);
const IN: Inner = Inner::udp(3, 1);

const fn row(name: &'static str, frames: &'static [Stimulus]) -> Row {
    Row::new(name, "", "").harmless().also(frames)
}

/// Outer source addresses.
pub const SOURCES: &[Row] = &[
    row("an outer source of 0.0.0.0", &[from([0, 0, 0, 0])]),
    row("an outer source of 0.0.0.9", &[from([0, 0, 0, 9])]),
    row("an outer source of 127.0.0.1", &[from([127, 0, 0, 1])]),
    row("an outer source of 224.0.0.5", &[from([224, 0, 0, 5])]),
    row("an outer source of 255.255.255.255", &[from([255; 4])]),
    // A documented difference: class E is not unicast (RFC 1112 section 4), so vtepd drops it like
    // other martian sources. Linux accepts it if rp_filter is off.
    row("an outer source of 240.0.0.1", &[from([240, 0, 0, 1])]).refused(),
    row("the leaf's own address as outer source", &[from([10, 0, 0, 1])]),
    row("an uplink's own address as outer source", &[from([10, 1, 1, 1])]),
    row("the other uplink's address as outer source", &[from([10, 1, 2, 1])]),
    row("an uplink's broadcast address as outer source", &[from([10, 1, 1, 255])]),
    row("a VTEP that nobody knows", &[from([10, 0, 0, 9])]),
    row("another station of a VTEP", &[from([10, 0, 0, 2])]),
];

const fn tunnel(tunnel: Tunnel) -> Stimulus {
    Stimulus::Tunnel(tunnel, Inner::udp(3, 1))
}

const PEERS: Tunnel = Tunnel::from(Wire::U1, PEER);

/// Other fields of the outer headers.
pub const OUTER: &[Row] = &[
    row(
        "to an uplink's address",
        &[tunnel(Tunnel { destination: Ipv4Addr::new(10, 1, 1, 1), ..PEERS })],
    ),
    row(
        "to the other uplink's address",
        &[tunnel(Tunnel { destination: Ipv4Addr::new(10, 1, 2, 1), ..PEERS })],
    ),
    row(
        "to somebody else's address",
        &[tunnel(Tunnel { destination: Ipv4Addr::new(10, 0, 0, 9), ..PEERS })],
    ),
    // With a route, because the kernel limits its ICMP errors about missing routes to five, and then
    // one a second, on the whole machine (`net.ipv4.route.error_burst`, ip_error() in
    // net/ipv4/route.c).
    Row::new(
        "to somebody else's address, and the leaf is a router",
        "sysctl -qw net.ipv4.ip_forward=1; ip route add 10.0.0.9 via 10.1.2.2 dev up2",
        "sysctl -qw net.ipv4.ip_forward=0; ip route del 10.0.0.9",
    )
    .also(&[tunnel(Tunnel { destination: Ipv4Addr::new(10, 0, 0, 9), ..PEERS })]),
    row("to a broadcast address", &[tunnel(Tunnel { destination: Ipv4Addr::BROADCAST, ..PEERS })]),
    row(
        "to a multicast group",
        &[tunnel(Tunnel { destination: Ipv4Addr::new(239, 1, 1, 1), ..PEERS })],
    ),
    row("to another UDP port", &[tunnel(Tunnel { port: 4790, ..PEERS })]),
    row("of another VNI", &[tunnel(Tunnel { vni: 11, ..PEERS })]),
    row("of VNI 0", &[tunnel(Tunnel { vni: 0, ..PEERS })]),
    row("without the I flag", &[tunnel(Tunnel { flip: 0x0800_0000_0000_0000, ..PEERS })]),
    row("with a reserved flag", &[tunnel(Tunnel { flip: 0x0100_0000_0000_0000, ..PEERS })]),
    row("with reserved bits behind the flags", &[tunnel(Tunnel { flip: 1 << 40, ..PEERS })]),
    row("with reserved bits behind the VNI", &[tunnel(Tunnel { flip: 1, ..PEERS })]),
    row("congested", &[tunnel(Tunnel { tos: 3, ..PEERS })]),
    row(
        "congested, around what can be marked",
        &[Stimulus::Tunnel(Tunnel { tos: 3, ..PEERS }, Inner::udp(3, 1).tos(2))],
    ),
    // The kernel does not look behind the tag: such frames are neither dropped nor marked
    // (IP_ECN_decapsulate(), include/net/inet_ecn.h).
    row(
        "congested, around tagged frames",
        &[
            Stimulus::Tunnel(Tunnel { tos: 3, ..PEERS }, Inner::udp(3, 1).tags(&[0x8100])),
            Stimulus::Tunnel(Tunnel { tos: 3, ..PEERS }, Inner::udp(3, 1).tos(2).tags(&[0x8100])),
            Stimulus::Tunnel(Tunnel { tos: 3, ..PEERS }, Inner::udp(3, 1).tos(2).tags(&[0x88a8])),
        ],
    ),
];

/// VLAN tags of inner frames.
pub const TAGS: &[Row] = &[
    row("a customer's tag", &[from_host(OUT.tags(&[0x8100])), from_peer(IN.tags(&[0x8100]))]),
    row("a provider's tag", &[from_host(OUT.tags(&[0x88a8])), from_peer(IN.tags(&[0x88a8]))]),
    row("an old provider's tag", &[from_host(OUT.tags(&[0x9100])), from_peer(IN.tags(&[0x9100]))]),
    row(
        "two tags",
        &[from_host(OUT.tags(&[0x88a8, 0x8100])), from_peer(IN.tags(&[0x88a8, 0x8100]))],
    ),
    row("three tags", &[from_host(OUT.tags(&[0x8100; 3])), from_peer(IN.tags(&[0x8100; 3]))]),
];

const fn damaged(damage: Damage) -> [Stimulus; 4] {
    [
        from_host(OUT.damage(damage)),
        from_host(Inner::udp(1, BROADCAST).damage(damage)),
        from_peer(IN.damage(damage)),
        from_peer(Inner::udp(3, BROADCAST).damage(damage)),
    ]
}

const fn empty_behind(tags: &'static [u16]) -> [Stimulus; 4] {
    [
        from_host(OUT.damage(Damage::Empty).tags(tags)),
        from_host(Inner::udp(1, BROADCAST).damage(Damage::Empty).tags(tags)),
        from_peer(IN.damage(Damage::Empty).tags(tags)),
        from_peer(Inner::udp(3, BROADCAST).damage(Damage::Empty).tags(tags)),
    ]
}

/// Damaged and unusual inner frames.
pub const DAMAGE: &[Row] = &[
    row("a short header", &damaged(Damage::Short)),
    row("an unknown version", &damaged(Damage::Version)),
    row("a header length that is too small", &damaged(Damage::HeaderLength)),
    row("a total length beyond the frame", &damaged(Damage::TooLong)),
    row("bytes behind the packet", &damaged(Damage::Trailing)),
    row("a wrong header checksum", &damaged(Damage::Checksum)),
    row("nothing behind the EtherType", &damaged(Damage::Empty)),
    row("nothing behind a tag", &empty_behind(&[0x8100])),
    row("nothing behind a provider's tag", &empty_behind(&[0x88a8])),
    row("nothing behind two tags", &empty_behind(&[0x88a8, 0x8100])),
    row("a frame to itself", &[from_host(Inner::udp(1, 1)), from_peer(Inner::udp(3, 3))]),
    row(
        "a multicast source",
        &[from_host(Inner::udp(BROADCAST, 3)), from_peer(Inner::udp(BROADCAST, 1))],
    ),
    row("a group's address from a VTEP", &[from_peer(Inner::udp(3, 254))]),
    row("the longest frame", &[from_host(OUT.length(8922)), from_peer(IN.length(8922))]),
    row("a frame too long for the overlay", &[from_peer(IN.length(8940))]),
    row(
        "RoCE with many queue pairs",
        &[
            from_host(OUT.kind(Kind::Roce(1))),
            from_host(OUT.kind(Kind::Roce(2))),
            from_host(OUT.kind(Kind::Roce(3))),
            from_host(OUT.kind(Kind::Roce(0xff_ffff))),
        ],
    ),
];

/// The bridge parses IP headers by default if the kernel has `br_netfilter`.
pub const BRIDGE_FILTER: &[Row] = &[Row::new(
    "the bridge calls no iptables",
    "for family in ip ip6 arp; do sysctl -qw net.bridge.bridge-nf-call-${family}tables=0; done",
    "for family in ip ip6 arp; do sysctl -qw net.bridge.bridge-nf-call-${family}tables=1; done",
)
.also(&damaged(Damage::Version))
.optional()];
