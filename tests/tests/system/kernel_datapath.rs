//! The `kernel` datapath: kernel VXLAN encapsulates, with the source port that the policy selects.
//! The tests cover each kind of netdev that vtepd does not take over. Queue pairs with one inner
//! source port get different outer ports, as `vtepctl explain` reports, and use all uplinks.

use std::collections::BTreeSet;

use path::{Bins, Entropy, Policy, Settings, SourcePortRange};
use root_test::root_test;
use vtepd_tests::capture::Capture;
use vtepd_tests::frames::{self, Pair, Roce, inject};
use vtepd_tests::lab::{bridge, ip, run, sysctl};
use vtepd_tests::{Lab, Vtepd, wait_for};

/// The kernel's default `ip_local_port_range` is 32768 to 60999. VXLAN never uses the last port.
const KERNEL_RANGE: (u16, u16) = (32768, 60998);
/// Upper bound of Pearson's statistic with one degree of freedom, p = 0.001.
const CHI_SQUARED: f64 = 10.83;

/// A VXLAN packet captured on an uplink.
#[derive(Debug, Clone)]
struct Sent {
    source_port: u16,
    inner: Vec<u8>,
}

impl Sent {
    /// Parses a packet over IPv4 without options, or IPv6 without extension headers, to UDP port
    /// 4789 or 4790.
    fn parse(frame: &[u8]) -> Option<Self> {
        let udp = match frame.get(12..14)? {
            [0x08, 0x00] if frame.get(23) == Some(&17) => 34,
            [0x86, 0xdd] if frame.get(20) == Some(&17) => 54,
            _ => return None,
        };
        let port = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        matches!(port(udp + 2)?, 4789 | 4790)
            .then_some(Self { source_port: port(udp)?, inner: frame.get(udp + 16..)?.to_vec() })
    }
}

/// The lab, and the interface of its first host that sends the frames.
struct Overlay {
    lab: Lab,
    interface: String,
}

impl Overlay {
    /// Sends `frames` and captures what leaves over both uplinks.
    fn send(&self, frames: &[Vec<u8>]) -> [Vec<Sent>; 2] {
        let up = self.lab.routers.each_ref().map(|router| {
            Capture::fold(router, "leaf", Vec::new(), |sent: &mut Vec<Sent>, frame| {
                sent.extend(Sent::parse(frame.data));
            })
        });
        for some in frames.chunks(200) {
            inject(&self.lab.host.ns, &self.interface, some);
        }
        let so_far = || up.iter().map(|capture| capture.look(Vec::len)).sum::<usize>();
        wait_for("all frames on the uplinks", || so_far() >= frames.len());
        up.map(Capture::stop)
    }

    /// Sends frames to 32 and to 512 queue pairs, all with one inner source port. Compares each
    /// outer port with the policy and with `vtepctl explain`. If `uplinks` is set, checks that the
    /// shares of the two uplinks are plausible for a random hash.
    fn check(&self, vtepd: &Vtepd, vni: u32, entropy: &Entropy, uplinks: bool) {
        let pair = Pair::of(&self.lab.host, &self.lab.far);
        let to = |queue_pair| Roce::to(queue_pair).frame(pair);
        for count in [32, 512] {
            let frames: Vec<Vec<u8>> = (0x100..0x100 + count).map(to).collect();
            let up = self.send(&frames);
            let mut ports = BTreeSet::new();
            for sent in up.iter().flatten() {
                let decided = entropy.decide(&wire::dissect(&sent.inner).unwrap());
                assert_eq!(sent.source_port, decided.source_port, "{:02x?}", sent.inner);
                ports.insert(sent.source_port);
            }
            let shares = up.each_ref().map(Vec::len);
            assert_eq!(shares.iter().sum::<usize>(), frames.len(), "each frame leaves once");
            match entropy.bins() {
                Some(bins) => assert_eq!(ports.len(), usize::from(bins.get())),
                // With 512 queue pairs and 28,000 ports, a few ports are used twice.
                None => assert!(ports.len() > count as usize * 9 / 10, "{} ports", ports.len()),
            }
            if uplinks {
                assert!(shares.iter().all(|share| *share > 0), "all uplinks are used: {shares:?}");
                let fair = frames.len() as f64 / 2.0;
                let statistic =
                    shares.iter().map(|share| (*share as f64 - fair).powi(2) / fair).sum::<f64>();
                let bins = entropy.bins().is_some();
                assert!(
                    bins || statistic < CHI_SQUARED,
                    "{count} queue pairs on two uplinks: {shares:?}"
                );
            }
        }
        for queue_pair in [0x100, 0x11f] {
            let (vni, number) = (vni.to_string(), queue_pair.to_string());
            let flow = ["explain", "--vni", &vni, "--src", "192.168.10.1", "--dst", "192.168.10.3"];
            let rest = ["--dst-mac", "02:00:00:00:0a:03", "--qp", &number];
            let said = vtepd.ask(&[&flow[..], &rest[..]].concat());
            assert_eq!(said["datapath"], "kernel", "{said}");
            let decided = entropy.decide(&wire::dissect(&to(queue_pair)).unwrap());
            assert_eq!(said["copies"][0]["source_port"], decided.source_port, "{said}");
        }
    }
}

