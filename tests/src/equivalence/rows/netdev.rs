//! Rows about the vxlan netdev: its options, its FDB, its queueing discipline, and path MTU.

use crate::equivalence::stimulus::{Inner, Kind, PEER, Stimulus};
use crate::equivalence::table::Row;
use crate::equivalence::wires::Wire;

macro_rules! option {
    ($option:literal) => {
        Row::new($option, concat!("remake ", $option), "remake")
    };
}

/// Options of the vxlan netdev.
pub const OPTIONS: &[Row] = &[
    option!("ttl 5"),
    option!("ttl inherit").also(BITS),
    option!("tos 0x40"),
    option!("tos inherit").also(BITS),
    option!("df set"),
    option!("df inherit").also(BITS),
    option!("noudpcsum"),
    // The fragments of a packet arrive in one batch, so vtepd could group them into a super-frame.
    Row::new("noudpcsum and 1,000 bytes", "remake noudpcsum; ip link set vx10 mtu 1000", "remake").also(LONG),
    option!("gbp").harmless(),
    // The netdev stays with the kernel. vtepd must not set the mark for a route lookup per frame,
    // because with gbp the mark is the group policy.
    Row::new(
        "gbp with an entry of another VNI",
        "remake gbp; bridge fdb replace 02:00:00:00:0a:62 dev vx10 dst 10.0.0.3 vni 12 self static",
        "remake",
    ),
    option!("gpe").optional(),
    option!("rsc").harmless(),
    option!("l2miss").harmless(),
    option!("proxy").optional(),
    option!("remcsumrx").harmless().optional(),
    option!("udp6zerocsumtx").harmless(),
    option!("dev up2").optional(),
    option!("maxaddress 100").harmless(),
    Row::new(
        "another UDP port",
        "ip link del vx10; ip link add vx10 type vxlan id 10 local 10.0.0.1 dstport 8472 $VXLAN; enslave",
        "remake",
    ),
    Row::new(
        "another VNI",
        "ip link del vx10; ip link add vx10 type vxlan id 11 local 10.0.0.1 dstport 4789 $VXLAN; enslave",
        "remake",
    ),
    Row::new(
        "no local address",
        "ip link del vx10; ip link add vx10 type vxlan id 10 dstport 4789 $VXLAN; enslave",
        "remake",
    ),
    Row::new(
        "made in another namespace",
        "ip link del vx10; ip -n $OUT link add vx10 type vxlan id 10 local 10.0.0.1 dstport 4789 $VXLAN
         ip -n $OUT link set vx10 netns $LEAF; enslave",
        "remake",
    ),
    Row::new(
        "a queueing discipline",
        "tc qdisc add dev vx10 root pfifo limit 1000",
        "tc qdisc del dev vx10 root",
    )
    .harmless(),
    Row::new(
        "a queueing discipline that lets nothing through",
        "tc qdisc add dev vx10 root tbf rate 8bit burst 10 limit 10",
        "tc qdisc del dev vx10 root",
    )
    .optional(),
    Row::new("of 1,000 bytes", "ip link set vx10 mtu 1000", "ip link set vx10 mtu $MTU").also(LONG),
    Row::new("gone", "ip link del vx10", "ip link add vx10 type vxlan id 1; remake"),
];

/// Frames with the header fields that `inherit` copies.
const BITS: &[Stimulus] = &[
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).tos(0x4a).ttl(9).whole()),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).tos(0xb9).ttl(200)),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).tos(3).tags(&[0x8100])),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).tos(0x8a).ttl(7).whole().tags(&[0x8100])),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).tos(0x8a).ttl(7).whole().tags(&[0x88a8, 0x8100])),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).tos(0x8a).ttl(7).whole().tags(&[0x9100])),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).tos(0x8a).kind(Kind::Ipv6).tags(&[0x8100])),
];

/// Frames longer than 1,500 bytes.
const LONG: &[Stimulus] = &[
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).length(2000)),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).length(2000).whole()),
];

/// Entries of the vxlan netdev's FDB.
pub const FDB: &[Row] = &[
    Row::new("no flood list", "bridge fdb del 00:00:00:00:00:00 dev vx10 dst 10.0.0.2", "entries"),
    Row::new(
        "a station behind the other VTEP",
        "bridge fdb replace 02:00:00:00:0a:01 dev vx10 dst 10.0.0.3 self static
         bridge fdb replace 02:00:00:00:0a:62 dev vx10 dst 10.0.0.3 self static",
        "bridge fdb del 02:00:00:00:0a:01 dev vx10 self; bridge fdb del 02:00:00:00:0a:62 dev vx10 self",
    ),
    Row::new(
        "a station by another port",
        "bridge fdb replace 02:00:00:00:0a:62 dev vx10 dst 10.0.0.3 port 8472 self static",
        "bridge fdb del 02:00:00:00:0a:62 dev vx10 self",
    ),
    Row::new(
        "a station by another VNI",
        "bridge fdb replace 02:00:00:00:0a:62 dev vx10 dst 10.0.0.3 vni 12 self static",
        "bridge fdb del 02:00:00:00:0a:62 dev vx10 self",
    ),
    Row::new(
        "a multicast group's entry",
        "bridge fdb append 01:00:5e:01:01:01 dev vx10 dst 10.0.0.3 self static",
        "bridge fdb del 01:00:5e:01:01:01 dev vx10 self",
    ),
    Row::new(
        "an entry of the netdev's own VTEP",
        "bridge fdb replace 02:00:00:00:0a:62 dev vx10 dst 10.0.0.1 self static",
        "bridge fdb del 02:00:00:00:0a:62 dev vx10 self",
    ),
];

/// A path MTU of 1,500 bytes.
pub const PATH_MTU: &[Row] = &[
    Row::new("a router that says 1,500", "true", "true").also(TOO_BIG).harmless(),
    Row::new("an uplink of 1,500 bytes", "ip link set up1 mtu 1500", "ip link set up1 mtu 9000")
        .also(LONG)
        .one_uplink(),
    Row::new(
        "a route with a locked MTU",
        "ip route replace 10.0.0.2 via 10.1.1.2 dev up1 mtu lock 1500",
        "ip route del 10.0.0.2; underlay",
    )
    .also(LONG),
];

const TOO_BIG: &[Stimulus] = &[
    Stimulus::TooBig { wire: Wire::U1, to: PEER, mtu: 1500 },
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).length(2000)),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).length(2000).whole()),
    Stimulus::Host(Wire::H1, Inner::udp(1, 4).length(2000).whole()),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).length(1300).whole()),
];
