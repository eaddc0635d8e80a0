//! Policy routing rules and IPsec policies of the running kernel, and network namespaces of links.

#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)] // Helpers of tests, which may.

mod bytes;
mod leaf;

use std::net::Ipv4Addr;

use bytes::{attribute, link_body, message, number, one};
use leaf::{Namespace, until};
use netlink::{
    Dump, IpsecDirection, IpsecPolicy, Kernel, Link, LinkKind, Message, Operation, Rule,
};

async fn rules(kernel: &Kernel) -> Vec<Rule> {
    let rule = |message| match message {
        Message::Rule(Operation::New, rule) => rule,
        other => panic!("{other:?}"),
    };
    kernel.dump(Dump::Rules).await.unwrap().into_iter().map(rule).collect()
}

fn v4(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

#[test]
fn rules_are_dumped_and_watched() {
    let namespace = Namespace::new("rules");
    namespace.block_on(async {
        let mut kernel = Kernel::open().unwrap();
        assert_eq!(rules(&kernel).await, Rule::defaults());
        let add = |rule: &str| namespace.ip(&format!("rule add {rule}"));
        add("pref 100 from 10.0.0.1 to 10.0.0.0/24 lookup 1000");
        add("pref 101 iif lo ipproto udp dport 4789 prohibit");
        add("pref 102 not fwmark 0x10 oif up1 tos 0x10 blackhole");
        add("pref 103 dport 4000-5000 sport 9 lookup main suppress_prefixlength 0");
        add("pref 1000 l3mdev protocol kernel");
        let plain = |priority| Rule { priority, ..Rule::default() };
        let expected = [
            Rule {
                from: (v4("10.0.0.1"), 32),
                to: (v4("10.0.0.0"), 24),
                table: 1000,
                ..plain(100)
            },
            Rule {
                input: Some("lo".into()),
                protocol: Some(17),
                destination_ports: Some((4789, 4789)),
                action: 8,
                ..plain(101)
            },
            Rule {
                inverted: true,
                output: Some("up1".into()),
                others: vec!["fwmark", "tos"],
                action: 6,
                ..plain(102)
            },
            Rule {
                destination_ports: Some((4000, 5000)),
                table: 254,
                others: vec!["sport", "suppress"],
                ..plain(103)
            },
            Rule { l3mdev: true, ..plain(1000) },
        ];
        let dumped = rules(&kernel).await;
        assert_eq!(dumped[0], Rule::defaults()[0]);
        assert_eq!(dumped[1..6], expected);
        assert_eq!(dumped[6..], Rule::defaults()[1..]);
        namespace.ip("rule del pref 100");
        let mut seen = Vec::new();
        let gone = Message::Rule(Operation::Delete, expected[0].clone());
        until(&mut kernel, &mut seen, |message| *message == gone).await;
        for rule in expected {
            assert!(
                seen.contains(&Message::Rule(Operation::New, rule.clone())),
                "{rule:?} was no event"
            );
        }
    });
}

#[test]
fn rules_of_ipv6_are_none() {
    let rule = one(&message(32, 0, &[10, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0], &[number(6, 100)]));
    assert_eq!(rule, Message::Other(32));
}

#[test]
fn ipsec_policies_are_dumped_and_watched() {
    let namespace = Namespace::new("ipsec");
    namespace.block_on(async {
        let mut kernel = Kernel::open().unwrap();
        let accepts = Message::IpsecDefault { block: false };
        assert_eq!(kernel.dump(Dump::IpsecPolicies).await.unwrap(), std::slice::from_ref(&accepts));
        let add = |policy: &str| namespace.ip(&format!("xfrm policy add {policy}"));
        let template = "tmpl src 10.0.0.1 dst 10.0.0.2 proto esp mode transport";
        add(&format!(
            "src 10.0.0.1/32 dst 10.0.0.0/24 proto udp dport 4789 dir out priority 1 {template}"
        ));
        add("src 10.0.0.2/32 dst 10.0.0.1/32 dir in action block priority 2");
        add("src 10.0.0.2/32 dst 10.0.0.9/32 dir in priority 3");
        // None of these policies applies to VXLAN packets of this host.
        add(&format!("src 10.0.0.1/32 dst 10.0.0.0/24 dir fwd {template}"));
        add(&format!("src 10.0.0.1/32 dst 10.0.0.0/24 dir out if_id 7 {template}"));
        add("src fd00::1/128 dst fd00::2/128 dir out action block");
        let until_changed = async |kernel: &mut Kernel| {
            until(kernel, &mut Vec::new(), |message| *message == Message::IpsecChanged).await;
        };
        until_changed(&mut kernel).await;
        let out = IpsecPolicy {
            direction: IpsecDirection::Out,
            source: (v4("10.0.0.1"), 32),
            destination: (v4("10.0.0.0"), 24),
            protocol: 17,
            destination_port: (4789, 0xffff),
            block: false,
            transforms: true,
        };
        let block = IpsecPolicy {
            direction: IpsecDirection::In,
            source: (v4("10.0.0.2"), 32),
            destination: (v4("10.0.0.1"), 32),
            protocol: 0,
            destination_port: (0, 0),
            block: true,
            transforms: false,
        };
        let bypass =
            IpsecPolicy { destination: (v4("10.0.0.9"), 32), block: false, ..block.clone() };
        let mut dumped = kernel.dump(Dump::IpsecPolicies).await.unwrap();
        dumped.retain(|message| !matches!(message, Message::Other(_)));
        for policy in [out, block, bypass] {
            assert!(
                dumped.contains(&Message::IpsecPolicy(policy.clone())),
                "{policy:?}: {dumped:?}"
            );
        }
        assert_eq!(dumped.len(), 4, "{dumped:?}");
        namespace.ip("xfrm policy flush");
        until_changed(&mut kernel).await;
        assert_eq!(kernel.dump(Dump::IpsecPolicies).await.unwrap(), std::slice::from_ref(&accepts));
        namespace.ip("xfrm policy setdefault in block");
        until_changed(&mut kernel).await;
        let blocks = Message::IpsecDefault { block: true };
        assert_eq!(kernel.dump(Dump::IpsecPolicies).await.unwrap(), [blocks]);
    });
}

#[test]
fn a_link_says_that_its_lower_device_is_elsewhere() {
    let (home, away) = (Namespace::new("home"), Namespace::new("away"));
    home.ip("link add up1 type veth peer name up2");
    home.ip("link add mac1 link up1 type macvlan");
    home.ip("link add vx10 type vxlan id 10 local 10.0.0.1 dstport 4789");
    let elsewhere = |namespace: &Namespace, name: &str| {
        namespace.block_on(async {
            let links = Kernel::open().unwrap().dump(Dump::Links).await.unwrap();
            links
                .into_iter()
                .find_map(|message| match message {
                    Message::Link(_, link) if link.name == name => {
                        Some(link.link_namespace.is_some())
                    }
                    _ => None,
                })
                .unwrap()
        })
    };
    for name in ["mac1", "vx10"] {
        assert!(!elsewhere(&home, name), "{name}");
        home.ip(&format!("link set {name} netns {}", away.0));
        assert!(elsewhere(&away, name), "{name}");
    }
}

#[test]
fn hop_limits_and_encapsulations() {
    let route = |attributes: &[Vec<u8>]| match one(&message(
        24,
        0,
        &bytes::route_body(2, 0, 0),
        attributes,
    )) {
        Message::Route(_, route) => route,
        other => panic!("{other:?}"),
    };
    let metrics = attribute(8, &[number(2, 1400), number(10, 9)].concat());
    let route_with = route(&[number(4, 3), metrics]);
    assert_eq!((route_with.mtu, route_with.hop_limit), (Some(1400), Some(9)));
    assert_eq!(route(&[number(4, 3), attribute(8, &number(10, 0))]).hop_limit, None);
    // NHA_OIF and NHA_ENCAP_TYPE (SRv6).
    let object = [number(1, 22), attribute(7, &5u16.to_ne_bytes()), number(5, 3)];
    let object = one(&message(104, 0, &[2, 0, 11, 0, 0, 0, 0, 0], &object));
    let Message::NextHop(_, netlink::NextHop { kind: netlink::NextHopKind::Single(hop), .. }) =
        object
    else {
        panic!("{object:?}")
    };
    assert_eq!(hop.encapsulation, Some(5));
    let link = one(&message(
        16,
        0,
        &link_body(0, 9, 0),
        &[number(5, 3), attribute(37, &0i32.to_ne_bytes())],
    ));
    let Message::Link(_, Link { link_namespace, kind: LinkKind::Plain, .. }) = link else {
        panic!("{link:?}")
    };
    assert_eq!(link_namespace, Some(0));
}
