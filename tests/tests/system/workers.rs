//! Several workers: how flows and standalone VNIs are distributed over them.

use root_test::root_test;
use vtepd_tests::daemon::USERSPACE;
use vtepd_tests::lab::{PEER, PEER2, ip};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Setup, Vtepd, sockets, wait_for};

/// Frames that each worker has received, from a field of `vtepctl counters`.
fn received(vtepd: &Vtepd, field: &str) -> Vec<u64> {
    let counters = vtepd.ask(&["counters"]);
    let workers = counters["workers"].as_array().unwrap();
    workers.iter().map(|worker| worker[field].as_u64().unwrap()).collect()
}

/// A leaf with three workers behaves like a leaf with one. Hosts talk, streams in both directions
/// arrive in order, and all frames are counted. At the end everything is given back to the kernel.
#[root_test]
fn a_leaf_with_three_workers_forwards_in_order() {
    let lab = Lab::new("workers");
    let vtepd = Vtepd::start(&lab.leaf, &[&USERSPACE[..], &["--workers", "3"]].concat());
    sockets::ping(&lab.host, lab.far.ip(), 5, 1000, &[]);
    sockets::tcp_both_ways(&lab.host, &lab.far, 3_000_000);
    // All fragments of a datagram have the same worker.
    sockets::udp(&lab.far, &lab.host, 50, 4000, true);
    let rate = Rate { frames: 4000, queue_pairs: 32, payload: 256 };
    let streams = [(&lab.host, &lab.far), (&lab.far, &lab.host)]
        .map(|(from, to)| Stream::start(from, to, rate, 0x776f_726b));
    streams.iter().for_each(|stream| stream.pass(8000));
    for stream in streams {
        let (sent, report) = stream.finish();
        assert_eq!(report.received(), sent.frames);
        assert_eq!((report.duplicated(), report.reordered(), report.corrupted()), (0, 0, 0));
    }
    let metrics = vtepd.wait_until_idle();
    assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
    for field in ["received_underlay", "received_bridge"] {
        let workers = received(&vtepd, field);
        assert!(
            workers.len() == 3 && workers.iter().all(|frames| *frames > 500),
            "{field}: {workers:?}"
        );
    }
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{log}");
    sockets::ping(&lab.host, lab.far.ip(), 1, 1000, &[]);
}

/// A vtepd on the other leaf gives queue pairs other outer ports than the kernel. Their frames keep
/// their worker here.
#[root_test]
fn flows_keep_their_worker_when_their_outer_ports_change() {
    let lab = Lab::new("workport");
    let vtepd = Vtepd::start(&lab.leaf, &[&USERSPACE[..], &["--workers", "3"]].concat());
    let rate = Rate { frames: 8000, queue_pairs: 32, payload: 64 };
    let stream = Stream::start(&lab.far, &lab.host, rate, 0x706f_7274);
    for _ in 0..4 {
        stream.pass(2000);
        let peer = Vtepd::start(&lab.peer, &[]);
        stream.pass(2000);
        let (status, log) = peer.terminate();
        assert!(status.success(), "{log}");
    }
    let (sent, report) = stream.finish();
    assert_eq!(report.received(), sent.frames);
    assert_eq!((report.duplicated(), report.reordered(), report.corrupted()), (0, 0, 0));
    assert!(received(&vtepd, "received_underlay").iter().all(|frames| *frames > 500));
}

/// A standalone VNI belongs to one worker with all its ports, because its stations are in one
/// table.
#[root_test]
fn standalone_vnis_are_dealt_over_workers() {
    let lab = Lab::with("workvnis", Setup { learning: true, ..Setup::default() });
    for leaf in [&lab.leaf, &lab.peer, &lab.peer2] {
        ip(leaf, "link del vx10\nlink del br10\n");
    }
    let table = |vni: u32, local, remote, port| {
        format!(
            "[[standalone]]\nvni = {vni}\nlocal = \"{local}\"\nremotes = [\"{remote}\"]\nports = [{{ interface = \"{port}\" }}]\n"
        )
    };
    let leaf = vtepd_tests::lab::LEAF;
    // Additional workers would have no VNI.
    let ours = format!(
        "[takeover]\nworkers = 4\n{}{}",
        table(10, leaf, PEER, "hp10"),
        table(20, leaf, PEER2, "hq10")
    );
    let vtepd = Vtepd::start_configured(&lab.leaf, &ours, &[]);
    let _peers =
        [(&lab.peer, table(10, PEER, leaf, "hp10")), (&lab.peer2, table(20, PEER2, leaf, "hp10"))]
            .map(|(peer, text)| Vtepd::start_configured(peer, &text, &[]));
    for (here, there) in [(&lab.host, &lab.far), (&lab.next, &lab.farther)] {
        sockets::ping(here, there.ip(), 5, 1000, &[]);
        sockets::tcp_both_ways(here, there, 1_000_000);
    }
    // Ports have their names from the configuration file.
    for (host, expected) in [(&lab.host, "hp10".to_owned()), (&lab.next, "hq10".to_owned())]
        .into_iter()
        .chain([(&lab.far, PEER.to_string()), (&lab.farther, PEER2.to_string())])
    {
        wait_for("the host to be learned", || vtepd.place(host.mac()).as_ref() == Some(&expected));
    }
    for field in ["received_underlay", "received_bridge"] {
        let workers = received(&vtepd, field);
        assert!(
            workers.len() == 2 && workers.iter().all(|frames| *frames > 20),
            "{field}: {workers:?}"
        );
    }
    let metrics = vtepd.wait_until_idle();
    assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
}
