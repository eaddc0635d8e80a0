//! No frame is lost, duplicated or reordered when the bypass appears and disappears. Only few are
//! lost when vtepd is killed.

use std::process::Command;

use root_test::root_test;
use vtepd_tests::Lab;
use vtepd_tests::lab::ip;
use vtepd_tests::stream::{Rate, Stream};

use super::{HOOKS, RATE, port, start, steering};

/// One queue pair, so that every frame that is overtaken counts as reordered.
const DENSE: Rate = Rate { frames: 8000, queue_pairs: 1, payload: 64 };

/// Receives the hosts' frames on another CPU than the sender's, so that they are processed in
/// batches. Within a batch, a frame on a shorter path could overtake others.
fn in_batches(lab: &Lab) {
    for port in ["hp10", "hq10"] {
        let set = format!("echo 2 > /sys/class/net/{port}/queues/rx-0/rps_cpus");
        // In the namespace's own sysfs.
        let arguments = ["netns", "exec", lab.leaf.name(), "sh", "-c", &set];
        let output = Command::new("ip").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// About fifty frames a second pass through the bridge to refresh its entry. No other frame
/// overtakes them.
#[root_test]
fn refreshing_the_bridges_view_reorders_nothing() {
    for hook in HOOKS {
        let lab = Lab::new("screfresh");
        in_batches(&lab);
        let vtepd = start(&lab, hook);
        // In hundredths of a second. A quarter of the ageing time may pass between refreshes.
        ip(&lab.leaf, "link set br10 type bridge ageing_time 8");
        let streams = [
            Stream::start(&lab.host, &lab.far, DENSE, 0xd1),
            Stream::start(&lab.next, &lab.farther, DENSE, 0xd2),
        ];
        streams.iter().for_each(|stream| stream.pass(u64::from(DENSE.frames) * 5));
        for stream in streams {
            let (sent, report) = stream.finish();
            let bad = (report.lost(), report.duplicated(), report.reordered(), report.corrupted());
            assert_eq!(bad, (0, 0, 0, 0), "{hook}: of {}", sent.frames);
        }
        let metrics = vtepd.metrics();
        assert!(steering(&metrics, "port_refreshed") > 200, "{hook}: {}", metrics.0);
        assert!(
            steering(&metrics, "port_bypassed") > u64::from(DENSE.frames) * 8,
            "{hook}: {}",
            metrics.0
        );
    }
}

/// The bypass appears and disappears while numbered frames pass. No frame is lost, duplicated or
/// reordered.
#[root_test]
fn the_bypass_comes_and_goes_without_loss_or_reordering() {
    for hook in HOOKS {
        let lab = Lab::new("sccycle");
        in_batches(&lab);
        let vtepd = start(&lab, hook);
        let streams = [
            Stream::start(&lab.host, &lab.far, DENSE, 0xa1),
            Stream::start(&lab.next, &lab.farther, DENSE, 0xa2),
        ];
        for round in 0..10 {
            ip(&lab.leaf, "link set hp10 type bridge_slave isolated on");
            vtepd.wait_for("it to go", |m| port(m, "hp10").is_some_and(|port| port.is_err()));
            streams.iter().for_each(|stream| stream.pass(300));
            ip(&lab.leaf, "link set hp10 type bridge_slave isolated off");
            vtepd.wait_for("it to come", |m| port(m, "hp10") == Some(Ok(())));
            let before = steering(&vtepd.metrics(), "port_bypassed");
            streams.iter().for_each(|stream| stream.pass(300));
            // When a port gets the bypass, its bridge's other ports wait until all addresses behind
            // it are known.
            vtepd.wait_for(&format!("the bypass in round {round}"), |m| {
                steering(m, "port_bypassed") > before + 600
            });
        }
        for stream in streams {
            let (sent, report) = stream.finish();
            let bad = (report.lost(), report.duplicated(), report.reordered(), report.corrupted());
            assert_eq!(bad, (0, 0, 0, 0), "{hook}: of {}", sent.frames);
        }
    }
}

/// When vtepd is killed while frames pass, the bridge gets the frames immediately.
#[root_test]
fn killed_it_leaves_everything_to_the_bridge() {
    for hook in HOOKS {
        let lab = Lab::new("sckill");
        let vtepd = start(&lab, hook);
        let stream = Stream::start(&lab.host, &lab.far, RATE, 0xb1);
        stream.pass(1000);
        assert!(steering(&vtepd.metrics(), "port_bypassed") > 500);
        vtepd.kill();
        stream.pass(4000);
        let (sent, report) = stream.finish();
        let limit = u64::from(RATE.frames) / 10;
        assert!(report.lost() < limit, "{hook}: {} of {} are lost", report.lost(), sent.frames);
        assert_eq!((report.duplicated(), report.corrupted()), (0, 0), "{hook}");
    }
}
