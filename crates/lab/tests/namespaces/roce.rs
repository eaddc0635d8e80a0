//! A source and a sink in two namespaces with a veth pair.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use experiment::random::SEED;
use fabric::netns::{Namespace, veth};
use root_test::root_test;
use traffic::roce::{Limit, Sink, Source, SourcePort, connections};

#[root_test(alone)]
fn all_that_a_source_sends_arrives_in_order() {
    let name = format!("lab-roce-{}", std::process::id());
    let [a, b] = ["a", "b"].map(|end| Namespace::create(format!("{name}-{end}")).unwrap());
    veth((&a, "eth1"), (&b, "eth1"), 9000).unwrap();
    a.run(&["ip", "addr", "add", "192.0.2.1/24", "dev", "eth1"]).unwrap();
    b.run(&["ip", "addr", "add", "192.0.2.2/24", "dev", "eth1"]).unwrap();

    let source = Source {
        interface: "eth1".into(),
        destination: "192.0.2.2".parse().unwrap(),
        connections: connections(SEED, 8),
        inner_port: SourcePort::Constant(49152),
        payload: 64,
        rate: 20_000,
        mark: 1,
        cpu: Some(0),
    };
    let mut sink = b.enter(|| Sink::open("eth1", 1).unwrap()).unwrap();
    let (stop, progress) = (AtomicBool::new(false), AtomicU64::new(0));
    let count = |frames| {
        progress.fetch_add(frames, Ordering::Relaxed);
    };
    let sent = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            a.enter(|| source.run(Limit::Frames(10_001), &stop, count)).unwrap().unwrap()
        });
        while !sending.is_finished() {
            sink.receive().unwrap();
        }
        sending.join().unwrap()
    });
    sink.drain(&sent, Duration::from_secs(2)).unwrap();

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
    a.enter(|| other.run(Limit::Frames(100), &stop, |_| {})).unwrap().unwrap();
    while sink.report().foreign < 100 {
        assert!(sink.receive().unwrap() > 0, "frames are missing: {:?}", sink.report());
    }
    assert_eq!(sink.received(), 10_001);
}
