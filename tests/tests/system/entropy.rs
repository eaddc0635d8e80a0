//! The outer source port and the uplink of each frame on the wire.

use std::collections::{BTreeMap, BTreeSet};

use experiment::random::{Random, SEED};
use path::{Bins, Entropy, Policy, Settings, SourcePortRange};
use pipeline::Frame;
use root_test::root_test;
use vtepd_tests::capture::Captured;
use vtepd_tests::frames::{self, Ipv4, Pair, Roce, inject};
use vtepd_tests::lab::{ETH, VNI};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Capture, Lab, Outer, Vtepd, quiet, wait_for};
use wire::roce::opcode;

/// Maximum number of frames in flight. The backlog of a veth link (`netdev_max_backlog`, 1,000) and
/// the ring hold them even if the worker does not run.
const AT_ONCE: usize = 500;

/// Sends frames from the host and returns their outer headers, by uplink.
fn encapsulate(lab: &Lab, sent: &[Vec<u8>]) -> [Vec<Outer>; 2] {
    let up = lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", 4789));
    let mut so_far = 0;
    for some in sent.chunks(AT_ONCE) {
        inject(&lab.host.ns, ETH, some);
        so_far += some.len();
        wait_for("all frames on the uplinks", || up[0].count() + up[1].count() >= so_far);
    }
    let outers =
        |frames: Vec<Captured>| frames.iter().map(|frame| frame.outer(4789).unwrap()).collect();
    up.map(|capture| outers(capture.stop()))
}

/// The outer source port of each inner frame.
fn ports(lab: &Lab, sent: &[Vec<u8>]) -> Vec<u16> {
    let all: Vec<Outer> = encapsulate(lab, sent).into_iter().flatten().collect();
    assert_eq!(all.len(), sent.len());
    let port: BTreeMap<&[u8], u16> =
        all.iter().map(|outer| (&outer.inner[..], outer.source_port)).collect();
    sent.iter().map(|frame| port[&frame[..]]).collect()
}

#[root_test]
fn q1_one_queue_pair_has_one_outer_port_whatever_it_carries() {
    let lab = Lab::new("q1a");
    let opcodes = [
        opcode::RC_SEND_FIRST,
        opcode::RC_WRITE_ONLY,
        opcode::RC_READ_RESPONSE_MIDDLE,
        opcode::RC_ACKNOWLEDGE,
        opcode::UD_SEND_ONLY,
        opcode::CONGESTION_NOTIFICATION,
    ];
    for policy in ["qp-hash", "qp-bins"] {
        let _vtepd = Vtepd::start(&lab.leaf, &["--policy", policy]);
        for queue_pair in [2, 0x11_2233, 0xff_ffff] {
            let sent: Vec<Vec<u8>> = (0..600_u32)
                .map(|n| {
                    let source_port = 0xc000 + (n % 97) as u16;
                    let opcode = opcodes[n as usize % opcodes.len()];
                    let payload = (n as usize % 200) * 4;
                    let roce = Roce {
                        queue_pair,
                        sequence: n * 27_961 % (1 << 24),
                        opcode,
                        source_port,
                        payload,
                    };
                    roce.frame(Pair::of(&lab.host, &lab.far))
                })
                .collect();
            let used: BTreeSet<u16> = ports(&lab, &sent).into_iter().collect();
            assert_eq!(used.len(), 1, "{policy}, queue pair {queue_pair:#x}: {used:?}");
        }
    }
}

/// Half a million frames of one queue pair, or as many as pass in twelve seconds. A worker that is
/// not scheduled may lose some, which it counts. None may overtake another. The rate leaves the
/// captures 90 ms.
#[root_test]
fn q1_one_queue_pair_keeps_its_order() {
    let lab = Lab::new("q1b");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let count = |ports: &mut BTreeMap<u16, u64>, frame: &Frame<'_>| {
        if Outer::is_vxlan(frame.data, 4789) {
            *ports.entry(u16::from_be_bytes([frame.data[34], frame.data[35]])).or_default() += 1;
        }
    };
    let up =
        lab.routers.each_ref().map(|router| Capture::fold(router, "leaf", BTreeMap::new(), count));
    let stream = Stream::start(
        &lab.host,
        &lab.far,
        Rate { frames: 40_000, queue_pairs: 1, payload: 64 },
        0x9101,
    );
    let start = std::time::Instant::now();
    while stream.sent() < 450_000 && start.elapsed().as_secs() < 12 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let (sent, report) = stream.finish();
    let used: BTreeMap<u16, u64> = up.into_iter().flat_map(Capture::stop).collect();
    println!("q1: {} frames, {} lost, ports {used:?}", sent.frames, report.lost());
    assert_eq!(used.len(), 1, "{used:?}");
    assert_eq!((report.reordered(), report.duplicated(), report.corrupted()), (0, 0, 0));
    let metrics = vtepd.wait_until_idle();
    assert_eq!(
        report.lost(),
        metrics.dropped_in_all(),
        "lost frames that nobody counted:\n{}",
        metrics.0
    );
    assert!(report.received() > 200_000, "only {} frames in the time", report.received());
}

