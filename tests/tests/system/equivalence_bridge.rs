//! Settings of the bridge and the vxlan netdev also apply with vtepd: vtepd delivers as many frames
//! as the kernel. The setting may exist before vtepd starts or appear later.

use std::net::Ipv4Addr;
use std::path::Path;

use root_test::root_test;
use vtepd_tests::frames::{self, Ipv4, Pair, inject};
use vtepd_tests::lab::{ETH, PEER2, VNI, run, sysctl};
use vtepd_tests::multicast::set_entry;
use vtepd_tests::{Capture, Host, Lab, Setup, Vtepd, quiet, wait_for};
use wire::MacAddr;

/// The payload of all frames in these tests.
const MARK: &[u8] = b"equivalence at the bridge";
/// A MAC address that is in no table.
const STRANGER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x77]);

fn is_ours(frame: &[u8]) -> bool {
    frame.windows(MARK.len()).any(|window| window == MARK)
}

/// Injects frames at one host and returns the lengths of those that arrive at each of the others.
fn delivered(from: &Host, to: &[&Host], frames: &[Vec<u8>]) -> Vec<Vec<usize>> {
    let captures: Vec<_> = to.iter().map(|host| Capture::start(&host.ns, ETH, is_ours)).collect();
    inject(&from.ns, ETH, frames);
    quiet();
    captures.into_iter().map(|c| c.stop().iter().map(|frame| frame.bytes.len()).collect()).collect()
}

fn is_taken(vtepd: &Vtepd) {
    vtepd.wait_for("the VNI to be taken over", |metrics| metrics.left("vx10").is_none());
}

/// Compares what the kernel and vtepd deliver: with the setting before the start, without it, and
/// with it again.
fn compare<T: PartialEq + std::fmt::Debug>(
    lab: &Lab,
    set: impl Fn(bool),
    slug: Option<&str>,
    deliver: impl Fn() -> T,
) {
    let without = deliver();
    set(true);
    let kernel = deliver();
    assert_ne!(kernel, without, "the setting makes a difference");
    let vtepd = Vtepd::start(&lab.leaf, &["--bridge-bypass", "--no-fpm"]);
    let applies = |vtepd: &Vtepd| match slug {
        Some(slug) => {
            drop(vtepd.wait_for(slug, |metrics| metrics.left("vx10").as_deref() == Some(slug)))
        }
        None => is_taken(vtepd),
    };
    applies(&vtepd);
    assert_eq!(deliver(), kernel, "before the start");
    set(false);
    is_taken(&vtepd);
    assert_eq!(deliver(), without, "taken away");
    set(true);
    applies(&vtepd);
    wait_for("the setting to apply", || deliver() == kernel);
    assert_eq!(deliver(), kernel, "while it runs");
}

/// A queueing discipline of the netdev with room for one frame. Of twenty frames hardly any leave.
#[root_test]
fn a_queueing_discipline_of_the_netdev_shapes() {
    let lab = Lab::new("eqtbf");
    let pair = Pair::of(&lab.host, &lab.far);
    let payload = [MARK, &[0; 1300]].concat();
    let frames = vec![frames::udp(pair, (1, 2), &payload); 20];
    // Whether all frames arrive. The number that arrives depends on timing.
    let all = || delivered(&lab.host, &[&lab.far], &frames)[0].len() == frames.len();
    let set = |there| {
        let what = if there {
            "replace dev vx10 root tbf rate 8kbit burst 1600 limit 3000"
        } else {
            "del dev vx10 root"
        };
        run(&lab.leaf, &format!("tc qdisc {what}"));
    };
    compare(&lab, set, Some("netdev-qdisc"), all);
}

/// With a multicast entry of the netdev, only its VTEP gets the group's frames.
#[root_test]
fn a_multicast_entry_of_the_netdev_names_who_gets_a_group() {
    let lab = Lab::new("eqmdb");
    let entry = (Ipv4Addr::new(239, 1, 1, 1), PEER2);
    if !set_entry(&lab.leaf, "vx10", entry, true) {
        root_test::ignore("the kernel has no VXLAN MDB (Linux 6.4)");
    }
    assert!(set_entry(&lab.leaf, "vx10", entry, false));
    let group = MacAddr([1, 0, 0x5e, 1, 1, 1]);
    let mut pair = Pair::of(&lab.host, &lab.far).to_mac(group);
    pair.to.1 = entry.0;
    let frames = vec![frames::udp(pair, (1, 2), MARK); 5];
    let deliver = || delivered(&lab.host, &[&lab.far, &lab.farther], &frames);
    let set = |there| assert!(set_entry(&lab.leaf, "vx10", entry, there));
    compare(&lab, set, Some("vxlan-mdb"), deliver);
}

/// A locked port of the netdev: the bridge drops frames from sources that it does not have on this
/// port.
#[root_test]
fn a_locked_port_of_the_netdev_lets_only_known_sources_in() {
    let lab = Lab::new("eqlock");
    let pair = Pair { from: (STRANGER, lab.far.ip()), ..Pair::of(&lab.far, &lab.host) };
    let speak = Pair::of(&lab.host, &lab.host).to_mac(MacAddr::BROADCAST);
    let frames = vec![frames::udp(pair, (1, 2), MARK); 5];
    let deliver = || {
        // The bridge learns the host, so that frames for it may use the bypass.
        inject(&lab.host.ns, ETH, &[frames::ethernet(speak, 0x88b5, &[0; 50])]);
        quiet();
        delivered(&lab.far, &[&lab.host], &frames)
    };
    let set = |there| {
        let locked = if there { "on" } else { "off" };
        run(&lab.leaf, &format!("ip link set vx10 type bridge_slave locked {locked}"));
    };
    compare(&lab, set, None, deliver);
}

