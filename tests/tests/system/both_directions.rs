//! Both directions of connections on the same links, with the policy `qp-pin` on both leaves. What
//! passes each link between routers is captured on that link.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ::fabric::Namespace;
use root_test::root_test;
use traffic::roce::{Connection, SourcePort, connections};
use vtepd_tests::frames::{Pair, inject, udp};
use vtepd_tests::lab::{ETH, Host, VNI, ip, namespace_name, sysctl};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Capture, Lab, Outer, Vtepd, wait_for};
use wire::QueuePair;

use crate::ipv6_underlay::{inner_over_ipv6, on, over_ipv6};
use crate::qp_pin::CONFIGURATION;

const CONNECTIONS: usize = 64;
/// Frames per second in each direction.
const RATE: u32 = 4000;

/// The links between routers, as numbers of both.
pub(crate) const LINKS: [(usize, usize); 4] = [(0, 0), (0, 1), (1, 0), (1, 1)];

/// A lab with two more routers: those of the leaf are connected with both routers of `peer`, so that
/// there are four paths, and each has its own link between routers.
pub(crate) struct Routed {
    pub lab: Lab,
    /// The routers of `peer`.
    pub spines: [Namespace; 2],
}

/// The same, with a vtepd at both ends.
struct Fabric {
    routed: Routed,
    near: Vtepd,
    far: Vtepd,
}

/// The links by which frames to each queue pair have passed, as numbers of both routers.
pub(crate) type Passed = BTreeMap<u32, BTreeSet<(usize, usize)>>;

impl Routed {
    pub(crate) fn new(case: &str) -> Self {
        let lab = Lab::new(case);
        Self::of(lab, case)
    }

    /// The same over IPv6. The routers hash addresses and flow label, and no ports.
    pub(crate) fn over_ipv6(case: &str) -> Self {
        let fabric = Self::of(over_ipv6(case, ""), case);
        let Self { lab, spines } = &fabric;
        for (r, s) in LINKS {
            let ends = [(&lab.routers[r], format!("s{s}")), (&spines[s], format!("r{r}"))];
            for ((namespace, interface), end) in ends.into_iter().zip(1..) {
                on(namespace, &interface);
                ip(namespace, &format!("addr add fd01:9:{r}{s}::{end}/64 dev {interface} nodad"));
            }
        }
        for (number, (router, spine)) in lab.routers.iter().zip(spines).enumerate() {
            on(spine, "peer");
            let to_peer = number + 1;
            ip(
                spine,
                &format!(
                    "addr add fd01:2:{to_peer}::2/64 dev peer nodad\n\
                     route add fd00::2/128 via fd01:2:{to_peer}::1\n\
                     route add fd00::1/128 nexthop via fd01:9:0{number}::1 nexthop via fd01:9:1{number}::1\n"
                ),
            );
            ip(
                router,
                &format!(
                    "route replace fd00::2/128 nexthop via fd01:9:{number}0::2 nexthop via fd01:9:{number}1::2\n"
                ),
            );
            for namespace in [router, spine] {
                sysctl(namespace, "ipv6/conf/all/forwarding", "1");
                sysctl(namespace, "ipv6/fib_multipath_hash_policy", "0");
            }
        }
        fabric
    }

