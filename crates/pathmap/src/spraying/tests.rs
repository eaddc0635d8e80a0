use std::net::Ipv4Addr;
use std::sync::Arc;

use path::Fate;

use super::reporter::{AROUND, SAVED, SHARE};
use super::*;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What is known of a path by this arrival and through these routers.
fn known(arrival: u32, routers: &[u8], delay: u64) -> Known {
    let recorded = routers.iter().map(|number| Ipv4Addr::new(10, 0, 0, *number)).collect();
    Known {
        arrival,
        routers: routers.len() as u8,
        recorded: Some(recorded),
        traced: None,
        delay: ms(delay),
        heard: Duration::ZERO,
    }
}

/// Ports 1 to `ports` on each hop. The port chooses one of the routes of the hop.
fn paths(hops: u64, routes: u16, ports: u16) -> Vec<(PathId, Known)> {
    let of = |hop: u64, port: u16| {
        let known =
            known(hop as u32, &[hop as u8, (port % routes) as u8], u64::from(port % routes));
        (PathId { hop, source_port: port }, known)
    };
    (0..hops).flat_map(|hop| (1..=ports).map(move |port| of(hop, port))).collect()
}

fn pool_of(paths: &[(PathId, Known)]) -> Option<Pool> {
    pool(paths.iter().map(|(path, known)| (*path, known)))
}

#[test]
fn each_route_has_a_path_and_consecutive_ones_have_other_next_hops() {
    let all = paths(2, 2, 16);
    let chosen = pool_of(&all).unwrap();
    let [a, b, c, d] = *chosen.paths() else { panic!("{chosen:?}") };
    assert_eq!([a.hop, b.hop, c.hop, d.hop], [0, 1, 0, 1]);
    let ports: BTreeSet<u16> = chosen.paths().iter().map(|path| path.source_port).collect();
    assert_eq!(ports.len(), 4, "the far end tells paths apart by the port");
    let route = |path: PathId| all.iter().find(|(of, _)| *of == path).unwrap().1.recorded.clone();
    let routes: BTreeSet<_> = chosen.paths().iter().map(|path| route(*path)).collect();
    assert_eq!(routes.len(), 4);
    assert_eq!(pool_of(&paths(1, 1, 16)).map(|_| ()), None, "one route");
}

#[test]
fn three_routes_have_equal_shares_of_many_ports() {
    let all = paths(1, 3, 64);
    let chosen = pool_of(&all).unwrap();
    assert_eq!(chosen.paths().len(), 64);
    for route in 0..3 {
        let on = chosen.paths().iter().filter(|path| path.source_port % 3 == route).count();
        assert!((21..=22).contains(&on), "{on} on route {route}");
    }
    let few = pool_of(&paths(1, 3, 7)).unwrap();
    assert_eq!(few.paths().len(), 4, "a power of two");
}

#[test]
fn a_pool_stays_while_its_paths_are_known_and_no_route_is_new() {
    let all = paths(2, 2, 16);
    let chosen = pool_of(&all).unwrap();
    let fits = |known: &[(PathId, Known)]| {
        still_fits(&chosen, || known.iter().map(|(path, known)| (*path, known)))
    };
    assert!(fits(&all));
    assert!(fits(&paths(2, 2, 18)), "further ports on the same routes");
    let mut new = all.clone();
    new.push((PathId { hop: 0, source_port: 99 }, known(7, &[7], 1)));
    assert!(!fits(&new), "another route");
    let gone = chosen.paths()[2];
    let other = all.iter().find(|(path, _)| *path == gone).unwrap().1.clone();
    let without = |number: usize| -> Vec<_> {
        all.iter().filter(|(path, _)| path != &chosen.paths()[number]).cloned().collect()
    };
    assert!(!fits(&without(2)), "other ports still have the route");
    let alive: Vec<_> =
        all.iter().filter(|(_, known)| !known.is_route_of(&other)).cloned().collect();
    assert!(fits(&alive), "a dead route may come back");
    let mut moved = alive;
    moved.push((gone, moved.iter().find(|(path, _)| path.hop == gone.hop).unwrap().1.clone()));
    assert!(!fits(&moved), "two paths on one route");
}

#[test]
fn packets_wait_for_twice_the_spread_of_the_delays() {
    let of = |delays: &[u64]| timer(delays.iter().map(|delay| ms(*delay)));
    assert_eq!(
        [of(&[]), of(&[3]), of(&[2, 6, 3]), of(&[1, 900])],
        [1, 1, 8, 50].map(|ms| ms * 1_000_000)
    );
}

/// A pool of two paths, its ledger, and what the far end has counted.
struct Ends {
    pool: Arc<Pool>,
    ledger: Ledger,
    counted: [(u16, u16); 2],
    sent: [u64; 2],
}

