//! Rows about packet filters, reverse path filters and programs that do not belong to vtepd.

use std::net::Ipv4Addr;

use crate::equivalence::stimulus::{Inner, PEER, Stimulus, Tunnel};
use crate::equivalence::table::Row;
use crate::equivalence::wires::Wire;

macro_rules! chain {
    ($name:literal, $family:literal, $hook:literal, $rule:literal) => {
        Row::new(
            $name,
            concat!(
                "nft add table ",
                $family,
                " t; nft add chain ",
                $family,
                " t c '{ type filter hook ",
                $hook,
                "; }'\n",
                "nft add rule ",
                $family,
                " t c ",
                $rule
            ),
            concat!("nft delete table ", $family, " t"),
        )
    };
}

/// nftables rules.
pub const NFTABLES: &[Row] = &[
    // The first row, because connections that are already tracked would not be translated.
    Row::new(
        "a source address that is translated",
        "sysctl -qw net.netfilter.nf_conntrack_udp_timeout=1 net.netfilter.nf_conntrack_udp_timeout_stream=1
         nft add table ip t; nft add chain ip t c '{ type nat hook postrouting priority 100; }'
         nft add rule ip t c udp dport 4789 ip daddr 10.0.0.2 snat to 10.1.1.1",
        "nft delete table ip t; sleep 1.5",
    )
    .optional(),
    chain!("an input rule that drops", "ip", "input priority 0", "udp dport 4789 drop"),
    chain!("an input rule that drops a VTEP", "ip", "input priority 0", "ip saddr 10.0.0.2 drop"),
    Row::new(
        "an input chain that drops by policy",
        "nft add table inet t; nft add chain inet t c '{ type filter hook input priority 0; policy drop; }'
         nft add rule inet t c iif lo accept",
        "nft delete table inet t",
    ),
    chain!("a raw prerouting rule that drops", "ip", "prerouting priority raw", "udp dport 4789 drop"),
    // UDP only, because the test reads the metrics over TCP.
    chain!(
        "a raw prerouting rule that rejects a TTL",
        "inet",
        "prerouting priority -300",
        "meta l4proto udp ip ttl 64 drop"
    ),
    chain!("an output rule that drops", "ip", "output priority 0", "udp dport 4789 drop"),
    chain!(
        "an output rule that changes the DSCP",
        "ip",
        "output priority mangle",
        "udp dport 4789 ip dscp set ef"
    ),
    chain!("a postrouting rule that drops", "ip", "postrouting priority 0", "ip daddr 10.0.0.2 drop"),
    chain!(
        "a netdev ingress rule that drops",
        "netdev",
        "ingress device up1 priority 0",
        "udp dport 4789 drop"
    ),
    chain!(
        "a netdev egress rule that drops",
        "netdev",
        "egress device up1 priority 0",
        "udp dport 4789 drop"
    ),
    chain!("a bridge rule that drops", "bridge", "forward priority 0", "ether type 0x88b5 drop"),
    chain!("a forward rule that drops", "ip", "forward priority 0", "udp dport 4789 drop").harmless(),
    chain!("an input rule for others", "ip", "input priority 0", "tcp dport 22 drop").harmless(),
    chain!("an output rule for others", "ip", "output priority 0", "ip daddr 10.9.9.9 drop").harmless(),
    Row::new(
        "an input chain without rules",
        "nft add table inet t; nft add chain inet t c '{ type filter hook input priority 0; }'",
        "nft delete table inet t",
    )
    .harmless(),
    chain!("an output rule that drops marked packets", "ip", "output priority 0", "meta mark != 0 drop")
        .harmless(),
    Row::new(
        "kube-proxy's rules for marked packets",
        "nft add table ip k; nft add chain ip k c '{ type nat hook postrouting priority 100; }'
         nft add rule ip k c meta mark and 0x4000 != 0x4000 return
         nft add rule ip k c meta mark set meta mark xor 0x4000
         nft add rule ip k c masquerade fully-random",
        "nft delete table ip k",
    )
    .optional()
    .harmless(),
    Row::new(
        "Docker's rules for its name server",
        "nft add table ip nat
         nft add chain ip nat OUTPUT '{ type nat hook output priority -100; }'
         nft add chain ip nat POSTROUTING '{ type nat hook postrouting priority 100; }'
         nft add rule ip nat OUTPUT ip daddr 127.0.0.11 udp dport 53 dnat to 127.0.0.11:43211
         nft add rule ip nat POSTROUTING ip saddr 127.0.0.11 udp sport 43211 snat to :53",
        "nft delete table ip nat",
    )
    .harmless(),
    Row::new(
        "no connection tracking of VXLAN",
        "nft add table ip t
         nft add chain ip t p '{ type filter hook prerouting priority raw; }'
         nft add chain ip t o '{ type filter hook output priority raw; }'
         nft add rule ip t p udp dport 4789 notrack; nft add rule ip t o udp dport 4789 notrack",
        "nft delete table ip t",
    )
    .harmless(),
];

