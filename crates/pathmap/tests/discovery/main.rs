//! Discovery of paths through a simulated fabric, with loss, dead links and peers that misbehave.
#![cfg(test)]

mod fabric;
mod hostile;
mod placed;

use std::collections::BTreeSet;
use std::time::Duration;

use fabric::{Fabric, Route};
use path::PathId;
use pathmap::prober::{Change, Settings};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn all_ports() -> Settings {
    Settings { ports: 256, ..Settings::default() }
}

fn wrong(fabric: &Fabric) -> usize {
    fabric.prober.known().filter(|(path, known)| !fabric.is_right(*path, known)).count()
}

#[test]
fn pairs_are_mapped_in_100_ms_and_with_loss_in_500_ms() {
    for (loss, limit, most_missing) in [(0.0, 100, 0), (0.1, 500, 1)] {
        let mut missing = 0;
        for seed in 0..10 {
            let mut fabric = Fabric::new(4, 4, seed, all_ports());
            fabric.loss = loss;
            fabric.run(ms(limit));
            let known = fabric.prober.known().count();
            missing += 1024 - known;
            assert_eq!(wrong(&fabric), 0);
            let recorded =
                fabric.prober.known().filter(|(_, known)| known.recorded.is_some()).count();
            assert!(recorded >= known - 8, "{recorded}");
        }
        // After eight rounds, (1 - 0.81)⁸ of the paths are not answered: 0.02 of 10 * 1024.
        assert!(missing <= most_missing, "{missing} paths are not known with loss {loss}");
    }
}

/// 16 next hops with 1,024 ports each take more probes than may leave at once.
#[test]
fn what_the_rate_lets_out_is_answered_at_the_other_end() {
    let settings = Settings { ports: 1024, most_ports: 1024, ..Settings::default() };
    let mut fabric = Fabric::new(16, 4, 1, settings);
    let mut sent = Vec::new();
    for _ in 0..40 {
        fabric.run(ms(100));
        sent.push(fabric.sent);
    }
    let rate = u64::from(settings.rate);
    for (tenths, sent) in (1..).zip(&sent) {
        assert!(*sent <= rate + rate * tenths / 10, "{sent} probes in {tenths}00 ms");
    }
    assert!(sent[39] >= 4 * rate, "{sent:?}");
    assert_eq!((fabric.responder.counts.limited, wrong(&fabric)), (0, 0));
}

/// A machine that emulates a fabric may forward only 1,000 probes in a second while all leaves
/// start. Other packets share its queues, so these must stay short.
#[test]
fn exploring_leaves_queues_short() {
    for seed in 0..5 {
        let mut fabric = Fabric::new(4, 4, seed, all_ports());
        fabric.served = Some(1);
        fabric.run(ms(6000));
        let known = fabric.prober.known().count();
        assert_eq!((known, wrong(&fabric)), (fabric.prober.paths().len(), 0));
        assert!(fabric.longest <= ms(40), "{:?}", fabric.longest);
        assert!(fabric.sent < 3000, "{} probes for 1024 paths, each in two ways", fabric.sent);
    }
}

/// A router leads a route over another link, and back. No queue pair uses the route.
#[test]
fn routes_that_move_are_found_soon_although_nothing_uses_them() {
    for seed in 0..10 {
        let mut fabric = Fabric::new(4, 4, seed, Settings::default());
        fabric.run(ms(20_000));
        for detour in [Some(((2, 1), 3)), None] {
            fabric.detour = detour;
            assert!(wrong(&fabric) > 5, "the detour changes something");
            fabric.run(ms(8000));
            assert_eq!(wrong(&fabric), 0, "seed {seed}, {detour:?}");
        }
    }
}

#[test]
fn ports_are_added_until_every_route_is_found() {
    for seed in 0..10 {
        let mut fabric = Fabric::new(4, 16, seed, Settings::default());
        fabric.run(ms(800));
        let found: BTreeSet<Route> =
            fabric.prober.known().map(|(path, _)| fabric.route(path)).collect();
        assert_eq!(found.len(), 64, "seed {seed}, {} paths", fabric.prober.paths().len());
        assert!(fabric.prober.is_ready());
    }
    let mut narrow = Fabric::new(2, 2, 1, Settings::default());
    narrow.run(ms(800));
    assert_eq!(narrow.prober.paths().len(), 128, "64 ports are enough");
}