impl Ends {
    fn new() -> Self {
        let path = |port| PathId { hop: 1, source_port: port };
        let pool = Pool::new(vec![path(1), path(2)], Tiers::new(&[2]).unwrap(), 1000).unwrap();
        let ledger = Ledger::new(&pool, None);
        Self { pool: Arc::new(pool), ledger, counted: [(65_500, 9); 2], sent: [0; 2] }
    }

    /// Sends so many packets on each path.
    fn send(&mut self, packets: [u64; 2]) {
        for (number, packets) in packets.into_iter().enumerate() {
            self.pool.count_sent(number, packets);
            self.sent[number] += packets;
        }
    }

    /// So many packets have arrived on each path, and have a mark. Reports that.
    fn report(&mut self, at: u64, arrived: [(u16, u16); 2]) -> [Fate; 2] {
        for (counted, (received, marked)) in self.counted.iter_mut().zip(arrived) {
            counted.0 = counted.0.wrapping_add(received);
            counted.1 = counted.1.wrapping_add(marked);
        }
        let arrived = [(1, self.counted[0]), (2, self.counted[1])];
        let report = arrived.map(|(port, (received, marked))| Arrived { port, received, marked });
        let before: Vec<Fate> = self.pool.fates().collect();
        self.ledger.report(ms(at), &self.pool, &report, ms(5));
        let after: Vec<Fate> = self.pool.fates().collect();
        [0, 1].map(|number| Fate {
            good: after[number].good - before[number].good,
            marked: after[number].marked - before[number].marked,
            lost: after[number].lost - before[number].lost,
        })
    }
}

const fn fate(good: u64, marked: u64, lost: u64) -> Fate {
    Fate { good, marked, lost }
}

#[test]
fn packets_without_an_arrival_are_lost_once_they_must_have_arrived() {
    let mut ends = Ends::new();
    assert_eq!(ends.report(0, [(0, 0); 2]), [fate(0, 0, 0); 2], "totals from before");
    ends.send([100, 50]);
    assert_eq!(ends.report(2, [(60, 10), (50, 0)]), [fate(50, 10, 0), fate(50, 0, 0)]);
    // The others are on their way, or late by 30 ms.
    assert_eq!(ends.report(4, [(30, 0), (0, 0)]), [fate(30, 0, 0), fate(0, 0, 0)]);
    assert_eq!(ends.report(31, [(0, 0); 2]), [fate(0, 0, 0); 2]);
    assert_eq!(ends.report(33, [(0, 0); 2]), [fate(0, 0, 10), fate(0, 0, 0)]);
    assert_eq!(ends.report(63, [(0, 0); 2]), [fate(0, 0, 0); 2], "once");
    // A packet that comes after all is no loss that another one hides behind.
    ends.send([3, 0]);
    assert_eq!(ends.report(64, [(1, 0), (0, 0)]), [fate(1, 0, 0), fate(0, 0, 0)]);
    assert_eq!(ends.report(99, [(0, 0); 2])[0].lost, 3);
}

#[test]
fn a_report_that_is_lost_is_made_good_by_the_next() {
    let mut ends = Ends::new();
    ends.report(0, [(0, 0); 2]);
    ends.send([70, 70]);
    // Not reported: the totals go on, past 2¹⁶.
    ends.counted = ends.counted.map(|(received, marked)| (received.wrapping_add(40), marked + 4));
    assert_eq!(ends.report(9, [(30, 0), (20, 1)]), [fate(66, 4, 0), fate(55, 5, 0)]);
}

#[test]
fn nobody_reports_more_arrivals_than_there_were_packets() {
    let mut ends = Ends::new();
    ends.report(0, [(0, 0); 2]);
    ends.send([10, 10]);
    assert_eq!(ends.report(2, [(60_000, 0), (5, 60_000)]), [fate(10, 0, 0), fate(0, 5, 0)]);
    // It has started again: its totals begin at 0.
    ends.counted = [(0, 0); 2];
    ends.send([10, 10]);
    assert_eq!(ends.report(4, [(3, 0), (3, 0)])[1].lost, 0);
    ends.send([50, 50]);
    let after = ends.report(6, [(50, 0), (50, 0)]);
    assert!(after.iter().all(|fate| fate.good <= 50 && fate.lost == 0), "{after:?}");
}

