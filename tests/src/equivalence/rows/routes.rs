//! Rows about routing: rules, routes, next hops, addresses and IPsec policies.

use crate::equivalence::stimulus::{Inner, Stimulus};
use crate::equivalence::table::Row;
use crate::equivalence::wires::Wire;

/// Routing rules. Table 100 has a route to the first VTEP over the second uplink.
pub const RULES: &[Row] = &[
    Row::new(
        "a rule by destination",
        "ip route add 10.0.0.2 via 10.1.2.2 dev up2 table 100; ip rule add to 10.0.0.2 lookup 100",
        "ip rule del to 10.0.0.2 lookup 100; ip route flush table 100",
    ),
    Row::new(
        "a rule by source",
        "ip route add 10.0.0.2 via 10.1.2.2 dev up2 table 100; ip rule add from 10.0.0.1 lookup 100",
        "ip rule del from 10.0.0.1 lookup 100; ip route flush table 100",
    ),
    Row::new(
        "a rule by destination port",
        "ip route add 10.0.0.2 via 10.1.2.2 dev up2 table 100; ip rule add ipproto udp dport 4789 lookup 100",
        "ip rule del ipproto udp dport 4789 lookup 100; ip route flush table 100",
    ),
    Row::new(
        "the rules of VRFs, before table local",
        "ip rule add pref 1000 l3mdev; ip rule add pref 32765 lookup local; ip rule del pref 0",
        "ip rule add pref 0 lookup local; ip rule del pref 32765; ip rule del pref 1000",
    )
    .harmless()
    .optional(),
    Row::new(
        "a rule by firewall mark, and a chain that sets it",
        "ip route add 10.0.0.2 via 10.1.2.2 dev up2 table 100; ip rule add fwmark 7 lookup 100
         nft add table ip t; nft add chain ip t c '{ type route hook output priority mangle; }'
         nft add rule ip t c udp dport 4789 meta mark set 7",
        "nft delete table ip t; ip rule del fwmark 7 lookup 100; ip route flush table 100",
    ),
    Row::new(
        "a rule by firewall mark that nothing sets",
        "ip route add 10.0.0.2 via 10.1.2.2 dev up2 table 100; ip rule add fwmark 7 lookup 100",
        "ip rule del fwmark 7 lookup 100; ip route flush table 100",
    )
    .harmless(),
    Row::new(
        "a route in another table only",
        "ip route del 10.0.0.2; ip route add 10.0.0.2 via 10.1.2.2 dev up2 table 100
         ip rule add to 10.0.0.2 lookup 100",
        "ip rule del to 10.0.0.2 lookup 100; ip route flush table 100; underlay",
    ),
    Row::new(
        "a rule that prohibits",
        "ip rule add to 10.0.0.2 prohibit",
        "ip rule del to 10.0.0.2 prohibit",
    ),
    Row::new(
        "a rule that drops",
        "ip rule add to 10.0.0.2 blackhole",
        "ip rule del to 10.0.0.2 blackhole",
    ),
    Row::new(
        "a rule that says unreachable",
        "ip rule add to 10.0.0.2 unreachable",
        "ip rule del to 10.0.0.2 unreachable",
    ),
    Row::new(
        "a rule that does not match",
        "ip rule add to 10.9.9.9 lookup 100",
        "ip rule del to 10.9.9.9 lookup 100",
    )
    .harmless(),
    Row::new(
        "the rule of the main table gone",
        "ip rule del pref 32766",
        "ip rule add pref 32766 lookup main",
    ),
    Row::new(
        "a rule about what comes from a VTEP, behind the local table",
        "ip rule add from 10.0.0.2 prohibit pref 1",
        "ip rule del from 10.0.0.2 prohibit pref 1",
    )
    .harmless(),
];

/// Rules and routes by type of service, for a netdev with `tos inherit`.
pub const BY_TOS: &[Row] = &[
    Row::new(
        "a rule by type of service",
        "ip route add 10.0.0.2 via 10.1.2.2 dev up2 table 100; ip rule add tos 0x10 lookup 100",
        "ip rule del tos 0x10 lookup 100; ip route flush table 100",
    )
    .also(LOW_DELAY),
    Row::new(
        "a route by type of service",
        "ip route add 10.0.0.2 tos 0x10 via 10.1.2.2 dev up2",
        "ip route del 10.0.0.2 tos 0x10",
    )
    .also(LOW_DELAY),
];

