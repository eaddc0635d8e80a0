//! The scheduling policy of a worker, by its load.

use std::time::{Duration, Instant};

use ports::thread_policy::ThreadPolicy;
use root_test::root_test;
use worker::Scheduling;

/// A batch of more frames is sent as `SCHED_BATCH`.
const LARGE: usize = 512;

#[root_test]
fn a_worker_with_much_to_do_waits_its_turn_and_one_with_little_does_not() {
    // The policy is that of a thread, and other tests may run on this one.
    std::thread::scope(|scope| {
        scope.spawn(follow_the_load);
    });
}

fn follow_the_load() {
    let start = Instant::now();
    let at = |micros: u64| start + Duration::from_micros(micros);
    let mut scheduling = Scheduling::prompt().unwrap();
    assert!(ThreadPolicy::Fifo.is_set());
    // Awake for too long, whatever the other figures are.
    scheduling.work(at(0), 1);
    scheduling.work(at(1_999), 1);
    assert!(ThreadPolicy::Fifo.is_set());
    scheduling.work(at(2_000), 1);
    assert!(ThreadPolicy::Batch.is_set());
    // The new window has few wake-ups and frames.
    scheduling.rest(at(2_010));
    assert!(ThreadPolicy::Batch.is_set());
    scheduling.rest(at(3_010));
    assert!(ThreadPolicy::Fifo.is_set());
    // 10,000 wake-ups a second are few, 50,000 are not.
    (0..50).for_each(|wake| scheduling.rest(at(3_110 + wake * 100)));
    assert!(ThreadPolicy::Fifo.is_set());
    (0..200).for_each(|wake| scheduling.rest(at(8_100 + wake * 20)));
    assert!(ThreadPolicy::Batch.is_set());
    scheduling.work(at(12_100), 1);
    scheduling.rest(at(12_110));
    // A second later.
    scheduling.rest(at(1_012_100));
    assert!(ThreadPolicy::Fifo.is_set());
    // 50,000 frames a second are few, 60,000 are not, however few the wake-ups.
    scheduling.work(at(1_022_000), 501);
    scheduling.rest(at(1_022_100));
    assert!(ThreadPolicy::Batch.is_set());
    scheduling.work(at(1_032_100), 500);
    scheduling.rest(at(1_032_200));
    assert!(ThreadPolicy::Fifo.is_set());
    // Few frames that are much work: busy for 0.6 or 0.4 of each millisecond.
    for (start, busy, expected) in
        [(1_040_000, 600, ThreadPolicy::Batch), (1_060_000, 400, ThreadPolicy::Fifo)]
    {
        scheduling.rest(at(start));
        for turn in 0..10 {
            scheduling.work(at(start + turn * 1_000), 1);
            scheduling.rest(at(start + turn * 1_000 + busy));
        }
        assert!(expected.is_set(), "{busy} µs of each millisecond");
    }
    // A batch of many copies is not sent as `SCHED_FIFO`.
    scheduling.begin(LARGE);
    assert!(ThreadPolicy::Fifo.is_set());
    scheduling.begin(LARGE + 1);
    assert!(ThreadPolicy::Batch.is_set());
    scheduling.rest(at(2_000_000));
    assert!(ThreadPolicy::Fifo.is_set());
    let mut scheduling = Scheduling::fair();
    assert!(ThreadPolicy::Fifo.is_set(), "it leaves a thread as it is");
    ThreadPolicy::Batch.set().unwrap();
    scheduling.rest(at(0));
    scheduling.rest(at(10_000));
    assert!(ThreadPolicy::Batch.is_set());
}