#[test]
fn routers_that_do_not_record_leave_their_tier_unknown() {
    let mut fabric = Fabric::new(4, 4, 3, Settings::default());
    fabric.records = false;
    fabric.run(ms(500));
    assert!(fabric.prober.is_ready());
    assert!(fabric.prober.known().all(|(_, known)| known.recorded.is_none() && known.routers == 2));
    assert_eq!((fabric.prober.known().count(), wrong(&fabric)), (256, 0));
}

/// One probe for each path tells all there is: arrival uplink and number of routers.
#[test]
fn over_ipv6_the_uplinks_at_both_ends_are_known() {
    for seed in 0..10 {
        let mut fabric = Fabric::over_ipv6(4, 4, seed, Settings::default());
        fabric.run(ms(100));
        assert!(fabric.prober.is_ready());
        assert_eq!((fabric.prober.known().count(), wrong(&fabric)), (256, 0));
        assert!(fabric.prober.known().all(|(_, known)| known.recorded.is_none()));
        assert!(fabric.sent < 256 + 32, "{} probes", fabric.sent);
        fabric.run(ms(20_000));
        fabric.detour = Some(((2, 1), 3));
        assert!(wrong(&fabric) > 5, "the detour changes something");
        fabric.run(ms(8000));
        assert_eq!(wrong(&fabric), 0, "seed {seed}");
    }
}

/// A path for each of the routes, as in use.
fn use_all(fabric: &mut Fabric) -> Vec<PathId> {
    let mut routes = BTreeSet::new();
    let known: Vec<PathId> = fabric.prober.known().map(|(path, _)| path).collect();
    let used: Vec<PathId> =
        known.into_iter().filter(|path| routes.insert(fabric.route(*path))).collect();
    fabric.prober.set_used(fabric.now, used.iter().copied().collect());
    used
}

#[test]
fn a_dead_link_is_found_within_30_ms_and_nothing_else_is_dead() {
    for (seed, new) in (0..20).zip([Fabric::new, Fabric::over_ipv6].iter().cycle()) {
        let settings = Settings { interval: ms(10), ..Settings::default() };
        let mut fabric = new(4, 4, seed, settings);
        fabric.run(ms(1000));
        let used = use_all(&mut fabric);
        fabric.run(ms(300) + ms(seed));
        assert_eq!(fabric.prober.changes(), []);
        fabric.dead.insert((2, 1));
        let mut found = None;
        for after in 1..200 {
            fabric.run(ms(1));
            for change in fabric.prober.changes() {
                let Change::Lost(path) = change else { panic!("{change:?}") };
                let route = fabric.route(path);
                assert_eq!((route.uplink, route.spine), (2, 1));
                if used.contains(&path) {
                    found = found.or(Some(after));
                }
            }
        }
        assert!(found.is_some_and(|after| after <= 30), "after {found:?} ms");
        let dead = |fabric: &Fabric, path| {
            let route = fabric.route(path);
            (route.uplink, route.spine) == (2, 1)
        };
        let known = fabric.prober.known().filter(|(path, _)| dead(&fabric, *path)).count();
        assert_eq!(known, 0, "no other port of the dead route is used");
        // It returns.
        fabric.dead.clear();
        fabric.run(ms(1200));
        let returned = fabric.prober.changes();
        assert!(!returned.is_empty() && fabric.prober.lost().count() == 0, "{returned:?}");
        assert!(returned.iter().all(|change| matches!(change, Change::Returned(_))));
    }
}

#[test]
fn a_leaf_that_does_not_answer_says_nothing_about_paths() {
    let settings = Settings { interval: ms(10), ..Settings::default() };
    let mut fabric = Fabric::new(4, 4, 5, settings);
    fabric.run(ms(1000));
    use_all(&mut fabric);
    fabric.run(ms(100));
    fabric.answers = false;
    fabric.run(ms(3000));
    fabric.answers = true;
    fabric.run(ms(3000));
    assert_eq!(fabric.prober.changes().len(), 0);
}

/// The route to a VTEP that FRR has just announced may be a second behind it.
#[test]
fn a_leaf_that_answers_later_is_mapped_soon() {
    let mut fabric = Fabric::new(4, 4, 5, all_ports());
    fabric.answers = false;
    fabric.run(ms(2000));
    assert!(fabric.prober.is_ready() && fabric.prober.known().count() == 0);
    fabric.answers = true;
    fabric.run(ms(2500));
    assert_eq!((fabric.prober.known().count(), wrong(&fabric)), (fabric.prober.paths().len(), 0));
    // A silent one costs little.
    let mut silent = Fabric::new(4, 4, 5, all_ports());
    silent.answers = false;
    silent.run(ms(2000));
    let before = silent.sent;
    silent.run(ms(10_000));
    // Each second two ports on each of four next hops, plainly and with Record Route.
    assert!(silent.sent - before <= 11 * 2 * 4 * 2, "{before} {}", silent.sent);
    silent.run(ms(48_000));
    let before = silent.sent;
    silent.run(ms(30_000));
    assert!(
        silent.sent - before <= 2 * silent.prober.paths().len() as u64,
        "{before} {}",
        silent.sent
    );
}