const LOW_DELAY: &[Stimulus] = &[Stimulus::Host(Wire::H1, Inner::udp(1, 3).tos(0x10))];

/// Frames longer than 1,500 bytes.
const LONG: &[Stimulus] = &[
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).length(2000)),
    Stimulus::Host(Wire::H1, Inner::udp(1, 3).length(2000).whole()),
];

/// Routes to a VTEP.
pub const ROUTES: &[Row] = &[
    Row::new(
        "a blackhole route",
        "ip route replace blackhole 10.0.0.2",
        "ip route del blackhole 10.0.0.2; underlay",
    ),
    Row::new(
        "a prohibit route",
        "ip route replace prohibit 10.0.0.2",
        "ip route del prohibit 10.0.0.2; underlay",
    ),
    Row::new(
        "an unreachable route",
        "ip route replace unreachable 10.0.0.2",
        "ip route del unreachable 10.0.0.2; underlay",
    ),
    Row::new(
        "a throw route",
        "ip route replace throw 10.0.0.2",
        "ip route del throw 10.0.0.2; underlay",
    ),
    Row::new("no route", "ip route del 10.0.0.2", "underlay"),
    Row::new(
        "two next hops",
        "ip route replace 10.0.0.2 nexthop via 10.1.1.2 nexthop via 10.1.2.2",
        "ip route del 10.0.0.2; underlay",
    )
    .balanced()
    .harmless(),
    Row::new(
        "two next hops with weights",
        "ip route replace 10.0.0.2 nexthop via 10.1.1.2 weight 3 nexthop via 10.1.2.2 weight 1",
        "ip route del 10.0.0.2; underlay",
    )
    .balanced()
    .harmless(),
    Row::new(
        "a next-hop object",
        "ip nexthop add id 7 via 10.1.2.2 dev up2; ip route replace 10.0.0.2 nhid 7",
        "ip route del 10.0.0.2; ip nexthop del id 7; underlay",
    ),
    Row::new(
        "a blackhole next-hop object",
        "ip nexthop add id 7 blackhole; ip route replace 10.0.0.2 nhid 7",
        "ip route del 10.0.0.2; ip nexthop del id 7; underlay",
    ),
    Row::new(
        "a hop limit",
        "ip route replace 10.0.0.2 via 10.1.1.2 dev up1 hoplimit 9",
        "ip route del 10.0.0.2; underlay",
    ),
    Row::new(
        "a route MTU",
        "ip route replace 10.0.0.2 via 10.1.1.2 dev up1 mtu 1500",
        "ip route del 10.0.0.2; underlay",
    )
    .also(LONG),
    Row::new(
        "a locked route MTU",
        "ip route replace 10.0.0.2 via 10.1.1.2 dev up1 mtu lock 1500",
        "ip route del 10.0.0.2; underlay",
    )
    .also(LONG),
    Row::new(
        "a next hop on the link",
        "ip neigh replace 10.7.7.7 lladdr 02:ee:00:00:00:77 dev up2 nud permanent
         ip route replace 10.0.0.2 via 10.7.7.7 dev up2 onlink",
        "ip route del 10.0.0.2; ip neigh del 10.7.7.7 dev up2; underlay",
    ),
    Row::new(
        "a next hop by IPv6",
        "sysctl -qw net.ipv6.conf.up2.disable_ipv6=0
         ip neigh replace fe80::77 lladdr 02:ee:00:00:00:77 dev up2 nud permanent
         ip route replace 10.0.0.2 via inet6 fe80::77 dev up2",
        "ip route del 10.0.0.2; sysctl -qw net.ipv6.conf.up2.disable_ipv6=1; underlay",
    ),
    Row::new(
        "a next hop behind a segment routing header",
        "sysctl -qw net.ipv6.conf.up1.disable_ipv6=0
         ip -6 addr add fc00::1/64 dev up1 nodad
         ip neigh replace fc00::2 lladdr 02:ee:00:00:00:77 dev up1 nud permanent
         ip route replace 10.0.0.2 encap seg6 mode encap segs fc00::2 dev up1",
        "ip route del 10.0.0.2; sysctl -qw net.ipv6.conf.up1.disable_ipv6=1; underlay",
    )
    .optional(),
    Row::new(
        "a next hop behind an MPLS label",
        "ip route replace 10.0.0.2 encap mpls 100 via 10.1.1.2 dev up1",
        "ip route del 10.0.0.2; underlay",
    )
    .optional(),
    Row::new(
        "a more specific default of two halves",
        "ip route add 0.0.0.0/1 via 10.1.2.2 dev up2",
        "ip route del 0.0.0.0/1",
    )
    .harmless(),
    Row::new(
        "another neighbour",
        "ip neigh replace 10.1.1.2 lladdr 02:ee:00:00:00:77 dev up1 nud permanent",
        "underlay",
    ),
];