/// iptables rules, over nftables and legacy.
pub const IPTABLES: &[Row] = &[
    Row::new(
        "iptables drops input",
        "iptables -A INPUT -p udp --dport 4789 -j DROP",
        "iptables -D INPUT -p udp --dport 4789 -j DROP",
    ),
    Row::new(
        "iptables drops input by policy",
        "iptables -A INPUT -i lo -j ACCEPT; iptables -P INPUT DROP",
        "iptables -P INPUT ACCEPT; iptables -D INPUT -i lo -j ACCEPT",
    ),
    Row::new(
        "iptables drops in its raw table",
        "iptables -t raw -A PREROUTING -p udp --dport 4789 -j DROP",
        "iptables -t raw -D PREROUTING -p udp --dport 4789 -j DROP",
    ),
    Row::new(
        "iptables drops output",
        "iptables -A OUTPUT -p udp --dport 4789 -j DROP",
        "iptables -D OUTPUT -p udp --dport 4789 -j DROP",
    ),
    Row::new(
        "legacy iptables drops input",
        "iptables-legacy -A INPUT -p udp --dport 4789 -j DROP",
        "iptables-legacy -D INPUT -p udp --dport 4789 -j DROP",
    )
    .optional(),
    Row::new(
        "legacy iptables drops output by a chain of its own",
        "iptables-legacy -N vxlan; iptables-legacy -A vxlan -p udp -m udp --dport 4000:5000 -j DROP
         iptables-legacy -A OUTPUT -d 10.0.0.0/8 -j vxlan",
        "iptables-legacy -F OUTPUT; iptables-legacy -F vxlan; iptables-legacy -X vxlan",
    )
    .optional(),
    Row::new(
        "legacy iptables, for others",
        "iptables-legacy -A INPUT -p tcp --dport 22 -j DROP; iptables-legacy -A OUTPUT -d 10.9.9.9 -j DROP",
        "iptables-legacy -F INPUT; iptables-legacy -F OUTPUT",
    )
    .optional()
    .harmless(),
    Row::new(
        "legacy iptables drops marked packets",
        "iptables-legacy -t mangle -A POSTROUTING -m mark ! --mark 0 -j DROP",
        "iptables-legacy -t mangle -D POSTROUTING -m mark ! --mark 0 -j DROP",
    )
    .optional()
    .harmless(),
    Row::new(
        "kube-proxy's rules for marked packets, by legacy iptables",
        "iptables-legacy -t nat -N KUBE-POSTROUTING
         iptables-legacy -t nat -A POSTROUTING -j KUBE-POSTROUTING
         iptables-legacy -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
         iptables-legacy -t nat -A KUBE-POSTROUTING -j MASQUERADE",
        "iptables-legacy -t nat -F POSTROUTING; iptables-legacy -t nat -F KUBE-POSTROUTING
         iptables-legacy -t nat -X KUBE-POSTROUTING",
    )
    .optional()
    .harmless(),
    Row::new(
        "iptables sets a mark that a rule looks at",
        "ip route add 10.0.0.2 via 10.1.2.2 dev up2 table 100; ip rule add fwmark 7 lookup 100
         iptables -t mangle -A OUTPUT -p udp --dport 4789 -j MARK --set-mark 7",
        "iptables -t mangle -D OUTPUT -p udp --dport 4789 -j MARK --set-mark 7
         ip rule del fwmark 7 lookup 100; ip route flush table 100",
    ),
];

