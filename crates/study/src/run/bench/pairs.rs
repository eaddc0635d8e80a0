//! What the numbered frames of a run tell about each queue pair.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use experiment::Run;
use experiment::record::{Arrival, Moved, QueuePair, Timeline};

use traffic::roce::{Report, Sent};
use traffic::stream::{FRAME, Streamed};
use traffic::trace::{Change, Trace, Traced};

/// Fills in what the frames of a stream tell. `traced`: where they went. `failure`: when the first
/// failure began.
pub(super) fn fill(
    run: &mut Run,
    of: &Streamed,
    traced: Option<&Traced>,
    failure: Option<Instant>,
) {
    let Streamed { sent, arrived, timeline } = of;
    run.sent = sent.frames;
    run.arrival = Some(Arrival {
        lost: arrived.lost(),
        reordered: arrived.reordered(),
        duplicated: arrived.duplicated(),
    });
    run.seconds = sent.nanoseconds as f64 / 1e9;
    run.pairs = pairs(sent, arrived, traced);
    let since = |at: Instant| at.saturating_duration_since(timeline.origin).as_secs_f64() * 1e3;
    let moved = |of: &Change| Moved {
        queue_pair: of.queue_pair,
        at: since(of.at),
        from: of.from.clone(),
        to: of.to.clone(),
    };
    run.moved = traced.iter().flat_map(|of| &of.changes).map(moved).collect();
    run.timeline = Some(Timeline {
        sent: timeline.sent.clone(),
        arrived: timeline.arrived.clone(),
        failure: failure.map(since),
    });
}

/// The interval of the frames of a queue pair in milliseconds.
pub(super) fn interval(sent: &Sent) -> f64 {
    let each = sent.frames as f64 / sent.queue_pairs.max(1) as f64;
    sent.nanoseconds as f64 / 1e6 / each.max(1.0)
}

fn pairs(sent: &Sent, arrived: &Report, traced: Option<&Traced>) -> Vec<QueuePair> {
    let interval = interval(sent);
    let pair = |(index, of): (u64, &traffic::roce::QueuePairReport)| {
        let way = traced.and_then(|traced| traced.queue_pairs.get(&of.queue_pair));
        let is_whole = traced.is_some_and(|traced| traced.missed == 0);
        QueuePair {
            number: of.queue_pair,
            path: way.map(|way| way.links.join(" ")),
            sent: sent.to(index),
            lost: of.lost,
            reordered: of.reordered,
            outage: of.lost_in_a_row as f64 * interval,
            bytes: of.received * FRAME,
            moves: way.filter(|_| is_whole).map(|way| way.moves),
        }
    };
    (0..).zip(&arrived.queue_pairs).map(pair).collect()
}

/// Follows queue pairs while `work` is done.
///
/// # Errors
/// Those of `work`.
pub(super) fn traced<T, E>(
    trace: Option<Trace>,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<(T, Option<Traced>), E> {
    /// Also ends the trace if the work panics.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let following = trace.map(|trace| scope.spawn(|| trace.run(&stop)));
        let ends = Ends(&stop);
        let result = work();
        drop(ends);
        let traced = following
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        Ok((result?, traced))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use traffic::roce::QueuePairReport;
    use traffic::trace::Way;

    #[test]
    fn each_queue_pair_has_its_own_figures() {
        let of = |queue_pair, received, lost, lost_in_a_row| QueuePairReport {
            queue_pair,
            received,
            lost,
            lost_in_a_row,
            reordered: 0,
            duplicated: 0,
            corrupted: 0,
        };
        let sent = Sent { frames: 1001, queue_pairs: 2, nanoseconds: 1_001_000_000 };
        let report = Report { queue_pairs: vec![of(7, 441, 60, 50), of(8, 500, 0, 0)], foreign: 0 };
        let way = Way { links: vec!["leaf1:up1".into(), "spine1:dci2".into()], moves: 2 };
        let mut traced = Traced { queue_pairs: [(7, way)].into(), ..Traced::default() };
        let found = pairs(&sent, &report, Some(&traced));
        let figures =
            |pair: &QueuePair| (pair.number, pair.sent, pair.lost, pair.bytes, pair.moves);
        assert_eq!(figures(&found[0]), (7, 501, 60, 441 * 1082, Some(2)));
        assert_eq!(figures(&found[1]), (8, 500, 0, 500 * 1082, None));
        assert!((found[0].outage - 100.0).abs() < 1e-9 && found[1].outage == 0.0, "{found:?}");
        let path = Some("leaf1:up1 spine1:dci2".to_owned());
        assert_eq!([&found[0].path, &found[1].path], [&path, &None]);
        // Moves may be among the frames that were not seen.
        traced.missed = 1;
        let found = pairs(&sent, &report, Some(&traced));
        assert_eq!((&found[0].path, found[0].moves), (&path, None));
    }
}