fn entropy(policy: Policy, bins: u16, range: (u16, u16)) -> Entropy {
    let range = SourcePortRange::try_from(range).unwrap();
    let bins = Bins::try_from(bins).unwrap();
    Entropy::new(Settings { policy, seed: 0, range, bins, netdev_range: None }).unwrap()
}

/// Adds an overlay to the leaf with one host, which vtepd does not take over. `flood` is the remote
/// VTEP, if it is unicast.
fn overlay(case: &str, options: &str, flood: &str) -> Overlay {
    let lab = Lab::new(case);
    // Bridges have no IPv6, because their own packets would be counted.
    for interface in ["lo", "up1", "up2"] {
        sysctl(&lab.leaf, &format!("ipv6/conf/{interface}/disable_ipv6"), "0");
    }
    sysctl(&lab.leaf, "ipv6/fib_multipath_hash_policy", "1");
    let mut text = String::from("addr add fd01::1/128 dev lo\n");
    let mut hops = String::new();
    for router in 1..=2 {
        let mac = vtepd_tests::lab::mac_of(&lab.routers[router - 1], "leaf");
        text += &format!(
            "addr add fd01:{router}::1/64 dev up{router} nodad\n\
             neigh add fd01:{router}::2 lladdr {mac} dev up{router} nud permanent\n"
        );
        hops += &format!(" nexthop via fd01:{router}::2 dev up{router}");
    }
    text += &format!(
        "route add fd01::2/128{hops}\n\
         link add br30 type bridge mcast_snooping 0\n\
         link add vx30 type vxlan id 30 dstport 4789 nolearning {options}\n\
         link set vx30 master br30 up\n\
         link add hp30 type veth peer name eth30 netns {host}\n\
         link set hp30 master br30 up\n\
         link set br30 up\n",
        host = lab.host.ns.name()
    );
    ip(&lab.leaf, &text);
    ip(&lab.host.ns, "link set eth30 up\n");
    if !flood.is_empty() {
        bridge(&lab.leaf, &format!("fdb append 00:00:00:00:00:00 dev vx30 dst {flood}\n"));
    }
    wait_for("the port to forward", || {
        run(&lab.leaf, "bridge link show dev hp30").contains("state forwarding")
    });
    Overlay { lab, interface: "eth30".to_owned() }
}

/// The row of a netdev in `vtepctl vni`.
fn row(vtepd: &Vtepd, netdev: &str) -> serde_json::Value {
    let rows = vtepd.ask(&["vni"]);
    let all = rows.as_array().unwrap_or_else(|| panic!("{rows}"));
    all.iter().find(|row| row["netdev"] == netdev).unwrap_or_else(|| panic!("{rows}")).clone()
}

