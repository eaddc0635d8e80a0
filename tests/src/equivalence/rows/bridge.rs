//! Rows about the bridge and its ports.

use crate::equivalence::stimulus::{Inner, PEER2, Stimulus, Tunnel};
use crate::equivalence::table::Row;
use crate::equivalence::wires::Wire;

macro_rules! flag {
    ($device:literal, $flag:literal, $on:literal, $off:literal) => {
        Row::new(
            concat!($flag, " ", $on, " on ", $device),
            concat!("bridge link set dev ", $device, " ", $flag, " ", $on),
            concat!("bridge link set dev ", $device, " ", $flag, " ", $off),
        )
    };
}

/// Settings of the vxlan netdev as a bridge port.
pub const PORT_OF_VXLAN: &[Row] = &[
    flag!("vx10", "flood", "off", "on"),
    flag!("vx10", "mcast_flood", "off", "on"),
    flag!("vx10", "bcast_flood", "off", "on"),
    flag!("vx10", "hairpin", "on", "off").also(HAIRPIN),
    flag!("vx10", "state", "0", "3"),
    flag!("vx10", "state", "2", "3"),
    Row::new(
        "neighbours suppressed",
        "ip neigh replace 192.168.10.255 lladdr 02:00:00:00:0a:03 dev br10 nud permanent
         bridge link set dev vx10 neigh_suppress on",
        "bridge link set dev vx10 neigh_suppress off; ip neigh del 192.168.10.255 dev br10",
    ),
    Row::new(
        "locked, without entries",
        "bridge link set dev vx10 locked on; bridge fdb del 02:00:00:00:0a:03 dev vx10 master",
        "bridge link set dev vx10 locked off; entries",
    )
    .optional(),
    Row::new(
        "isolated like a host port",
        "bridge link set dev vx10 isolated on; bridge link set dev hp1 isolated on",
        "bridge link set dev vx10 isolated off; bridge link set dev hp1 isolated off",
    ),
    Row::new("out of the bridge", "ip link set vx10 nomaster", "enslave"),
    Row::new("down", "ip link set vx10 down", "enslave"),
];

/// A frame from one VTEP to a station behind the other.
const HAIRPIN: &[Stimulus] = &[Stimulus::Tunnel(Tunnel::from(Wire::U2, PEER2), Inner::udp(4, 3))];

/// Settings of a host port.
pub const PORT_OF_A_HOST: &[Row] = &[
    flag!("hp1", "flood", "off", "on"),
    flag!("hp2", "flood", "off", "on"),
    flag!("hp1", "bcast_flood", "off", "on"),
    flag!("hp1", "learning", "off", "on").harmless(),
    flag!("hp1", "state", "0", "3"),
    flag!("hp1", "isolated", "on", "off").harmless(),
    flag!("hp1", "locked", "on", "off").optional(),
    flag!("hp1", "hairpin", "on", "off"),
    Row::new("down", "ip link set hp1 down", "ip link set hp1 up; forwarding hp1"),
    Row::new(
        "out of the bridge",
        "ip link set hp1 nomaster",
        "ip link set hp1 master br10; forwarding hp1",
    ),
    Row::new("of 1,500 bytes", "ip link set hp1 mtu 1500", "ip link set hp1 mtu 8950").also(LONG),
    Row::new(
        "a station that has moved",
        // Sticky, so that frames from the netdev do not move the station back.
        "bridge fdb replace 02:00:00:00:0a:03 dev hp2 master static sticky",
        "bridge fdb del 02:00:00:00:0a:03 dev hp2 master; entries",
    ),
    Row::new(
        "a station that is local",
        "bridge fdb replace 02:00:00:00:0a:03 dev br10 self permanent",
        "bridge fdb del 02:00:00:00:0a:03 dev br10 self; entries",
    ),
];

/// Frames longer than 1,500 bytes, in both directions.
const LONG: &[Stimulus] = &[
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).length(2000)),
    Stimulus::Tunnel(Tunnel::from(Wire::U2, PEER2), Inner::udp(4, 1).length(2000)),
];

/// Settings of the bridge.
pub const BRIDGE: &[Row] = &[
    Row::new("down", "ip link set br10 down", "ip link set br10 up; entries"),
    Row::new("of 1,500 bytes", "ip link set br10 mtu 1500", "ip link set br10 mtu 8950")
        .also(LONG)
        .harmless(),
    Row::new(
        "that groups snoops",
        "ip link set br10 type bridge mcast_snooping 1",
        "ip link set br10 type bridge mcast_snooping 0",
    )
    .harmless(),
    Row::new(
        "with an address",
        "ip addr add 192.168.10.254/24 dev br10",
        "ip addr del 192.168.10.254/24 dev br10",
    )
    .harmless(),
];
