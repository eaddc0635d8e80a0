//! A VNI moves between the userspace and the kernel datapath under load. No frame is lost or
//! duplicated, and very few are reordered.
//!
//! A routing rule that may match the VNI's packets appears and disappears. It routes them as
//! before, so that only the datapath changes.

use root_test::root_test;
use vtepd_tests::lab::{Host, VNI, ip};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Vtepd};

const QUEUE_PAIRS: usize = 16;
/// Number of moves away and back.
const ROUNDS: u32 = 10;
const RULE: &str = "pref 100 to 10.0.0.2 lookup main";

/// Frames per second: `RATE` from the environment.
fn rate() -> u32 {
    std::env::var("RATE").ok().and_then(|rate| rate.parse().ok()).unwrap_or(50_000)
}

/// Checks the losses of a stream while the VNI moves away and back ten times.
fn moved(lab: &Lab, vtepd: &Vtepd, way: &str, from: &Host, to: &Host, mark: u64) {
    let rate = Rate { frames: rate(), queue_pairs: QUEUE_PAIRS, payload: 64 };
    let stream = Stream::start(from, to, rate, mark);
    let between = u64::from(rate.frames) / 5;
    let counted = || vtepd.metrics().vni_frames(VNI, way);
    stream.pass(between);
    for _ in 0..ROUNDS {
        assert!(counted() > 0, "{way}: by vtepd");
        ip(&lab.leaf, &format!("rule add {RULE}"));
        vtepd.wait_for("the VNI to go", |metrics| !metrics.has_vni(VNI));
        stream.pass(between);
        ip(&lab.leaf, &format!("rule del {RULE}"));
        vtepd.wait_for("the VNI to come back", |metrics| metrics.has_vni(VNI));
        stream.pass(between);
    }
    let (sent, report) = stream.finish();
    let fate = (report.lost(), report.duplicated(), report.corrupted());
    let (frames, reordered) = (sent.frames, report.reordered());
    println!(
        "{way}: {rate:?}: of {frames} frames, lost, doubled and damaged {fate:?}, {reordered} reordered"
    );
    assert_eq!(fate, (0, 0, 0), "{way}: lost, doubled and damaged of {frames}");
    // On a busy machine, frames may wait longer in a backlog of the kernel than the worker waits.
    assert!(reordered <= frames / 10_000, "{way}: {reordered} of {frames} are reordered");
}

#[root_test]
fn a_vni_that_moves_under_load_loses_and_doubles_nothing() {
    let lab = Lab::new("moving");
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    moved(&lab, &vtepd, "encapsulated", &lab.host, &lab.far, 0x91);
    moved(&lab, &vtepd, "decapsulated", &lab.far, &lab.host, 0x92);
}
