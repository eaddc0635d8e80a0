//! vtepctl's output equals the kernel's tables and the packets on the wire, and its changes take
//! effect under traffic.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use fabric::Namespace;
use root_test::root_test;
use serde_json::Value;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use vtepd_tests::frames::{self, Pair, Tunnelled, inject};
use vtepd_tests::lab::{ETH, VNI, bridge, ip, mac_of, run};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Capture, Lab, Vtepd, quiet, sockets, wait_for};
use wire::roce::{Bth, opcode};
use wire::{MacAddr, QueuePair, number};

/// MAC addresses and VTEPs in the kernel's FDB of a vxlan netdev. The flood list has MAC address
/// zero.
fn kernel_fdb(leaf: &Namespace, netdev: &str) -> BTreeSet<(String, String)> {
    let entries: Value =
        serde_json::from_str(&run(leaf, &format!("bridge -j fdb show dev {netdev}"))).unwrap();
    let with_vtep = entries.as_array().unwrap().iter().filter(|entry| entry["dst"].is_string());
    with_vtep.map(|entry| (text(&entry["mac"]), text(&entry["dst"]))).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// The same entries in vtepd.
fn vtepd_fdb(vtepd: &Vtepd, vni: &str) -> BTreeSet<(String, String)> {
    let rows = |answer: Value, mac: fn(&Value) -> String| {
        let rows = answer.as_array().unwrap().clone();
        rows.into_iter().map(move |row| (mac(&row), text(&row["vtep"])))
    };
    let fdb = rows(vtepd.ask(&["fdb", "--vni", vni]), |row| text(&row["mac"]));
    let flood = rows(vtepd.ask(&["flood", "--vni", vni]), |_| "00:00:00:00:00:00".to_owned());
    fdb.chain(flood).collect()
}

#[root_test]
fn the_fdb_is_the_kernels_and_the_status_says_who_is_taken_and_who_is_left() {
    let lab = Lab::new("ctl");
    lab.overlay(20, "nolearning", "nolearning", "");
    ip(&lab.leaf, "link set vx20 nomaster");
    let mut lines = String::new();
    for number in 0..2000 {
        let [high, low] = u16::to_be_bytes(number);
        lines += &format!(
            "fdb add 02:aa:00:00:{high:02x}:{low:02x} dev vx10 dst 10.0.0.{} self\n",
            2 + number % 2
        );
    }
    bridge(&lab.leaf, &lines);
    let vtepd = Vtepd::start(&lab.leaf, &[]);

    let status = vtepd.ask(&["status"]);
    assert_eq!(status["pid"], vtepd.pid());
    assert_eq!(status["ready"], true);
    assert_eq!(status["steering"]["uplinks"], serde_json::json!(["up1", "up2"]));
    assert_eq!(status["sources"][0]["state"], "live");
    assert_eq!(
        (&status["taken"][0]["netdev"], status["taken"].as_array().unwrap().len()),
        (&"vx10".into(), 1)
    );
    assert_eq!(status["left"][0]["vni"], 20);
    assert!(text(&status["left"][0]["left"]).contains("it is in no bridge"), "{status}");
    assert_eq!(status["left"][0]["reason_slug"], "not-in-bridge");

    let kernel = kernel_fdb(&lab.leaf, "vx10");
    assert!(kernel.len() > 2000, "{}", kernel.len());
    assert_eq!(vtepd_fdb(&vtepd, "10"), kernel);
    bridge(
        &lab.leaf,
        "fdb del 02:aa:00:00:00:00 dev vx10 dst 10.0.0.2 self\nfdb replace 02:aa:00:00:00:01 dev vx10 dst 10.0.0.2 self",
    );
    let kernel = kernel_fdb(&lab.leaf, "vx10");
    wait_for("the changes", || vtepd_fdb(&vtepd, "10") == kernel);
    let one = vtepd.ask(&["fdb", "--mac", "02:aa:00:00:00:01"]);
    assert_eq!((one[0]["vtep"].as_str(), one.as_array().unwrap().len()), (Some("10.0.0.2"), 1));

    // VNIs that do not exist or are not taken over.
    for (vni, says) in [
        ("20", "it is in no bridge"),
        ("30", "no vxlan netdev of this network namespace has VNI 30"),
    ] {
        let output = vtepd.ctl(&["fdb", "--vni", vni]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
    // A reader that closes the pipe early. A pipe holds 64 kB.
    let vtepctl = vtepd_tests::daemon::ctl_program();
    let line = format!("{} fdb | head -n 1; echo ${{PIPESTATUS[0]}}", vtepctl.display());
    let said = lab.leaf.run(&["bash", "-c", &line]).unwrap();
    assert_eq!(
        said.split_whitespace().collect::<Vec<_>>(),
        ["vni", "netdev", "mac", "vtep", "0"],
        "{said}"
    );

    // The next hops, after one of them has gone.
    let route = |m: &Value| {
        m.as_array().unwrap().iter().find(|route| route["vtep"] == "10.0.0.2").unwrap().clone()
    };
    let hops = |vtepd: &Vtepd| {
        let found = route(&vtepd.ask(&["route"]));
        let hops = found["next_hops"].as_array().unwrap().clone();
        (text(&found["state"]), hops.iter().map(|hop| text(&hop["uplink"])).collect::<Vec<_>>())
    };
    wait_for("both next hops", || {
        hops(&vtepd) == ("reachable".to_owned(), vec!["up1".into(), "up2".into()])
    });
    ip(&lab.leaf, "link set up1 down");
    wait_for("one next hop", || hops(&vtepd) == ("reachable".to_owned(), vec!["up2".into()]));
    ip(&lab.leaf, "route del 10.0.0.2/32");
    wait_for("no next hop", || hops(&vtepd) == ("unreachable".to_owned(), vec![]));
    let peers = vtepd.ask(&["peer"]);
    assert_eq!(
        (&peers[0]["vtep"], &peers[0]["state"]),
        (&"10.0.0.2".into(), &"unreachable".into())
    );
    assert_eq!(
        (&peers[0]["vnis"][0]["vni"], &peers[0]["vnis"][0]["flood"]),
        (&VNI.into(), &true.into())
    );

    // Without a vtepd, the error says what to do.
    let (_, _) = vtepd.terminate();
    let output = lab
        .leaf
        .enter(|| std::process::Command::new(&vtepctl).arg("status").output().unwrap())
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains(
            "no process listens on @vtepd-api in this network namespace: start vtepd here"
        ),
        "{said}"
    );
}

/// Events come after their change has taken effect, in order and without gaps.
#[root_test]
fn events_tell_what_the_kernel_adds_moves_and_removes() {
    let lab = Lab::new("events");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let mut events = vtepd.events();
    // Events from before the connection are stored.
    let attached = events.wait_for_kind("attached");
    assert_eq!((&attached["vni"], &attached["interface"]), (&10.into(), &"vx10".into()));
    let mac = "02:aa:00:00:00:01";
    let at = |vtep: &str| vtepd.ask(&["fdb", "--mac", mac])[0]["vtep"].as_str() == Some(vtep);
    bridge(&lab.leaf, &format!("fdb add {mac} dev vx10 dst 10.0.0.2 self"));
    let added = events.wait_for("the MAC address", |event| event["mac"] == mac);
    assert_eq!(
        (&added["kind"], &added["vtep"], &added["vni"]),
        (&"mac-added".into(), &"10.0.0.2".into(), &10.into())
    );
    assert!(at("10.0.0.2"), "it is forwarded by when the event is there");
    bridge(&lab.leaf, &format!("fdb replace {mac} dev vx10 dst 10.0.0.3 self"));
    let moved = events.wait_for("its move", |event| event["mac"] == mac);
    assert_eq!(
        (&moved["kind"], &moved["vtep"], &moved["previous_vtep"]),
        (&"mac-moved".into(), &"10.0.0.3".into(), &"10.0.0.2".into())
    );
    bridge(&lab.leaf, &format!("fdb del {mac} dev vx10 dst 10.0.0.3 self"));
    let removed = events.wait_for("its end", |event| event["mac"] == mac);
    assert_eq!(
        (&removed["kind"], &removed["vtep"], &removed["previous_vtep"]),
        (&"mac-removed".into(), &Value::Null, &"10.0.0.3".into())
    );
    bridge(&lab.leaf, "fdb del 00:00:00:00:00:00 dev vx10 dst 10.0.0.3 self");
    assert_eq!(events.wait_for_kind("flood-removed")["vtep"], "10.0.0.3");
    ip(&lab.leaf, "link set up1 down");
    let down = events.wait_for_kind("next-hop-down");
    assert_eq!((&down["interface"], &down["gateway"]), (&"up1".into(), &"10.1.1.0".into()));
    ip(&lab.leaf, "link set vx10 nomaster");
    assert_eq!(events.wait_for_kind("detached")["interface"], "vx10");
    let left = events.wait_for_kind("left");
    assert_eq!(
        left["text"],
        "VNI 10 (vx10) stays with the kernel: it is in no bridge [not-in-bridge]"
    );
    assert_eq!(left["reason_slug"], "not-in-bridge");

    // The netdev may still cause events.
    let listed = |arguments: &[&str]| -> Vec<u64> {
        let shown = vtepd.ctl(&[&["events", "-o", "json"], arguments].concat()).stdout;
        let sequence =
            |line: &str| serde_json::from_str::<Value>(line).unwrap()["sequence"].as_u64();
        String::from_utf8(shown).unwrap().lines().map(|line| sequence(line).unwrap()).collect()
    };
    let before = listed(&[]).len() as u64;
    let after = format!("--after={}", before - 2);
    let last = listed(&[&after]);
    let all = listed(&[]);
    assert_eq!(all, (1..=all.len() as u64).collect::<Vec<_>>());
    assert!(last.len() >= 2, "{last:?} of {before}");
    let text = String::from_utf8(vtepd.ctl(&["events", &after]).stdout).unwrap();
    assert!(text.lines().count() >= last.len(), "{text}");
    assert_eq!(last, (before - 1..=before - 2 + last.len() as u64).collect::<Vec<_>>());

    assert!(listed(&["--since", "1h"]).len() >= all.len());
    assert!(listed(&["--since", "0s"]).len() < all.len());
    let early = vtepd.ctl(&["events", "--after", "99999"]);
    let said = String::from_utf8(early.stderr).unwrap();
    assert!(!early.status.success() && said.contains("there is no event 99999 yet"), "{said}");
}

/// No frame is lost under traffic. SIGHUP restores the configured settings, but does not attach a
/// detached VNI.
#[root_test]
fn a_vni_is_detached_and_attached_under_traffic_without_loss() {
    let lab = Lab::new("attach");
    lab.overlay(20, "nolearning", "nolearning", "");
    let vtepd = Vtepd::start(&lab.leaf, &["--exclude", "20"]);
    let stream = Stream::start(
        &lab.host,
        &lab.far,
        Rate { frames: 5000, queue_pairs: 16, payload: 64 },
        0xa77ac,
    );
    let mut events = vtepd.events();
    stream.pass(500);
    for _ in 0..3 {
        assert_eq!(
            vtepd.ask(&["detach", "10"])["left"],
            "it was detached; `vtepctl attach` takes it over again"
        );
        assert!(!vtepd.metrics().has_vni(10));
        stream.pass(500);
        vtepd.hangup();
        events.wait_for_kind("reload");
        // An answer means that all earlier changes have taken effect.
        assert_eq!(vtepd.ask(&["policy", "set", "20", "qp-hash"])["taken"], Value::Null);
        let said =
            String::from_utf8(vtepd.ctl(&["policy", "set", "20", "qp-hash"]).stdout).unwrap();
        assert!(
            said.contains("VNI 20 (vx20) stays with the kernel: ")
                && said.contains("in force once"),
            "{said}"
        );
        assert!(!vtepd.metrics().has_vni(10), "still detached");
        assert_eq!(vtepd.ask(&["attach", "10"])["left"], Value::Null);
        let before = vtepd.metrics().vni_frames(10, "encapsulated");
        stream.pass(500);
        assert!(vtepd.metrics().vni_frames(10, "encapsulated") > before);
    }
    let (sent, report) = stream.finish();
    assert_eq!((report.lost(), report.duplicated()), (0, 0), "of {}", sent.frames);

    // Against the configuration, until it is read again.
    assert_eq!(vtepd.ask(&["attach", "20"])["taken"]["policy"]["name"], "qp-hash");
    vtepd.hangup();
    vtepd.wait_for("the configuration's word", |m| !m.has_vni(20) && m.has_vni(10));
    // If the VNI cannot be taken over, the answer is an error.
    ip(&lab.leaf, "link set vx20 nomaster");
    let output = vtepd.ctl(&["attach", "20"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success()
            && said.contains("vx20 (VNI 20) stays with kernel VXLAN: it is in no bridge"),
        "{said}"
    );
}

/// `explain` predicts the packets on the wire for each policy, set while vtepd runs.
#[root_test]
fn explain_is_what_the_wire_shows_and_a_policy_is_set_live() {
    let lab = Lab::new("explain");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let pair = Pair::of(&lab.host, &lab.far);
    let up = lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", 4789));
    let (mut ports, mut told) = (BTreeSet::new(), Vec::new());
    let settings: [&[&str]; 5] = [
        &[],
        &["five-tuple"],
        &["qp-bins"],
        &["--bins", "16"],
        &["qp-hash", "--source-ports", "50000-50099"],
    ];
    for arguments in settings {
        if !arguments.is_empty() {
            assert_eq!(vtepd.ask(&[&["policy", "set", "10"], arguments].concat())["vni"], 10);
            let events = String::from_utf8(vtepd.ctl(&["events"]).stdout).unwrap();
            let last = events.lines().rfind(|line| line.contains("  policy  ")).unwrap();
            assert!(last.contains(arguments.last().unwrap()), "{last}");
        }
        for queue_pair in [0x11_u32, 0x22, 0x33] {
            let (frame, mac) = (roce(pair, queue_pair), lab.far.mac().to_string());
            let (source, destination) = (lab.host.ip().to_string(), lab.far.ip().to_string());
            let queue_pair = queue_pair.to_string();
            let flow = [
                "--dst-mac",
                &mac,
                "--src",
                &source,
                "--dst",
                &destination,
                "--qp",
                &queue_pair,
                "--sport",
                "50000",
            ];
            let answer = vtepd.ask(&[&["explain", "--vni", "10"][..], &flow].concat());
            let copy = &answer["copies"][0];
            let port = copy["source_port"].as_u64().unwrap();
            let uplink = text(&copy["route"]["uplink"]);
            let before = up.each_ref().map(Capture::count);
            inject(&lab.host.ns, ETH, &[frame]);
            wait_for("the frame", || up[0].count() + up[1].count() > before[0] + before[1]);
            let by = if up[0].count() > before[0] { "up1" } else { "up2" };
            assert_eq!(by, uplink, "{arguments:?}: {answer}");
            ports.insert(port);
            told.push(port);
        }
    }
    let frames = up.map(Capture::stop).concat();
    let mut shown: Vec<u64> =
        frames.iter().map(|frame| frame.outer(4789).unwrap().source_port.into()).collect();
    assert!(ports.len() > 6, "policies differ: {ports:?}");
    assert!(told[12..].iter().all(|port| (50_000..=50_099).contains(port)), "{told:?}");
    let mut expected = told.clone();
    shown.sort_unstable();
    expected.sort_unstable();
    assert_eq!(shown, expected);

    // A captured VXLAN packet is explained by its contents.
    let file =
        std::env::temp_dir().join(format!("vtepd-story-explain-{}.pcap", std::process::id()));
    std::fs::write(&file, pcap(&frames[0].bytes)).unwrap();
    let answer = vtepd.ask(&["explain", "--pcap", file.to_str().unwrap()]);
    assert_eq!(
        (&answer["vni"], &answer["destination"]),
        (&10.into(), &lab.far.mac().to_string().into())
    );

    // Received packets: one for this leaf, one for another VTEP, and one with a reserved bit.
    let own = mac_of(&lab.leaf, "up1");
    let tunnelled = Tunnelled {
        to: own,
        source: [10, 0, 0, 2].into(),
        destination: [10, 0, 0, 1].into(),
        port: 4789,
        vni: VNI,
        tos: 0,
        flip: 0,
    };
    let inner = roce(Pair::of(&lab.far, &lab.host), 0x11);
    for (tunnelled, fate, reason) in [
        // The bridge bypass delivers it.
        (tunnelled, "host", Value::Null),
        (
            Tunnelled { destination: [10, 0, 0, 9].into(), ..tunnelled },
            "kernel",
            "unknown_vni".into(),
        ),
        (Tunnelled { flip: 1 << 63, ..tunnelled }, "kernel", "not_vxlan".into()),
    ] {
        let frame = tunnelled.frame(&inner);
        std::fs::write(&file, pcap(&frame)).unwrap();
        let answer = vtepd.ask(&["explain", "--received", "--pcap", file.to_str().unwrap()]);
        assert_eq!(
            (&answer["fate"], &answer["reason"]["reason"]),
            (&fate.into(), &reason),
            "{answer}"
        );
        let steered = || -> u64 {
            let metrics = vtepd.metrics();
            let frames = |decision: &str| {
                metrics.get(&format!("vtepd_steering_frames_total{{decision=\"{decision}\"}}"))
            };
            frames("uplink_redirected") + frames("offload_decapsulated")
        };
        let (before, at_host) = (steered(), Capture::start(&lab.host.ns, ETH, is_roce));
        inject(&lab.routers[0], "leaf", &[frame]);
        if fate == "host" {
            assert_eq!(
                (
                    &answer["netdev"],
                    &answer["port"],
                    &answer["vtep"],
                    &answer["known_vtep"],
                    &answer["source"]
                ),
                (
                    &"vx10".into(),
                    &"hp10".into(),
                    &"10.0.0.2".into(),
                    &true.into(),
                    &lab.far.mac().to_string().into()
                )
            );
            at_host.wait(1);
        }
        quiet();
        assert_eq!(steered() - before, u64::from(fate == "host"), "{answer}");
    }
    std::fs::remove_file(file).unwrap();

    // Invalid settings change nothing.
    for (arguments, says) in [
        (&["qp-hsah"][..], "a similar value exists: 'qp-hash'"),
        (&["qp-bins", "--bins", "101"], "101 bins do not fit"),
        (&["qp-bins", "--bins", "0"], "there cannot be 0 bins: expected a number from 1 to 65535"),
        (
            &["qp-bins", "--bins", "70000"],
            "there cannot be 70000 bins: expected a number from 1 to 65535",
        ),
        (&["--bins", "2"], "only qp-bins has bins"),
        (&[], "nothing to change"),
    ] {
        let output = vtepd.ctl(&[&["policy", "set", "10"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
    let policy = || vtepd.ask(&["policy", "show"])[0]["taken"]["policy"].clone();
    assert_eq!(
        (&policy()["name"], &policy()["source_ports"]),
        (&"qp-hash".into(), &"50000-50099".into())
    );
    vtepd.hangup();
    wait_for("the configuration's word", || policy()["source_ports"] == "49152-65535");
}

/// A socket with a path belongs to its owner alone and disappears with the daemon. Health and
/// reflection services follow their specifications.
#[root_test]
fn a_path_has_permissions_and_the_standard_services_answer() {
    let lab = Lab::new("path");
    let path = std::env::temp_dir().join(format!("vtepd-story-path-{}.sock", std::process::id()));
    let socket = path.to_str().unwrap();
    let vtepd = Vtepd::start(&lab.leaf, &["--api-listen", socket]);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(vtepd.ask(&["--socket", socket, "status"])["pid"], vtepd.pid());
    let said = String::from_utf8(vtepd.ctl(&["status"]).stderr).unwrap();
    assert!(said.contains("no process listens on @vtepd-api"), "{said}");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (serving, services) = runtime.block_on(async {
        let channel = api::channel(&socket.parse().unwrap()).await.unwrap();
        let request = HealthCheckRequest { service: "vtepd.v1.Vtepd".to_owned() };
        let health =
            HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner().status;
        let request = ServerReflectionRequest {
            message_request: Some(MessageRequest::ListServices(String::new())),
            ..ServerReflectionRequest::default()
        };
        let answers = ServerReflectionClient::new(channel)
            .server_reflection_info(tokio_stream::once(request))
            .await;
        let answer = answers.unwrap().into_inner().message().await.unwrap().unwrap();
        (health, format!("{answer:?}"))
    });
    assert_eq!(serving, ServingStatus::Serving as i32);
    for service in ["vtepd.v1.Vtepd", "grpc.health.v1.Health"] {
        assert!(services.contains(service), "no {service} in {services}");
    }
    let (status, log) = vtepd.terminate();
    assert!(status.success() && !path.exists(), "{log}");

    // Only root and the daemon's user may use the abstract socket. Other users get an error that
    // explains it.
    let _vtepd = Vtepd::start(&lab.leaf, &[]);
    let copy = std::env::temp_dir().join(format!("vtepctl-{}", std::process::id()));
    std::fs::copy(vtepd_tests::daemon::ctl_program(), &copy).unwrap();
    let as_nobody =
        || std::process::Command::new(&copy).arg("status").uid(65534).gid(65534).output().unwrap();
    let output = lab.leaf.enter(as_nobody).unwrap();
    std::fs::remove_file(copy).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("runs as user 0, which you are not"),
        "{said}"
    );
}

/// Frames to and from each VTEP add up to the VNIs' counters.
#[root_test]
fn each_peer_shows_what_it_was_sent_and_what_it_sent() {
    let lab = Lab::new("peers");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    sockets::ping(&lab.host, lab.far.ip(), 7, 1000, &[]);
    sockets::ping(&lab.farther, lab.host.ip(), 5, 500, &[]);
    inject(&lab.host.ns, ETH, &[roce(Pair::of(&lab.host, &lab.far).to_mac(MacAddr::BROADCAST), 1)]);
    let idle = vtepd.wait_until_idle();
    let peers = vtepd.ask(&["peer"]);
    let of = |row: usize, name: &str| {
        peers[row]["traffic"][name].as_u64().unwrap_or_else(|| panic!("{peers}"))
    };
    let frames = |row| (of(row, "sent_frames"), of(row, "received_frames"));
    assert_eq!((&peers[0]["vtep"], frames(0)), (&"10.0.0.2".into(), (8, 7)), "{peers}");
    assert_eq!((&peers[1]["vtep"], frames(1)), (&"10.0.0.3".into(), (6, 5)), "{peers}");
    let counters = vtepd.ask(&["counters"]);
    for (mine, theirs) in
        [("encapsulated_bytes", "sent_bytes"), ("decapsulated_bytes", "received_bytes")]
    {
        assert_eq!(counters["vnis"][0][mine], of(0, theirs) + of(1, theirs), "{peers} {counters}");
    }
    assert_eq!(idle.get("vtepd_peer_frames_total{vtep=\"10.0.0.2\",direction=\"received\"}"), 7);
    assert_eq!(
        (&counters["worker_stalls"], &counters["steering"]["uplink_stalled"]),
        (&0.into(), &0.into())
    );
    let shown = String::from_utf8(vtepd.ctl(&["peer"]).stdout).unwrap();
    let line: Vec<&str> = shown
        .lines()
        .find(|line| line.starts_with("10.0.0.3"))
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!((line[3], line[5]), ("6", "5"), "{shown}");
}

fn is_roce(frame: &[u8]) -> bool {
    frame.get(36..38) == Some(&number::PORT_ROCE.to_be_bytes())
}

/// A RoCE frame from inner source port 50000.
fn roce(pair: Pair, queue_pair: u32) -> Vec<u8> {
    let bth = Bth::new(opcode::RC_SEND_ONLY, QueuePair::try_from(queue_pair).unwrap(), 0);
    frames::udp(pair, (50_000, number::PORT_ROCE), &[&bth.as_bytes()[..], &[0; 68]].concat())
}

/// A capture file with one frame.
fn pcap(frame: &[u8]) -> Vec<u8> {
    let length = frame.len() as u32;
    let header = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 65_535, 1, 0, 0, length, length];
    header.into_iter().flat_map(u32::to_be_bytes).chain(frame.iter().copied()).collect()
}
