//! An idle worker sleeps, unless it runs with `--busy-poll`.

use std::time::Duration;

use root_test::root_test;
use vtepd_tests::{Lab, Vtepd, sockets, wait_for};

#[root_test]
fn a_worker_sleeps_by_default() {
    let lab = Lab::new("busy");
    for (arguments, spins) in [(&["--no-fpm"][..], false), (&["--no-fpm", "--busy-poll"], true)] {
        let vtepd = Vtepd::start(&lab.leaf, arguments);
        sockets::ping(&lab.host, lab.far.ip(), 10, 1400, &[]);
        sockets::tcp_both_ways(&lab.host, &lab.far, 1_000_000);
        vtepd.wait_until_idle();
        if spins {
            // Other processes may use the CPU as well.
            let before = vtepd.cpu_time("worker");
            let enough = before + Duration::from_millis(200);
            wait_for("the worker to spin", || vtepd.cpu_time("worker") > enough);
        } else {
            let percent = vtepd.cpu_use("worker");
            assert!(percent <= 2, "{percent} %");
        }
        let (status, log) = vtepd.terminate();
        assert!(status.success(), "{log}");
    }
}