#[root_test]
fn a_netdev_with_an_ipv6_underlay_gets_chosen_ports() {
    let overlay = overlay("kd6", "local fd01::1", "fd01::2");
    let configuration = "[vni.30]\ndatapath = \"kernel\"\n";
    let vtepd = Vtepd::start_configured(&overlay.lab.leaf, configuration, &[]);
    let row = row(&vtepd, "vx30");
    assert_eq!(
        (&row["datapath"], &row["reason_slug"]),
        (&"kernel".into(), &"kernel-datapath".into()),
        "{row}"
    );
    assert_eq!(row["chosen_port"]["policy"]["name"], "qp-hash", "{row}");
    assert_eq!(row["chosen_port"]["route_per_frame"], true, "{row}");
    overlay.check(&vtepd, 30, &entropy(Policy::QpHash, 4, KERNEL_RANGE), true);
    // The policy changes while frames may be in flight.
    let _ = vtepd.ask(&["policy", "set", "30", "qp-bins", "--bins", "4"]);
    overlay.check(&vtepd, 30, &entropy(Policy::QpBins, 4, KERNEL_RANGE), false);
    // Frames that are not IP keep the kernel's own hash, which is the same for the same MAC
    // addresses.
    let pair = Pair::of(&overlay.lab.host, &overlay.lab.far);
    let up = overlay.send(&[0u8, 1, 2, 3].map(|n| frames::ethernet(pair, 0x8847, &[n; 60])));
    let ports: BTreeSet<u16> = up.iter().flatten().map(|sent| sent.source_port).collect();
    assert_eq!(ports.len(), 1, "{ports:?}");
    let metrics = vtepd.metrics();
    assert_eq!(metrics.get("vtepd_steering_frames_total{decision=\"port_kept\"}"), 4);
    assert_eq!(
        metrics.get("vtepd_steering_frames_total{decision=\"port_chosen\"}"),
        2 * (32 + 512)
    );
    let series = r#"vtepd_vni_datapath{vni="30",netdev="vx30",datapath="kernel",policy="qp-bins"}"#;
    assert_eq!(metrics.get(series), 1);
    // When vtepd stops, the kernel's hash applies again: one inner port gives one outer port.
    assert!(vtepd.terminate().0.success());
    let up = overlay.send(&(0x100..0x120).map(|qp| Roce::to(qp).frame(pair)).collect::<Vec<_>>());
    let ports: BTreeSet<u16> = up.iter().flatten().map(|sent| sent.source_port).collect();
    assert_eq!(ports.len(), 1, "kernel VXLAN by itself: {ports:?}");
}

#[root_test]
fn a_netdev_without_a_local_address_gets_chosen_ports_within_its_range() {
    let overlay = overlay("kdl", "srcport 49152 65535", "10.0.0.2");
    let vtepd = Vtepd::start(&overlay.lab.leaf, &["--hook", "clsact"]);
    assert_eq!(row(&vtepd, "vx30")["reason_slug"], "no-local-address");
    // The configured range ends at 65535, which the kernel never uses.
    overlay.check(&vtepd, 30, &entropy(Policy::QpHash, 4, (49152, 65534)), true);
    // A configured range applies within the netdev's range.
    let _ = vtepd.ask(&["policy", "set", "30", "--source-ports", "50000-60000"]);
    overlay.check(&vtepd, 30, &entropy(Policy::QpHash, 4, (50000, 60000)), true);
}

#[root_test]
fn a_netdev_with_a_multicast_group_gets_chosen_ports() {
    let overlay = overlay("kdm", "local 10.0.0.1 group 239.1.1.1 dev up1", "");
    let vtepd = Vtepd::start(&overlay.lab.leaf, &[]);
    assert_eq!(row(&vtepd, "vx30")["reason_slug"], "multicast-group");
    overlay.check(&vtepd, 30, &entropy(Policy::QpHash, 4, KERNEL_RANGE), false);
}

