//! An idle worker sleeps, unless it runs with `--busy-poll`.

use std::time::{Duration, Instant};

use root_test::root_test;
use vtepd_tests::{Lab, Vtepd, sockets};

/// CPU time of an idle worker, in percent of a core.
fn idle_use(vtepd: &Vtepd) -> u64 {
    let schedstat = vtepd.thread("worker").join("schedstat");
    let run = || {
        let line = std::fs::read_to_string(&schedstat).unwrap();
        line.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let (before, start) = (run(), Instant::now());
    std::thread::sleep(Duration::from_millis(500));
    (run() - before) * 100 / start.elapsed().as_nanos() as u64
}

#[root_test]
fn a_worker_sleeps_by_default() {
    let lab = Lab::new("busy");
    for (arguments, spins) in [(&["--no-fpm"][..], false), (&["--no-fpm", "--busy-poll"], true)] {
        let vtepd = Vtepd::start(&lab.leaf, arguments);
        sockets::ping(&lab.host, lab.far.ip(), 10, 1400, &[]);
        sockets::tcp_both_ways(&lab.host, &lab.far, 1_000_000);
        vtepd.wait_until_idle();
        let percent = idle_use(&vtepd);
        // Other processes may use the CPU as well.
        assert!(if spins { percent >= 25 } else { percent <= 2 }, "{arguments:?}: {percent} %");
        let (status, log) = vtepd.terminate();
        assert!(status.success(), "{log}");
    }
}