/// A vtepd that ends leaves kernel VXLAN behind, which answers nothing.
#[test]
fn a_leaf_that_falls_silent_costs_little() {
    let mut fabric = Fabric::new(4, 4, 5, Settings::default());
    fabric.run(ms(20_000));
    let used = use_all(&mut fabric).len() as u64;
    fabric.answers = false;
    fabric.run(ms(2000));
    let before = fabric.sent;
    fabric.run(ms(10_000));
    // 20 in a second for each path in use, and each other path in about 15 seconds.
    let most = 10 * (used * 20 + fabric.prober.paths().len() as u64 / 10);
    assert!(fabric.sent - before <= most, "{} of {most}", fabric.sent - before);
    fabric.prober.set_used(fabric.now, BTreeSet::new());
    fabric.run(ms(2000));
    let before = fabric.sent;
    fabric.run(ms(10_000));
    assert!(fabric.sent - before <= 500, "{}", fabric.sent - before);
}

/// While leaves agree who moves, reports are needed from VTEPs without queue pairs, too.
#[test]
fn reports_that_are_wanted_arrive_at_the_interval_and_cost_little() {
    let mut fabric = Fabric::new(4, 4, 1, Settings::default());
    fabric.run(ms(20_000));
    let mut answers = |eager: bool| {
        fabric.prober.set_eager(fabric.now, eager);
        fabric.run(ms(1500));
        fabric.run(ms(10_000));
        fabric.reports.len()
    };
    // The 256 paths are probed every 15 s on average, each with two probes.
    let rest = answers(false);
    let more = answers(true) - rest;
    assert!((150..=270).contains(&more), "{more} more than {rest}");
    assert!(answers(false) < rest + 60);
}

/// A VTEP without vtepd: its queue pairs have the ports of `qp-hash`, all of which are in use.
#[test]
fn pairs_in_use_of_a_vtep_that_never_answers_cost_little() {
    let mut fabric = Fabric::new(4, 4, 5, Settings::default());
    fabric.answers = false;
    let used: BTreeSet<PathId> = fabric.prober.paths().take(64).collect();
    assert_eq!(used.len(), 64);
    fabric.prober.set_used(fabric.now, used);
    fabric.run(ms(2000));
    let before = fabric.sent;
    fabric.run(ms(10_000));
    // Two ports on four next hops and eight of those in use, once a second, each plainly and with
    // Record Route.
    assert!(fabric.sent - before <= 11 * (2 * 4 + 8) * 2, "{}", fabric.sent - before);
    // It is a vtepd after all.
    fabric.answers = true;
    fabric.run(ms(2000));
    assert_eq!((fabric.prober.known().count(), wrong(&fabric)), (256, 0));
}

#[test]
fn pairs_in_use_are_probed_together() {
    let mut fabric = Fabric::new(2, 2, 1, Settings::default());
    fabric.run(ms(1000));
    assert_eq!(use_all(&mut fabric).len(), 4);
    fabric.run(ms(100));
    let mut times = 0;
    for _ in 0..1000 {
        let before = fabric.sent;
        fabric.run(ms(1));
        times += u32::from(fabric.sent - before >= 4);
    }
    assert!((19..=21).contains(&times), "all four were probed at {times} times in a second");
}

#[test]
fn watching_costs_less_than_100_kilobits_on_four_paths() {
    let mut fabric = Fabric::new(2, 2, 1, Settings::default());
    fabric.run(ms(1000));
    assert_eq!(use_all(&mut fabric).len(), 4);
    fabric.run(ms(100));
    let before = fabric.sent;
    fabric.run(ms(10_000));
    let probes = (fabric.sent - before) as f64 / 10.0;
    // Ethernet, IPv4 with half of an option of 40 bytes (every fifth probe has one), UDP, VXLAN,
    // inner Ethernet, message and tag.
    let bytes = 14.0 + 20.0 + 8.0 + 8.0 + 14.0 + 28.0 + 16.0 + 40.0 / 5.0;
    assert!(probes * bytes * 8.0 < 100_000.0, "{probes} probes, {} b/s", probes * bytes * 8.0);
}