#[root_test]
fn the_kernel_datapath_can_be_chosen() {
    let overlay = Overlay { lab: Lab::new("kdc"), interface: "eth10".to_owned() };
    let vtepd = Vtepd::start(&overlay.lab.leaf, &["--datapath", "kernel"]);
    let chosen = row(&vtepd, "vx10");
    assert_eq!(
        (&chosen["datapath"], &chosen["reason_slug"]),
        (&"kernel".into(), &"kernel-datapath".into())
    );
    overlay.check(&vtepd, 10, &entropy(Policy::QpHash, 4, KERNEL_RANGE), true);
    // Kernel VXLAN forwarded everything, and the worker nothing.
    assert_eq!(vtepd.metrics().sum("vtepd_vni_frames_total"), 0);
    drop(vtepd);
    // For one VNI, without the mark. Frames from one CPU then leave over one uplink.
    let configuration = "[takeover]\nroute-per-frame = \"off\"\n[vni.10]\ndatapath = \"kernel\"\n";
    let vtepd = Vtepd::start_configured(&overlay.lab.leaf, configuration, &[]);
    assert_eq!(row(&vtepd, "vx10")["chosen_port"]["route_per_frame"], false);
    overlay.check(&vtepd, 10, &entropy(Policy::QpHash, 4, KERNEL_RANGE), false);
    drop(vtepd);
    // Excluded VNIs are not touched.
    let vtepd = Vtepd::start(&overlay.lab.leaf, &["--exclude", "10"]);
    let excluded = row(&vtepd, "vx10");
    assert_eq!(
        (&excluded["datapath"], &excluded["chosen_port"]),
        (&"kernel".into(), &serde_json::Value::Null),
        "{excluded}"
    );
}

/// One netdev for several VNIs, in a VLAN-aware bridge that maps VLAN 40 to VNI 40 and VLAN 41 to
/// VNI 41.
#[root_test]
#[ignore = "needs bridge VLAN filtering: tests/linux-vm 6.1 kernel_datapath"]
fn an_external_netdev_on_a_vlan_aware_bridge_gets_chosen_ports() {
    let lab = Lab::new("kde");
    ip(
        &lab.leaf,
        &format!(
            "link add br40 type bridge vlan_filtering 1 mcast_snooping 0\n\
             link add vx40 type vxlan external vnifilter local 10.0.0.1 dstport 4790 nolearning\n\
             link set vx40 master br40 up\n\
             link add hp40 type veth peer name eth40 netns {host}\n\
             link set hp40 master br40 up\n\
             link add hp41 type veth peer name eth41 netns {host}\n\
             link set hp41 master br40 up\n\
             link set br40 up\n",
            host = lab.host.ns.name()
        ),
    );
    ip(&lab.host.ns, "link set eth40 up\nlink set eth41 up\n");
    bridge(&lab.leaf, "link set dev vx40 vlan_tunnel on\n");
    for number in [40, 41] {
        bridge(
            &lab.leaf,
            &format!(
                "vni add dev vx40 vni {number}\n\
                 vlan add dev vx40 vid {number}\n\
                 vlan add dev vx40 vid {number} tunnel_info id {number}\n\
                 vlan add dev hp{number} vid {number} pvid untagged\n\
                 fdb append 00:00:00:00:00:00 dev vx40 dst 10.0.0.2 src_vni {number}\n"
            ),
        );
    }
    for port in ["hp40", "hp41"] {
        let state = || run(&lab.leaf, &format!("bridge link show dev {port}"));
        wait_for("the port to forward", || state().contains("state forwarding"));
    }
    let vtepd =
        Vtepd::start_configured(&lab.leaf, "[vni.41]\npolicy = \"qp-bins\"\n", &["--no-fpm"]);
    let external = row(&vtepd, "vx40");
    assert_eq!(
        (&external["datapath"], &external["external"]),
        (&"kernel".into(), &true.into()),
        "{external}"
    );
    assert_eq!(external["chosen_port"]["policy"]["name"], "qp-hash", "{external}");
    assert_eq!(external["chosen_port"]["vnis"][0]["vni"], 41, "{external}");
    let mut overlay = Overlay { lab, interface: "eth40".to_owned() };
    overlay.check(&vtepd, 40, &entropy(Policy::QpHash, 4, KERNEL_RANGE), true);
    overlay.interface = "eth41".to_owned();
    overlay.check(&vtepd, 41, &entropy(Policy::QpBins, 4, KERNEL_RANGE), false);
    let _ = vtepd.ask(&["policy", "set", "40", "qp-bins", "--bins", "8"]);
    overlay.interface = "eth40".to_owned();
    overlay.check(&vtepd, 40, &entropy(Policy::QpBins, 8, KERNEL_RANGE), false);
}
