//! What the numbered frames of a run tell about each queue pair.

use std::collections::BTreeMap;
use std::time::Instant;

use api::v1;
use experiment::Run;
use experiment::record::{Arrival, QueuePair, Timeline};

use crate::ask::ask;
use fabric::deployed::{Deployed, Host};
use traffic::roce::{Report, Sent};
use traffic::stream::{FRAME, Streamed};

/// Fills in what the frames of a stream tell. `placed`: what the sending leaf knows. `failure`: when
/// the first failure began.
pub(super) fn fill(run: &mut Run, of: &Streamed, placed: &Placed, failure: Option<Instant>) {
    let Streamed { sent, arrived, timeline } = of;
    run.sent = sent.frames;
    run.arrival = Some(Arrival {
        lost: arrived.lost(),
        reordered: arrived.reordered(),
        duplicated: arrived.duplicated(),
    });
    run.seconds = sent.nanoseconds as f64 / 1e9;
    run.pairs = pairs(sent, arrived, placed);
    let since = |at: Instant| at.saturating_duration_since(timeline.origin).as_secs_f64() * 1e3;
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

fn pairs(sent: &Sent, arrived: &Report, placed: &Placed) -> Vec<QueuePair> {
    let interval = interval(sent);
    let pair = |(index, of): (u64, &traffic::roce::QueuePairReport)| {
        let placed = placed.get(&of.queue_pair);
        QueuePair {
            number: of.queue_pair,
            path: placed.map(|(path, _)| path.clone()),
            sent: sent.to(index),
            lost: of.lost,
            reordered: of.reordered,
            outage: of.lost_in_a_row as f64 * interval,
            bytes: of.received * FRAME,
            moves: placed.map(|(_, moves)| *moves),
        }
    };
    (0..).zip(&arrived.queue_pairs).map(pair).collect()
}

/// The path and the moves of queue pairs, by destination queue pair.
pub(super) type Placed = BTreeMap<u32, (String, u32)>;

/// The records of the leaf of the sending host; empty where nothing keeps any.
pub(super) fn placed(deployed: &Deployed, from: &Host) -> Placed {
    let request = v1::ListQueuePairsRequest { vni: Some(from.vni), ..Default::default() };
    let rows = deployed.namespace(&from.leaf).ok().and_then(|namespace| {
        let asked = ask(&namespace, async |mut vtepd| {
            let mut rows = vtepd.list_queue_pairs(request).await?.into_inner();
            let mut all = Vec::new();
            while let Some(row) = rows.message().await? {
                all.push(row);
            }
            Ok(all)
        });
        // Kernel VXLAN forwards, or a failure has ended vtepd.
        asked.ok()
    });
    let source = from.address.to_string();
    let own = rows.unwrap_or_default().into_iter().filter(|row| row.source == source);
    own.map(|row| (row.queue_pair, (path(&row), row.moves))).collect()
}

/// The uplink and the routers after it.
fn path(row: &v1::QueuePair) -> String {
    let words = std::iter::once(&row.uplink).chain(&row.routers);
    words.map(String::as_str).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use traffic::roce::QueuePairReport;

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
        let placed = Placed::from([(7, ("up1 10.1.0.25".to_owned(), 2))]);
        let found = pairs(&sent, &report, &placed);
        let figures =
            |pair: &QueuePair| (pair.number, pair.sent, pair.lost, pair.bytes, pair.moves);
        assert_eq!(figures(&found[0]), (7, 501, 60, 441 * 1082, Some(2)));
        assert_eq!(figures(&found[1]), (8, 500, 0, 500 * 1082, None));
        assert!((found[0].outage - 100.0).abs() < 1e-9 && found[1].outage == 0.0, "{found:?}");
        assert_eq!([&found[0].path, &found[1].path], [&Some("up1 10.1.0.25".to_owned()), &None]);
    }
}