/// For a netdev with `ttl inherit`. Frames that are not IP have no TTL to inherit.
pub const HOP_LIMITS: &[Row] = &[Row::new(
    "a hop limit",
    "ip route replace 10.0.0.2 via 10.1.1.2 dev up1 hoplimit 9",
    "ip route del 10.0.0.2; underlay",
)];

/// Addresses and uplinks.
pub const ADDRESSES: &[Row] = &[
    Row::new("the local address gone", "ip addr del 10.0.0.1/32 dev lo", "ip addr add 10.0.0.1/32 dev lo"),
    Row::new(
        "the local address on an uplink",
        "ip addr add 10.0.0.1/32 dev up1; ip addr del 10.0.0.1/32 dev lo",
        "ip addr add 10.0.0.1/32 dev lo; ip addr del 10.0.0.1/32 dev up1",
    )
    .harmless(),
    Row::new(
        "a VTEP's address on the leaf",
        "ip addr add 10.0.0.2/32 dev lo",
        "ip addr del 10.0.0.2/32 dev lo",
    ),
    Row::new("an uplink down", "ip link set up1 down", "ip link set up1 up; underlay"),
    Row::new(
        "an uplink without carrier",
        "ip -n $OUT link set u1 down; carrier up1 NO-CARRIER",
        "ip -n $OUT link set u1 up; carrier up1 LOWER_UP; underlay",
    ),
    Row::new("an uplink of 1,500 bytes", "ip link set up1 mtu 1500", "ip link set up1 mtu 9000").also(LONG).one_uplink(),
    Row::new(
        "an uplink in a bridge",
        "ip link add brx type bridge mcast_snooping 0; ip link set up1 master brx; ip link set brx up
         ip route replace 10.0.0.2 via 10.1.2.2 dev up2",
        "ip link del brx; underlay",
    ),
];

/// IPsec policies.
pub const POLICIES: &[Row] = &[
    Row::new(
        "an IPsec policy that blocks what goes out",
        "ip xfrm policy add src 10.0.0.1/32 dst 10.0.0.2/32 proto udp dport 4789 dir out action block",
        "ip xfrm policy flush",
    ),
    Row::new(
        "an IPsec policy that blocks what comes in",
        "ip xfrm policy add src 10.0.0.2/32 dst 10.0.0.1/32 proto udp dport 4789 dir in action block",
        "ip xfrm policy flush",
    ),
    Row::new(
        "an IPsec policy that encrypts what goes out",
        "ip xfrm policy add src 10.0.0.1/32 dst 10.0.0.2/32 proto udp dport 4789 dir out \
         tmpl src 10.0.0.1 dst 10.0.0.2 proto esp reqid 1 mode transport",
        "ip xfrm policy flush",
    ),
    Row::new(
        "an IPsec policy that asks for encryption of what comes in",
        "ip xfrm policy add src 10.0.0.2/32 dst 10.0.0.1/32 proto udp dport 4789 dir in \
         tmpl src 10.0.0.2 dst 10.0.0.1 proto esp reqid 1 mode transport",
        "ip xfrm policy flush",
    ),
    Row::new(
        "an IPsec policy for others",
        "ip xfrm policy add src 10.9.0.1/32 dst 10.9.0.2/32 dir out action block",
        "ip xfrm policy flush",
    )
    .harmless(),
];