/// Pearson's statistic against equal shares.
fn chi_squared(counts: &[usize]) -> f64 {
    let expected = counts.iter().sum::<usize>() as f64 / counts.len() as f64;
    counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum()
}

#[root_test]
fn q2_queue_pairs_with_equal_inner_ports_spread_like_a_random_hash() {
    let lab = Lab::new("q2");
    let _vtepd = Vtepd::start(&lab.leaf, &["--policy", "qp-hash"]);
    let mut random = Random::new(SEED);
    for count in [8, 64, 512, 4096] {
        let queue_pairs: BTreeSet<u32> =
            std::iter::repeat_with(|| random.below(1 << 24) as u32).take(count).collect();
        let frames: Vec<Vec<u8>> = queue_pairs
            .iter()
            .map(|&qp| Roce::to(qp).frame(Pair::of(&lab.host, &lab.far)))
            .collect();
        let up = encapsulate(&lab, &frames);
        let shares = up.each_ref().map(Vec::len);
        assert_eq!(shares.iter().sum::<usize>(), frames.len());
        // p = 0.001 with one degree of freedom.
        assert!(chi_squared(&shares) < 10.83, "{count} queue pairs on two uplinks: {shares:?}");
        if count >= 512 {
            let mut bins = [0; 16];
            up.iter()
                .flatten()
                .for_each(|outer| bins[usize::from(outer.source_port - 49152) >> 10] += 1);
            // Fifteen degrees of freedom.
            assert!(
                chi_squared(&bins) < 37.70,
                "{count} queue pairs over the port range: {bins:?}"
            );
        }
    }
}

fn v6_options(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    bytes[1] = (length / 8 - 1) as u8;
    // PadN over the rest (RFC 8200 section 4.2).
    bytes[2..4].copy_from_slice(&[1, (length - 4) as u8]);
    bytes
}

