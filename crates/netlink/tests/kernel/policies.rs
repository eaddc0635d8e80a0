//! Policy routing rules and IPsec policies of the running kernel, and network namespaces of links.

use std::net::IpAddr;

use crate::leaf::{Namespace, until};
use netlink::{Dump, IpsecDirection, IpsecPolicy, Kernel, Message, Operation, Rule};
use root_test::root_test;

/// The rules of IPv4 and of IPv6.
async fn rules(kernel: &Kernel) -> (Vec<Rule>, Vec<Rule>) {
    let rule = |message| match message {
        Message::Rule(Operation::New, rule) => rule,
        other => panic!("{other:?}"),
    };
    let rules = kernel.dump(Dump::Rules).await.unwrap().into_iter().map(rule);
    rules.partition(|rule| rule.from.0.is_ipv4())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[root_test]
fn rules_are_dumped_and_watched() {
    let namespace = Namespace::new("rules");
    namespace.block_on(async {
        let mut kernel = Kernel::open().unwrap();
        let defaults = (Rule::defaults().to_vec(), Rule::ipv6_defaults().to_vec());
        assert_eq!(rules(&kernel).await, defaults);
        let add = |rule: &str| namespace.ip(&format!("rule add {rule}"));
        add("pref 100 from 10.0.0.1 to 10.0.0.0/24 lookup 1000");
        add("pref 101 iif lo ipproto udp dport 4789 prohibit");
        add("pref 102 not fwmark 0x10 oif up1 tos 0x10 blackhole");
        add("pref 103 dport 4000-5000 sport 9 lookup main suppress_prefixlength 0");
        add("pref 1000 l3mdev protocol kernel");
        let plain = |priority| Rule { priority, ..Rule::default() };
        let expected = [
            Rule {
                from: (ip("10.0.0.1"), 32),
                to: (ip("10.0.0.0"), 24),
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
        namespace.ip("-6 rule add pref 104 from fd00::1 to fd00::/64 lookup 1000");
        let ipv6 =
            Rule { from: (ip("fd00::1"), 128), to: (ip("fd00::"), 64), table: 1000, ..plain(104) };
        let (dumped, dumped_ipv6) = rules(&kernel).await;
        let [local, main] = Rule::ipv6_defaults();
        assert_eq!(dumped_ipv6, [local, ipv6.clone(), main]);
        assert_eq!(dumped[0], Rule::defaults()[0]);
        assert_eq!(dumped[1..6], expected);
        assert_eq!(dumped[6..], Rule::defaults()[1..]);
        namespace.ip("rule del pref 100");
        let mut seen = Vec::new();
        let gone = Message::Rule(Operation::Delete, expected[0].clone());
        until(&mut kernel, &mut seen, |message| *message == gone).await;
        for rule in expected.into_iter().chain([ipv6]) {
            assert!(
                seen.contains(&Message::Rule(Operation::New, rule.clone())),
                "{rule:?} was no event"
            );
        }
    });
}

#[root_test]
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
        // Neither of the first two applies to VXLAN packets of this host.
        add(&format!("src 10.0.0.1/32 dst 10.0.0.0/24 dir fwd {template}"));
        add(&format!("src 10.0.0.1/32 dst 10.0.0.0/24 dir out if_id 7 {template}"));
        add("src fd00::1/128 dst fd00::2/128 dir out action block");
        let until_changed = async |kernel: &mut Kernel| {
            until(kernel, &mut Vec::new(), |message| *message == Message::IpsecChanged).await;
        };
        until_changed(&mut kernel).await;
        let out = IpsecPolicy {
            direction: IpsecDirection::Out,
            source: (ip("10.0.0.1"), 32),
            destination: (ip("10.0.0.0"), 24),
            protocol: 17,
            destination_port: (4789, 0xffff),
            block: false,
            transforms: true,
        };
        let block = IpsecPolicy {
            direction: IpsecDirection::In,
            source: (ip("10.0.0.2"), 32),
            destination: (ip("10.0.0.1"), 32),
            protocol: 0,
            destination_port: (0, 0),
            block: true,
            transforms: false,
        };
        let bypass =
            IpsecPolicy { destination: (ip("10.0.0.9"), 32), block: false, ..block.clone() };
        let mut dumped = kernel.dump(Dump::IpsecPolicies).await.unwrap();
        dumped.retain(|message| !matches!(message, Message::Other(_)));
        let ipv6 = IpsecPolicy {
            direction: IpsecDirection::Out,
            source: (ip("fd00::1"), 128),
            destination: (ip("fd00::2"), 128),
            ..block.clone()
        };
        for policy in [out, block, bypass, ipv6] {
            assert!(
                dumped.contains(&Message::IpsecPolicy(policy.clone())),
                "{policy:?}: {dumped:?}"
            );
        }
        assert_eq!(dumped.len(), 5, "{dumped:?}");
        namespace.ip("xfrm policy flush");
        until_changed(&mut kernel).await;
        assert_eq!(kernel.dump(Dump::IpsecPolicies).await.unwrap(), std::slice::from_ref(&accepts));
        namespace.ip("xfrm policy setdefault in block");
        until_changed(&mut kernel).await;
        let blocks = Message::IpsecDefault { block: true };
        assert_eq!(kernel.dump(Dump::IpsecPolicies).await.unwrap(), [blocks]);
    });
}

#[root_test]
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
