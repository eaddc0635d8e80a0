//! Packet filters, as the kernel's nftables reports them. Needs root.

use crate::leaf::Namespace;
use netlink::{FilterChanges, FilterMonitor, PacketFilters, packet_filters};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use root_test::root_test;

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + body.len()).unwrap();
    [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8], body].concat()
}

/// One attribute with its padding.
fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + payload.len()).unwrap();
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), payload].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Changes nftables in one batch, as `nft` does: message type, flags in addition to
/// `NLM_F_REQUEST`, family, attributes.
fn change(messages: &[(u16, u16, u8, Vec<u8>)]) {
    let mut socket = Socket::new(NETLINK_NETFILTER).unwrap();
    socket.bind_auto().unwrap();
    let nftables = [0, 0, 0, 10];
    let mut batch = message(0x10, 1, &nftables);
    for (kind, flags, family, attributes) in messages {
        batch.extend(message(
            0xa00 | kind,
            1 | flags,
            &[&[*family, 0, 0, 0][..], attributes].concat(),
        ));
    }
    // The acknowledgement shows that the batch was applied.
    batch.extend(message(0x11, 1, &nftables));
    socket.send_to(&batch, &SocketAddr::new(0, 0), 0).unwrap();
    let mut answer = Vec::with_capacity(4096);
    socket.recv_from(&mut answer, 0).unwrap();
    assert_eq!((&answer[4..6], &answer[16..20]), (&[2, 0][..], &[0; 4][..]), "{messages:?}");
}

const CREATE: u16 = 0x400 | 4;
const ACCEPT: u32 = 1;
const DROP: u32 = 0;
const TABLE: &[u8] = b"t\0";
const CHAIN: &[u8] = b"c\0";

/// A table with a base chain at this hook. For family `netdev` it is on the loopback interface.
fn add_chain(family: u8, hook: u32, policy: u32) {
    let device =
        if family == 5 || (family, hook) == (1, 5) { attribute(3, b"lo\0") } else { Vec::new() };
    let place = [attribute(1, &hook.to_be_bytes()), attribute(2, &[0; 4]), device].concat();
    let chain = [
        attribute(1, TABLE),
        attribute(3, CHAIN),
        attribute(4 | 0x8000, &place),
        attribute(5, &policy.to_be_bytes()),
        attribute(7, b"filter\0"),
    ];
    change(&[(0, CREATE, family, attribute(1, TABLE)), (3, CREATE, family, chain.concat())]);
}

fn add_rule(family: u8) {
    change(&[(6, CREATE | 0x800, family, [attribute(1, TABLE), attribute(2, CHAIN)].concat())]);
}

fn delete_rules(family: u8) {
    change(&[(8, 4, family, [attribute(1, TABLE), attribute(2, CHAIN)].concat())]);
}

const NONE: PacketFilters = PacketFilters { frames: false, packets: false, ipv6: false };
const FRAMES: PacketFilters = PacketFilters { frames: true, ..NONE };
const FRAMES_OR_IPV6: PacketFilters = PacketFilters { frames: true, ipv6: true, ..NONE };
const PACKETS: PacketFilters = PacketFilters { packets: true, ..NONE };
const IPV6: PacketFilters = PacketFilters { ipv6: true, ..NONE };
const PACKETS_OR_IPV6: PacketFilters = PacketFilters { packets: true, ipv6: true, ..NONE };
// Families (`NFPROTO_*`).
const INET: u8 = 1;
const IP: u8 = 2;
const ARP: u8 = 3;
const NETDEV: u8 = 5;
const BRIDGE: u8 = 7;
const IP6: u8 = 10;

#[root_test]
fn rules_count_where_they_see_what_bridges_forward() {
    let namespace = Namespace::new("nft");
    let (prerouting, input, forward, output, postrouting) = (0, 1, 2, 3, 4);
    for (family, hook, found) in [
        (INET, forward, PACKETS),
        (INET, prerouting, PACKETS_OR_IPV6),
        (INET, input, IPV6),
        (INET, 5, FRAMES_OR_IPV6),
        (IP, prerouting, PACKETS),
        (IP, postrouting, PACKETS),
        (IP, output, NONE),
        (IP6, forward, PACKETS),
        (IP6, input, IPV6),
        (IP6, output, IPV6),
        (IP6, postrouting, PACKETS_OR_IPV6),
        (ARP, input, NONE),
        (NETDEV, 0, FRAMES_OR_IPV6),
        (BRIDGE, prerouting, FRAMES),
        (BRIDGE, forward, FRAMES),
        (BRIDGE, postrouting, FRAMES),
        (BRIDGE, input, NONE),
        (BRIDGE, output, NONE),
    ] {
        namespace.inside(|| {
            let named = format!("family {family}, hook {hook}");
            assert_eq!(packet_filters().unwrap(), NONE, "{named}");
            add_chain(family, hook, ACCEPT);
            assert_eq!(packet_filters().unwrap(), NONE, "{named}: an empty chain accepts");
            add_rule(family);
            assert_eq!(packet_filters().unwrap(), found, "{named}");
            delete_rules(family);
            assert_eq!(packet_filters().unwrap(), NONE, "{named}: without its rules");
            change(&[(2, 4, family, attribute(1, TABLE))]);
            add_chain(family, hook, DROP);
            assert_eq!(packet_filters().unwrap(), found, "{named}: nothing is accepted");
            change(&[(2, 4, family, attribute(1, TABLE))]);
        });
    }
}

/// Changes of filters are reported with their interfaces.
#[root_test]
fn filters_that_come_and_go_are_told() {
    let namespace = Namespace::new("filters");
    namespace.ip("link add up1 type veth peer name other");
    let tc = |line: &str| {
        let line = format!("-n {} {line}", namespace.0);
        let status = std::process::Command::new("tc").args(line.split(' ')).status().unwrap();
        assert!(status.success(), "tc {line}");
    };
    namespace.block_on(async {
        let index = nix::net::if_::if_nametoindex("up1").unwrap();
        let mut monitor = FilterMonitor::open().unwrap();
        let at_up1 = FilterChanges { interfaces: [index].into(), ..FilterChanges::default() };
        let rules = FilterChanges { rules: true, ..FilterChanges::default() };
        tc("qdisc add dev up1 clsact");
        assert_eq!(monitor.changed().await.unwrap(), at_up1);
        tc("filter add dev up1 ingress protocol all prio 1 u32 match u32 0 0 flowid 1:1");
        assert_eq!(monitor.changed().await.unwrap(), at_up1);
        tc("filter del dev up1 ingress");
        assert_eq!(monitor.changed().await.unwrap(), at_up1);
        add_chain(BRIDGE, 2, ACCEPT);
        assert_eq!(monitor.changed().await.unwrap(), rules);
        add_rule(BRIDGE);
        assert_eq!(monitor.changed().await.unwrap(), rules);
        delete_rules(BRIDGE);
        assert_eq!(monitor.changed().await.unwrap(), rules);
        tc("qdisc add dev other ingress_block 7 clsact");
        monitor.changed().await.unwrap();
        tc("filter add block 7 protocol all prio 1 u32 match u32 0 0 flowid 1:1");
        assert!(monitor.changed().await.unwrap().anywhere, "a block may be anybody's");
    });
}