    fn of(lab: Lab, case: &str) -> Self {
        let spine = |number| {
            let namespace = Namespace::create(namespace_name(case, &format!("s{number}"))).unwrap();
            for (name, value) in [
                ("ipv6/conf/all/disable_ipv6", "1"),
                ("ipv6/conf/default/disable_ipv6", "1"),
                ("ipv4/ip_forward", "1"),
                ("ipv4/fib_multipath_hash_policy", "3"),
                ("ipv4/fib_multipath_hash_fields", "55"),
            ] {
                sysctl(&namespace, name, value);
            }
            namespace
        };
        let spines = [spine(1), spine(2)];
        for (r, s) in LINKS {
            let (router, spine, address) = (&lab.routers[r], &spines[s], (r * 2 + s) * 2);
            let name = spine.name();
            ip(
                router,
                &format!(
                    "link add s{s} mtu 9000 type veth peer name r{r} mtu 9000 netns {name}\n\
                     addr add 10.9.0.{address}/31 dev s{s}\nlink set s{s} up\n"
                ),
            );
            let address = address + 1;
            ip(spine, &format!("addr add 10.9.0.{address}/31 dev r{r}\nlink set r{r} up\n"));
        }
        for (number, (router, spine)) in lab.routers.iter().zip(&spines).enumerate() {
            ip(router, &format!("link set peer netns {}\n", spine.name()));
            let to_peer = number + 1;
            ip(
                spine,
                &format!(
                    "addr add 10.2.{to_peer}.0/31 dev peer\nlink set peer up\n\
                     route add 10.0.0.2/32 via 10.2.{to_peer}.1\n"
                ),
            );
        }
        let fabric = Self { lab, spines };
        fabric.add_routes();
        fabric
    }

    /// Adds the routes by the links between routers, which are gone with a link.
    pub(crate) fn add_routes(&self) {
        for (number, (router, spine)) in self.lab.routers.iter().zip(&self.spines).enumerate() {
            ip(
                spine,
                &format!(
                    "route replace 10.0.0.1/32 nexthop via 10.9.0.{} nexthop via 10.9.0.{}\n",
                    number * 2,
                    number * 2 + 4
                ),
            );
            let first = number * 4 + 1;
            ip(
                router,
                &format!(
                    "route replace 10.0.0.2/32 nexthop via 10.9.0.{first} nexthop via 10.9.0.{}\n",
                    first + 2
                ),
            );
        }
    }

    /// The links that frames pass until `pass` returns: from the leaf to `peer`, and back.
    pub(crate) fn passed(&self, pass: impl FnOnce()) -> [Passed; 2] {
        let capture = |namespace: &Namespace, interface: String| {
            Capture::start(namespace, &interface, is_vxlan)
        };
        let there = LINKS.map(|(r, s)| capture(&self.spines[s], format!("r{r}")));
        let back = LINKS.map(|(r, s)| capture(&self.lab.routers[r], format!("s{s}")));
        pass();
        [there, back].map(|captures| {
            let mut passed = Passed::new();
            for (link, capture) in LINKS.into_iter().zip(captures) {
                for inner in capture.stop().iter().filter_map(|frame| data(&frame.bytes)) {
                    let roce = wire::dissect(&inner).and_then(|inner| inner.roce);
                    let queue_pair = roce.expect("a frame of the streams").destination.get();
                    passed.entry(queue_pair).or_default().insert(link);
                }
            }
            passed
        })
    }
}

/// Whether a frame is VXLAN.
fn is_vxlan(frame: &[u8]) -> bool {
    Outer::is_vxlan(frame, 4789) || inner_over_ipv6(frame).is_some()
}

/// The inner frame of data.
fn data(frame: &[u8]) -> Option<Vec<u8>> {
    let over_ipv4 = || Outer::parse(frame, 4789).map(|outer| (outer.vni, outer.inner));
    let over_ipv6 = inner_over_ipv6(frame).map(|(vni, inner)| (vni, inner.to_vec()));
    let (vni, inner) = over_ipv6.or_else(over_ipv4)?;
    (vni == VNI).then_some(inner)
}

impl Fabric {
    fn new(case: &str) -> Self {
        let routed = Routed::new(case);
        let start = |namespace| Vtepd::start_configured(namespace, CONFIGURATION, &[]);
        let (near, far) = (start(&routed.lab.leaf), start(&routed.lab.peer));
        for (leaf, vtep) in [(&near, "10.0.0.2"), (&far, "10.0.0.1")] {
            wait_for("all four paths", || {
                let paths = leaf.ask(&["path", "--vtep", vtep]);
                paths[0]["complete"] == true && paths[0]["paths"].as_array().unwrap().len() == 4
            });
        }
        Self { routed, near, far }
    }