#[test]
fn reports_take_a_200th_of_what_arrives() {
    let mut reporter = Reporter::default();
    let mut reports = 0;
    let (mut bytes, length) = (0, 60);
    for at in 0..10_000 {
        // 12.5 MB/s.
        bytes += 12_500;
        if reporter.due(ms(at), bytes, &[], length).is_some() {
            reports += 1;
        }
        assert!(reporter.is_active(ms(at)));
    }
    let taken = reports * (length as u64 + AROUND);
    assert!(taken * SHARE <= bytes + SAVED * SHARE, "{taken} of {bytes}");
    assert!(reports > 3000, "{reports}: every {PACE:?} at most");
    // Without arrivals, it only shows that it lives.
    let due = |at, reporter: &mut Reporter| reporter.due(ms(at), bytes, &[], length).is_some();
    let after = (10_000..11_000).filter(|at| due(*at, &mut reporter)).count();
    assert!((4..=5).contains(&after), "{after}");
    assert!(!reporter.is_active(ms(11_000)));
}

/// Packets that come by two paths, of 1,000 bytes each, and the reports about them.
#[derive(Default)]
struct Arriving {
    reporter: Reporter,
    now: Duration,
    received: [u16; 2],
    bytes: u64,
}

impl Arriving {
    /// After half a millisecond, so many have come by each path.
    fn look(&mut self, new: [u16; 2]) -> Option<Due> {
        self.now += LOOK;
        for (received, new) in self.received.iter_mut().zip(new) {
            *received = received.wrapping_add(new);
            self.bytes += 1000 * u64::from(new);
        }
        let of = |(port, received)| Arrived { port, received, marked: 0 };
        let arrived: Vec<Arrived> = (1..).zip(self.received).map(of).collect();
        self.reporter.due(self.now, self.bytes, &arrived, 60)
    }

    /// Regular arrivals until just after a regular report.
    fn begin(&mut self, new: [u16; 2]) {
        (0..40).for_each(|_| assert_ne!(self.look(new), Some(Due::Early)));
        assert!((0..8).any(|_| self.look(new) == Some(Due::Regular)));
    }
}

#[test]
fn a_path_that_falls_behind_is_reported_at_once_and_later_reports_pay() {
    // 16 MB/s: a report every 2 ms is paid.
    let mut arriving = Arriving::default();
    arriving.begin([4, 4]);
    assert_eq!([[4, 4], [4, 1]].map(|new| arriving.look(new)), [None, Some(Due::Early)]);
    // It is told twice more how much less it is. Then that is the share of the path.
    let early = (0..40).filter(|_| arriving.look([6, 1]) == Some(Due::Early)).count();
    assert!(early <= 2, "{early}");
    // A path that had less before is not behind, nor are all after a pause.
    let mut arriving = Arriving::default();
    arriving.begin([6, 1]);
    assert!((0..3).all(|_| arriving.look([6, 1]).is_none()));
    assert!((0..3).all(|_| arriving.look([0, 0]) != Some(Due::Early)));
    // Two packets may be late by chance.
    let mut arriving = Arriving::default();
    arriving.begin([4, 4]);
    assert_eq!([[4, 3], [4, 3], [4, 4]].map(|new| arriving.look(new)), [None; 3]);
}

/// Whatever paths do, reports take no more than their share and one report.
#[test]
fn paths_that_fall_behind_again_and_again_buy_no_reports() {
    for period in 1..12 {
        let mut arriving = Arriving::default();
        let (mut early, mut all) = (0, 0);
        for look in 0..20_000 {
            let new = if look / period % 2 == 0 { [4, 0] } else { [0, 4] };
            let due = arriving.look(new);
            early += u64::from(due == Some(Due::Early));
            all += u64::from(due.is_some());
        }
        let taken = (all - 1) * (60 + AROUND) * SHARE;
        assert!(taken <= arriving.bytes + SAVED * SHARE, "{period}: {taken} of {}", arriving.bytes);
        assert!(early > 100, "{period}: {early} of {all}");
    }
}

#[test]
fn half_of_the_paths_in_use_are_many() {
    let of = |port, received, marked| Arrived { port, received, marked };
    let before = [of(1, 5, 5), of(2, 65_535, 0), of(3, 7, 7), of(4, 9, 1)];
    let after = |marks: [u16; 3]| {
        [of(1, 6, 5 + marks[0]), of(2, 3, marks[1]), of(3, 8, 7 + marks[2]), of(4, 9, 1)]
    };
    let marks = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 4, 1]];
    let congested = marks.map(|marks| is_congested(&before, &after(marks)));
    assert_eq!(congested, [false, false, true, true]);
    assert!(!is_congested(&before, &before), "nothing arrived");
}

#[test]
fn a_report_before_the_pool_makes_the_first_one_of_it_count() {
    let mut ends = Ends::new();
    let last = [(1, 65_500, 9), (2, 65_500, 9)];
    let last = last.map(|(port, received, marked)| Arrived { port, received, marked });
    ends.ledger = Ledger::new(&ends.pool, Some(&last));
    ends.send([100, 50]);
    assert_eq!(ends.report(2, [(60, 10), (50, 0)]), [fate(50, 10, 0), fate(50, 0, 0)]);
}