/// Malformed IPv4 packets between two hosts.
fn malformed(pair: Pair) -> Vec<Vec<u8>> {
    let plain = || frames::udp(pair, (1, 2), MARK);
    let change = |at: usize, value: u8| {
        let mut frame = plain();
        frame[at] = value;
        frame[24..26].fill(0);
        let sum = wire::checksum::checksum(&frame[14..34]).to_be_bytes();
        frame[24..26].copy_from_slice(&sum);
        frame
    };
    let mut checksum = plain();
    checksum[24] ^= 1;
    vec![
        plain(),
        change(14, 0x65),
        change(14, 0x44),
        change(17, 200),
        change(17, 19),
        checksum,
        [plain(), vec![0; 3]].concat(),
        plain(),
    ]
}

fn br_netfilter() -> Result<(), String> {
    let exists = Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists();
    if exists { Ok(()) } else { Err("the kernel has no br_netfilter".to_owned()) }
}

/// With bridge-nf-call-iptables the bridge drops malformed packets and removes bytes after a
/// packet.
#[root_test(needs = br_netfilter)]
fn malformed_packets_are_what_the_bridge_makes_of_them() {
    let lab = Lab::new("eqmal");
    // The other leaves must not change the packets.
    lab.without_bridge_netfilter();
    let (out, back) =
        (malformed(Pair::of(&lab.host, &lab.far)), malformed(Pair::of(&lab.far, &lab.host)));
    // Malformed packets belong to other flows than the others. A worker forwards those, while BPF
    // programs forward the others, so they may arrive in another order.
    let deliver = || {
        let mut both =
            [delivered(&lab.host, &[&lab.far], &out), delivered(&lab.far, &[&lab.host], &back)];
        both.iter_mut().flatten().for_each(|lengths| lengths.sort_unstable());
        both
    };
    let name = "bridge/bridge-nf-call-iptables";
    let mut seen = Vec::new();
    for on in ["0", "1"] {
        sysctl(&lab.leaf, name, on);
        let kernel = deliver();
        let vtepd = Vtepd::start(&lab.leaf, &["--bridge-bypass", "--no-fpm"]);
        // The bridge learns the host from the first frames.
        deliver();
        vtepd.wait_for("the bypass", |m| m.get("vtepd_bypass_addresses{state=\"known\"}") >= 3);
        assert_eq!(deliver(), kernel, "bridge-nf-call-iptables={on}");
        seen.push(kernel);
    }
    assert_ne!(seen[0], seen[1], "the bridge makes a difference");
}

/// Inherited fields of tagged frames: the kernel parses 802.1Q and 802.1ad tags, but for the
/// don't-fragment bit no tags.
#[root_test]
fn outer_fields_of_tagged_frames_are_the_kernels() {
    let inherit = "tos inherit ttl inherit df inherit";
    let lab = Lab::with("eqtag", Setup { vxlan: inherit, ..Setup::default() });
    lab.without_bridge_netfilter();
    let pair = Pair::of(&lab.host, &lab.far);
    let fields = Ipv4 { tos: 0x49, ttl: 33, dont_fragment: true, ..Ipv4::default() };
    let plain = frames::ipv4(pair, 17, &frames::datagram(pair, (1, 2), MARK), fields);
    let tags: [&[u16]; 7] =
        [&[], &[0x8100], &[0x88a8], &[0x9100], &[0x8100, 0x8100], &[0x8100, 0x9100], &[0x8100; 5]];
    let frames: Vec<Vec<u8>> = tags
        .iter()
        .map(|tags| {
            tags.iter().rev().fold(plain.clone(), |frame, tpid| frames::tagged(&frame, *tpid, 5))
        })
        .chain([plain[..33].to_vec()])
        .collect();
    let seen = || -> Vec<_> {
        let outer = |frame: &Vec<u8>| {
            let up =
                lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", lab.setup.port));
            inject(&lab.host.ns, ETH, std::slice::from_ref(frame));
            quiet();
            let seen = up
                .into_iter()
                .flat_map(Capture::stop)
                .filter_map(|seen| seen.outer(lab.setup.port));
            let addresses = &frame[..12];
            seen.filter(|outer| &outer.inner[..12] == addresses)
                .map(|outer| (outer.tos, outer.ttl, outer.dont_fragment, outer.inner))
                .collect::<Vec<_>>()
        };
        frames.iter().map(outer).collect()
    };
    let kernel = seen();
    assert_eq!(kernel[0].len(), 1);
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    for ((vtepd, kernel), tags) in seen().iter().zip(&kernel).zip(tags.iter().chain([&&[0][..]])) {
        assert_eq!(vtepd, kernel, "behind {tags:x?}");
    }
    assert!(vtepd.metrics().vni_frames(VNI, "encapsulated") >= 7);
}