    /// Number of queue pairs of which both leaves say this about the links of both directions.
    fn said(&self, same: &str) -> [usize; 2] {
        [&self.near, &self.far].map(|leaf| {
            let rows = leaf.ask(&["qp"]);
            rows.as_array().unwrap().iter().filter(|row| row["same_links"] == same).count()
        })
    }

    fn wait_until_all_are_said(&self, same: &str) {
        wait_for(same, || self.said(same) == [CONNECTIONS; 2]);
    }

    /// Waits until no queue pair has moved for longer than one stays where it was placed.
    fn wait_until_nothing_moves(&self) {
        let moves = || {
            [&self.near, &self.far].map(|leaf| {
                let rows = leaf.ask(&["qp"]);
                let moves =
                    rows.as_array().unwrap().iter().map(|row| row["moves"].as_u64().unwrap());
                moves.sum::<u64>()
            })
        };
        let mut before = (moves(), Instant::now());
        wait_for("queue pairs to stay", || {
            let now = moves();
            if now != before.0 {
                before = (now, Instant::now());
            }
            before.1.elapsed() > Duration::from_millis(1500)
        });
    }

    /// Checks by what passes the links that each connection uses one link in both directions, and
    /// that each link has as many connections. On a busy machine, moves may come later than that.
    fn check(&self, connections: &[Connection], streams: &[&Stream; 2]) {
        let measure = |_| {
            self.wait_until_nothing_moves();
            self.on_links(connections, streams)
        };
        let is_even = |(same, on): &(usize, BTreeMap<_, usize>)| {
            *same == CONNECTIONS && on.len() == 4 && on.values().all(|n| *n == CONNECTIONS / 4)
        };
        let found = (0..3).map(measure).find(is_even);
        assert!(found.is_some(), "not even, or not on the same links, after three attempts");
    }

    /// The number of connections of which both directions use one link and the same, and the number
    /// of connections on each link.
    fn on_links(
        &self,
        connections: &[Connection],
        streams: &[&Stream; 2],
    ) -> (usize, BTreeMap<(usize, usize), usize>) {
        let [there, back] = self.routed.passed(|| {
            let _: [(); 2] = streams.map(|stream| stream.pass(u64::from(RATE)));
        });
        let link = |passed: &Passed, of: QueuePair| passed[&of.get()].clone();
        let mut on = BTreeMap::<_, usize>::new();
        let mut same = 0;
        for connection in connections {
            let (there, back) = (link(&there, connection.remote), link(&back, connection.local));
            same += usize::from(there.len() == 1 && there == back);
            there.into_iter().for_each(|link| *on.entry(link).or_default() += 1);
        }
        println!("{same} of {CONNECTIONS} on the same links, by link: {on:?}");
        (same, on)
    }
}

/// Data from `far` to `host`, and small frames from `host` to `far`. The data has the lead, although
/// the leaf has the lower address.
fn streams(lab: &Lab, of: &[Connection], port: SourcePort, mark: u64) -> [Stream; 2] {
    let stream = |from: &Host, to: &Host, payload, mark, connections| {
        let rate = Rate { frames: RATE, queue_pairs: CONNECTIONS, payload };
        Stream::of((from, to), rate, mark, (connections, port))
    };
    let reversed = of.iter().map(|c| Connection { local: c.remote, remote: c.local }).collect();
    let small = stream(&lab.host, &lab.far, 16, mark, of.to_vec());
    [small, stream(&lab.far, &lab.host, 2048, mark + 1, reversed)]
}

