//! A source and a sink in two namespaces with a veth pair.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use root_test::root_test;
use traffic::roce::{Limit, Source};

use crate::{pair, source, stream};

#[root_test(alone)]
fn all_that_a_source_sends_arrives_in_order() {
    let [a, b] = pair("roce", 9000);
    let source = Source { cpu: Some(0), ..source(8, 64, 20_000) };
    let progress = AtomicU64::new(0);
    let count = |frames| {
        progress.fetch_add(frames, Ordering::Relaxed);
    };
    let (sent, mut sink) = stream([&a, &b], &source, 10_001, count);

    assert_eq!(sent.frames, 10_001);
    assert_eq!(progress.load(Ordering::Relaxed), 10_001);
    let rate = 10_001.0 / (sent.nanoseconds as f64 / 1e9);
    assert!((15_000.0..20_100.0).contains(&rate), "{rate} frames/s");
    let report = sink.report_of(&sent, &source.connections);
    assert_eq!(report.queue_pairs.len(), 8);
    assert_eq!(report.queue_pairs[0].received, 1251);
    assert_eq!(report.queue_pairs[7].received, 1250);
    assert_eq!(
        (report.lost(), report.reordered(), report.duplicated(), report.corrupted()),
        (0, 0, 0, 0)
    );

    // Frames of a stream with another mark count as foreign.
    let other = Source { mark: 2, ..source };
    let stop = AtomicBool::new(false);
    a.enter(|| other.run(Limit::Frames(100), &stop, |_| {})).unwrap().unwrap();
    while sink.report().foreign < 100 {
        assert!(sink.receive().unwrap() > 0, "frames are missing: {:?}", sink.report());
    }
    assert_eq!(sink.received(), 10_001);
}