/// Packets of the first VTEP at the second uplink, one to each host.
const WRONG_UPLINK: &[Stimulus] = &[
    Stimulus::Tunnel(Tunnel::from(Wire::U2, PEER), Inner::udp(3, 1)),
    Stimulus::Tunnel(Tunnel::from(Wire::U2, PEER), Inner::udp(3, 2)),
];

/// Frames in packets whose source is the leaf's own address.
const OWN_SOURCE: &[Stimulus] = &[
    Stimulus::Tunnel(Tunnel::from(Wire::U1, OWN), Inner::udp(5, 1)),
    Stimulus::Tunnel(Tunnel::from(Wire::U1, OWN), Inner { tags: &[0x8100], ..Inner::udp(5, 1) }),
];
const OWN: Ipv4Addr = Ipv4Addr::new(10, 1, 1, 1);

/// Settings of rp_filter and accept_local.
pub const REVERSE_PATH: &[Row] = &[
    Row::new(
        "a strict reverse path filter",
        "sysctl -qw net.ipv4.conf.all.rp_filter=1",
        "sysctl -qw net.ipv4.conf.all.rp_filter=0",
    )
    .also(WRONG_UPLINK),
    Row::new(
        "a strict reverse path filter at one uplink",
        "sysctl -qw net.ipv4.conf.up2.rp_filter=1",
        "sysctl -qw net.ipv4.conf.up2.rp_filter=0",
    )
    .also(WRONG_UPLINK),
    Row::new(
        "a loose reverse path filter",
        "sysctl -qw net.ipv4.conf.all.rp_filter=2",
        "sysctl -qw net.ipv4.conf.all.rp_filter=0",
    )
    .also(WRONG_UPLINK)
    .harmless(),
    Row::new(
        "a loose reverse path filter and no route back",
        "sysctl -qw net.ipv4.conf.all.rp_filter=2; ip route del 10.0.0.2",
        "sysctl -qw net.ipv4.conf.all.rp_filter=0; underlay",
    ),
    Row::new(
        "local addresses are accepted as sources",
        "sysctl -qw net.ipv4.conf.all.accept_local=1",
        // An entry with an own address, which kernel VXLAN learns, keeps the VNI with the kernel.
        "sysctl -qw net.ipv4.conf.all.accept_local=0; bridge fdb del 02:00:00:00:0a:05 dev vx10 2>&1 || :",
    )
    .also(OWN_SOURCE),
];

/// Classic BPF programs at a clsact hook. Return value 2 drops the frame, -1 continues with the
/// next program.
macro_rules! clsact {
    ($name:literal, $device:literal, $way:literal, $filter:literal) => {
        Row::new(
            $name,
            concat!(
                "tc qdisc add dev ",
                $device,
                " clsact 2>/dev/null || true\n",
                "tc filter add dev ",
                $device,
                " ",
                $way,
                " pref 77 protocol all bpf direct-action bytecode '",
                $filter,
                "'"
            ),
            concat!("tc filter del dev ", $device, " ", $way, " pref 77"),
        )
    };
}

/// Programs at uplinks, the netdev and a host port.
pub const PROGRAMS: &[Row] = &[
    clsact!(
        "clsact drops at an uplink's ingress",
        "up1",
        "ingress",
        "4,48 0 0 23,21 0 1 17,6 0 0 2,6 0 0 4294967295"
    ),
    clsact!(
        "clsact drops at an uplink's egress",
        "up1",
        "egress",
        "4,48 0 0 23,21 0 1 17,6 0 0 2,6 0 0 4294967295"
    )
    .one_uplink(),
    clsact!("clsact drops at the netdev's egress", "vx10", "egress", "1,6 0 0 2"),
    clsact!("clsact drops at the netdev's ingress", "vx10", "ingress", "1,6 0 0 2"),
    clsact!("clsact drops at a host port's ingress", "hp1", "ingress", "1,6 0 0 2"),
    clsact!("clsact drops at a host port's egress", "hp1", "egress", "1,6 0 0 2"),
    clsact!(
        "clsact at an uplink, for others",
        "up1",
        "ingress",
        "4,48 0 0 23,21 0 1 66,6 0 0 2,6 0 0 4294967295"
    )
    .harmless(),
    clsact!(
        "clsact at the netdev, for others",
        "vx10",
        "egress",
        "4,48 0 0 23,21 0 1 99,6 0 0 2,6 0 0 4294967295"
    )
    .harmless(),
];