#[root_test]
fn d1_both_directions_of_64_connections_are_on_the_same_links() {
    let fabric = Fabric::new("bothdir");
    let connections = connections(0x7201, CONNECTIONS);
    let streams = streams(&fabric.routed.lab, &connections, SourcePort::PerQueuePair, 0x7201);
    let began = Instant::now();
    fabric.wait_until_all_are_said("yes");
    println!("d1: the same links after {} ms", began.elapsed().as_millis());
    let leads = |leaf: &Vtepd, vtep: &str| {
        let rows = leaf.ask(&["qp"]);
        let rows = rows.as_array().unwrap().clone();
        assert!(rows.iter().all(|row| row["vtep"] == vtep && row["partner"].is_u64()), "{rows:?}");
    };
    leads(&fabric.near, "10.0.0.2");
    leads(&fabric.far, "10.0.0.1");
    fabric.check(&connections, &streams.each_ref());

    // A link between routers dies silently. Both directions leave it, for the same link.
    let dead = [(&fabric.routed.lab.routers[0], "s1"), (&fabric.routed.spines[1], "r0")];
    for (router, interface) in dead {
        let policer = "qdisc replace dev {} root tbf rate 1kbit burst 1 limit 1";
        let words = format!("tc {}", policer.replace("{}", interface));
        router.run(&words.split(' ').collect::<Vec<_>>()).unwrap();
    }
    wait_for("three paths", || {
        [(&fabric.near, "10.0.0.2"), (&fabric.far, "10.0.0.1")].iter().all(|(leaf, vtep)| {
            leaf.ask(&["path", "--vtep", vtep])[0]["paths"].as_array().unwrap().len() == 3
        })
    });
    fabric.wait_until_all_are_said("yes");
    for stream in streams {
        let (_, report) = stream.finish();
        assert_eq!((report.reordered(), report.duplicated(), report.corrupted()), (0, 0, 0));
    }
}

/// A message of the communication manager, with these words of its body.
fn management(from: &Host, to: &Host, attribute: u16, words: &[(usize, u32)]) -> Vec<u8> {
    let mut packet = vec![0; 12 + 8 + 256 + 4];
    packet[..12].copy_from_slice(&[0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0]);
    packet[20..24].copy_from_slice(&[1, 7, 2, 3]);
    packet[36..38].copy_from_slice(&attribute.to_be_bytes());
    for (at, word) in words {
        packet[44 + at..48 + at].copy_from_slice(&word.to_be_bytes());
    }
    udp(Pair::of(from, to), (0xc000, 4791), &packet)
}

#[root_test]
fn d2_the_communication_manager_pairs_connections_with_one_inner_port() {
    let fabric = Fabric::new("bothcm");
    let connections = connections(0x7203, CONNECTIONS);
    let streams = streams(&fabric.routed.lab, &connections, SourcePort::Constant(0xc000), 0x7203);
    fabric.wait_until_all_are_said("unknown");
    let Lab { host, far, .. } = &fabric.routed.lab;
    let ids = || (1000..).zip(&connections);
    let request = |(id, of): (u32, &Connection)| {
        management(host, far, 0x10, &[(0, id), (32, of.local.get() << 8)])
    };
    let reply = |(id, of): (u32, &Connection)| {
        management(far, host, 0x13, &[(0, id + 500), (4, id), (12, of.remote.get() << 8)])
    };
    inject(&host.ns, ETH, &ids().map(request).collect::<Vec<_>>());
    inject(&far.ns, ETH, &ids().map(reply).collect::<Vec<_>>());
    fabric.wait_until_all_are_said("yes");
    fabric.check(&connections, &streams.each_ref());

    for stream in streams {
        stream.finish_whole();
    }
    // A host ends a connection, and the other one confirms.
    let number = |leaf: &Vtepd| leaf.ask(&["qp"]).as_array().unwrap().len();
    let end =
        management(host, far, 0x15, &[(0, 1003), (4, 1503), (8, connections[3].remote.get() << 8)]);
    inject(&host.ns, ETH, &[end]);
    wait_for("the queue pair to be forgotten", || number(&fabric.near) == CONNECTIONS - 1);
    inject(&far.ns, ETH, &[management(far, host, 0x16, &[(0, 1503), (4, 1003)])]);
    wait_for("the other one to be forgotten", || number(&fabric.far) == CONNECTIONS - 1);
}