#[root_test]
fn q3_the_queue_pair_is_found_behind_tags_and_extension_headers() {
    let lab = Lab::new("q3");
    let _vtepd = Vtepd::start(&lab.leaf, &["--policy", "qp-hash"]);
    let pair = Pair::of(&lab.host, &lab.far);
    let mut different = BTreeSet::new();
    for queue_pair in 100..110 {
        let plain = Roce::to(queue_pair).frame(pair);
        let v6 = Roce::to(queue_pair).frame_v6(pair, &[]);
        let routing = [0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let used = ports(
            &lab,
            &[
                plain.clone(),
                frames::tagged(&plain, 0x8100, 5),
                frames::tagged(&frames::tagged(&plain, 0x8100, 5), 0x88a8, 6),
                v6.clone(),
                frames::tagged(&v6, 0x8100, 5),
                Roce::to(queue_pair).frame_v6(pair, &[(0, v6_options(8))]),
                Roce::to(queue_pair).frame_v6(
                    pair,
                    &[(0, v6_options(8)), (43, routing.to_vec()), (60, v6_options(24))],
                ),
            ],
        );
        assert_eq!(used[..3], [used[0]; 3], "behind tags");
        assert_eq!(used[3..], [used[3]; 4], "behind extension headers");
        different.extend(used);
    }
    assert!(different.len() > 15, "queue pairs tell flows apart: {different:?}");

    // With a truncated base transport header the five-tuple determines the port, and the queue pair
    // does not.
    let cut = |queue_pair, length| {
        let transport = Roce::to(queue_pair).transport();
        frames::udp(pair, (0xc000, 4791), &transport[..length])
    };
    let used = ports(&lab, &[cut(1, 11), cut(0x99_9999, 11), cut(7, 5), cut(8, 0)]);
    assert_eq!(used, [used[0]; 4]);
}

#[root_test]
fn q4_all_fragments_of_a_datagram_have_one_outer_port() {
    let lab = Lab::new("q4");
    for policy in ["qp-hash", "qp-bins", "five-tuple"] {
        let _vtepd = Vtepd::start(&lab.leaf, &["--policy", policy]);
        let pair = Pair::of(&lab.host, &lab.far);
        let mut all = BTreeSet::new();
        for (identification, source_port) in [(1, 0xc000), (2, 0xc001), (3, 7)] {
            let datagram = frames::datagram(
                pair,
                (source_port, 4791),
                &Roce { payload: 4000, ..Roce::to(5) }.transport(),
            );
            let parts = datagram.len().div_ceil(1480);
            let fragments: Vec<Vec<u8>> = (0..)
                .zip(datagram.chunks(1480))
                .map(|(part, chunk)| {
                    let fields = Ipv4 {
                        identification,
                        fragment_offset: part * 185,
                        more_fragments: usize::from(part) + 1 < parts,
                        ..Ipv4::default()
                    };
                    frames::ipv4(pair, 17, chunk, fields)
                })
                .collect();
            all.extend(ports(&lab, &fragments));
        }
        assert_eq!(all.len(), 1, "{policy}: the addresses decide, and they are the same: {all:?}");
    }
}

/// Q9: `Entropy::decide` predicts the port on the wire for every policy, seed and range.
#[root_test]
fn q9_explain_says_what_the_wire_shows() {
    let lab = Lab::new("q9");
    let range: SourcePortRange = "50000-50999".parse().unwrap();
    for (policy, bins) in [(Policy::QpHash, 4), (Policy::QpBins, 7), (Policy::FiveTuple, 4)] {
        let settings = Settings {
            policy,
            seed: 77,
            range,
            bins: Bins::try_from(bins).unwrap(),
            netdev_range: None,
        };
        let entropy = Entropy::new(settings).unwrap();
        let (name, bins) = (policy.to_string(), bins.to_string());
        let arguments =
            ["--policy", &name, "--seed", "77", "--source-ports", "50000-50999", "--bins", &bins];
        let vtepd = Vtepd::start(&lab.leaf, &arguments);
        let pair = Pair::of(&lab.host, &lab.far);
        let mut random = Random::new(SEED);
        let sent: Vec<Vec<u8>> = (0..300)
            .map(|n| match n % 5 {
                0 => frames::udp(pair, (random.next() as u16, 53), &[n as u8; 30]),
                1 => frames::ethernet(pair, 0x8847, &random.next().to_be_bytes()),
                2 => frames::tagged(&Roce::to(random.below(1 << 24) as u32).frame(pair), 0x8100, 5),
                3 => Roce::to(random.below(1 << 24) as u32).frame_v6(pair, &[]),
                _ => Roce { sequence: n, ..Roce::to(random.below(1 << 24) as u32) }.frame(pair),
            })
            .collect();
        let expected: Vec<u16> = sent
            .iter()
            .map(|frame| entropy.decide(&wire::dissect(frame).unwrap()).source_port)
            .collect();
        assert_eq!(ports(&lab, &sent), expected, "{policy}");
        // The metrics contain the policy and the number of frames over each next hop.
        quiet();
        let metrics = vtepd.metrics();
        assert!(metrics.0.contains(&format!(
            "vtepd_vni_info{{vni=\"10\",netdev=\"vx10\",policy=\"{name}\"}} 1"
        )));
        assert_eq!(metrics.sum("vtepd_path_frames_total"), 300);
        assert_eq!(metrics.vni_frames(VNI, "encapsulated"), 300);
    }
}

/// With a constant inner port, kernel VXLAN and the five-tuple policy cannot distinguish queue
/// pairs.
#[root_test]
fn five_tuple_puts_all_queue_pairs_of_one_inner_port_on_one_outer_port() {
    let lab = Lab::new("ftp");
    let sent: Vec<Vec<u8>> = (2..66)
        .map(|queue_pair| Roce::to(queue_pair).frame(Pair::of(&lab.host, &lab.far)))
        .collect();
    assert_eq!(ports(&lab, &sent).into_iter().collect::<BTreeSet<_>>().len(), 1, "kernel VXLAN");
    let _vtepd = Vtepd::start(&lab.leaf, &["--policy", "five-tuple"]);
    assert_eq!(ports(&lab, &sent).into_iter().collect::<BTreeSet<_>>().len(), 1, "five-tuple");
}
