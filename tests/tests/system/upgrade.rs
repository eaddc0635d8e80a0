//! One vtepd replaces another.

use root_test::root_test;
use vtepd_tests::lab::VNI;
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Vtepd};

const RATE: Rate = Rate { frames: 5000, queue_pairs: 8, payload: 64 };

/// Several replacements with a stream in each direction. No frame is lost or duplicated.
#[root_test]
fn an_upgrade_under_traffic_loses_nothing() {
    let lab = Lab::new("new");
    let mut running = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    let streams = [
        Stream::start(&lab.host, &lab.far, RATE, 0x81),
        Stream::start(&lab.far, &lab.host, RATE, 0x82),
    ];
    for _ in 0..3 {
        streams.iter().for_each(|stream| stream.pass(500));
        let mut successor = Vtepd::spawn(&lab.leaf, &["--no-fpm", "--replace"]);
        let (status, log) = running.wait();
        assert!(status.success() && log.contains("another vtepd takes over"), "{status}: {log}");
        successor.wait_until_ready();
        successor.wait_for("frames through the successor", |metrics| {
            ["encapsulated", "decapsulated"].iter().all(|way| metrics.vni_frames(VNI, way) > 100)
        });
        running = successor;
    }
    for stream in streams {
        let (sent, report) = stream.finish();
        assert_eq!((report.lost(), report.duplicated()), (0, 0), "of {}", sent.frames);
    }
    // If no vtepd runs, `--replace` is an ordinary start.
    let (status, log) = running.terminate();
    assert!(status.success(), "{status}: {log}");
    drop(Vtepd::start(&lab.leaf, &["--no-fpm", "--replace"]));
}

/// A successor that cannot run does not end the running vtepd. Neither does an unknown request.
#[root_test]
fn a_successor_that_is_wrong_ends_nobody() {
    let lab = Lab::new("newx");
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    let refused = Vtepd::output(&lab.leaf, &["--replace", "--config", "/nonexistent/vtepd.toml"]);
    assert!(!refused.status.success());
    let refused = Vtepd::output(&lab.leaf, &["--no-fpm"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--replace"), "{refused:?}");
    lab.leaf
        .enter(|| {
            use std::io::{Read as _, Write as _};
            use std::os::linux::net::SocketAddrExt as _;
            let address = std::os::unix::net::SocketAddr::from_abstract_name("vtepd").unwrap();
            let mut stream = std::os::unix::net::UnixStream::connect_addr(&address).unwrap();
            stream.write_all(b"stop").unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it hangs up");
        })
        .unwrap();
    let metrics = vtepd.metrics();
    assert!(metrics.has_vni(VNI) && metrics.get("vtepd_ready") == 1);
}
