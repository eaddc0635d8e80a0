//! What follows from the rules of a run without another simulator.

#![cfg(test)]

use std::cell::Cell;

use sim::outcome::MOST_WAITING;
use sim::reference::{fat_tree, scenario, spraying};
use sim::scenario::{Damage, Fault};
use sim::time::{MICROSECOND, MILLISECOND, microseconds};
use sim::traffic::{Flow, Start, permutation, ring};
use sim::{Outcome, Scenario, run, run_watched};

fn flow(id: u32, source: u32, target: u32, bytes: u64) -> Flow {
    let start = Start::At(0);
    Flow { id, source, target, bytes, start, fires: None, ordered: false, job: 0 }
}

fn with_flows(scheme: &str, flows: Vec<Flow>) -> Scenario {
    Scenario { flows, ..scenario("permutation-2M", spraying(scheme).unwrap(), 128, 1) }
}

/// Each data packet that was sent has an end.
fn check_counts(outcome: &Outcome) {
    let sent = outcome.packets + outcome.retransmitted;
    let trimmed: u64 = outcome.ports.iter().map(|port| port.counters.trimmed).sum();
    assert!(outcome.nacks <= trimmed && trimmed <= sent, "{trimmed} {sent}");
}

#[test]
fn a_flow_alone_takes_the_time_of_its_bytes_and_a_round_trip() {
    for scheme in ["ecmp", "oblivious-64", "known-prime-like-16-log"] {
        let outcome = run(&with_flows(scheme, vec![flow(1, 0, 127, 2_000_000)]), 1);
        // 490 packets, the last one with 2,010 bytes, on a line of 80 ps a byte. The full packet
        // before it passes six links of 1 µs, the last one follows, and 64 bytes return.
        let lines = 489.0 * 0.332 + 5.0 * 0.332 + 6.0 + 2010.0 * 80e-6 + 6.0 + 6.0 * 64.0 * 80e-6;
        let time = outcome.flows[0].time().unwrap();
        assert!((time - lines).abs() < 0.001 * lines, "{scheme}: {time} {lines}");
        assert_eq!((outcome.packets, outcome.retransmitted, outcome.lost), (490, 0, 0));
    }
}

#[test]
fn triggers_start_flows_and_ends_are_in_order() {
    let mut flows = vec![flow(1, 0, 127, 10_000), flow(2, 127, 3, 10_000), flow(3, 9, 4, 10_000)];
    flows[0].fires = Some(7);
    flows[1].start = Start::On(7);
    flows[2].start = Start::At(5 * MICROSECOND);
    let outcome = run(&with_flows("reps-64", flows), 1);
    assert_eq!(outcome.flows[1].start, outcome.flows[0].end);
    assert_eq!(outcome.flows[2].start, Some(5 * MICROSECOND));
    assert_eq!(outcome.unfinished, []);
}

#[test]
fn a_flow_that_does_not_finish_says_what_it_waits_for() {
    let mut flows = vec![flow(11, 0, 127, 1_000_000), flow(12, 127, 3, 10_000)];
    flows[0].fires = Some(7);
    flows[1].start = Start::On(7);
    let mut scenario = with_flows("oblivious-64", flows);
    // The host's own link is dead after a while.
    let port = 2 * 127 + 1;
    scenario.faults =
        vec![Fault { port, damage: Damage::Silent, at: 50 * MICROSECOND, until: None }];
    scenario.end = 2 * MILLISECOND;
    let outcome = run(&scenario, 1);
    let texts: Vec<String> = outcome.unfinished.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 2);
    assert!(texts[0].starts_with("flow 11 from host 0 to host 127: "), "{texts:?}");
    assert!(texts[0].contains(" packets are acknowledged; packet "), "{texts:?}");
    assert_eq!(texts[1], "flow 12 from host 127 to host 3: it waits for trigger 7 of flow 11");
    assert_eq!(outcome.completion(), None);
}

/// A text for each flow, which names what fires its trigger, takes time by the square of the flows.
#[test]
fn a_run_with_many_unfinished_flows_names_the_first_ones() {
    let mut scenario = with_flows("oblivious-64", ring(128, 1, 128_000_000, 128));
    scenario.flows.rotate_left(200);
    scenario.end = 20 * MICROSECOND;
    let outcome = run(&scenario, 1);
    assert!(outcome.flows.iter().all(|flow| flow.end.is_none()));
    assert_eq!((outcome.flows.len(), outcome.unfinished.len()), (128 * 254, MOST_WAITING));
    let texts: Vec<String> = outcome.unfinished.iter().map(ToString::to_string).collect();
    assert!(texts.iter().all(|text| text.contains(": it waits for trigger ")), "{texts:?}");
    assert!(outcome.packets > 128, "those of flows without a text are counted");
}

#[test]
fn a_run_ends_when_it_is_interrupted() {
    let scenario = with_flows("reps-64", permutation(128, 1, 5_000_000, 0.0));
    let looks = Cell::new(0);
    let until = |most: u64| {
        looks.set(0);
        let goes_on = || {
            looks.set(looks.get() + 1);
            looks.get() <= most
        };
        run_watched(&scenario, 1, None, &goes_on)
    };
    let whole = until(u64::MAX).unwrap();
    assert!(whole.events > 1 << 20, "{}", whole.events);
    assert_eq!((looks.get(), &whole), (whole.events.div_ceil(1 << 20), &run(&scenario, 1)));
    assert_eq!((until(1), looks.get()), (None, 2));
}

#[test]
fn all_schemes_repeat_what_a_fault_loses() {
    let all =
        ["ecmp", "oblivious-64", "reps-64", "bitmap-64", "mixed-64", "known-prime-like-16-log"];
    for scheme in all {
        let flows = (0..16).map(|host| flow(host + 1, host, 127 - host, 400_000)).collect();
        let mut scenario = with_flows(scheme, flows);
        let port = scenario.topology.find_port("leaf0", "agg1").unwrap();
        let at = 10 * MICROSECOND;
        let until = Some(400 * MICROSECOND);
        for damage in [Damage::Silent, Damage::Dead, Damage::Slow(0.1)] {
            scenario.faults = vec![Fault { port, damage, at, until }];
            let outcome = run(&scenario, 3);
            assert_eq!(outcome.unfinished, [], "{scheme} {damage:?}");
            assert_eq!(outcome.packets, 16 * 98);
            check_counts(&outcome);
        }
    }
}

/// The end of one fault of a port ends no other one.
#[test]
fn faults_of_one_port_last_as_long_as_each_of_them() {
    let ends = |faults: &[(f64, u64, Option<u64>)]| {
        let mut scenario = with_flows("ecmp", vec![flow(1, 0, 127, 4_000_000)]);
        let port = 0;
        let fault = |&(share, at, until): &(f64, u64, Option<u64>)| Fault {
            port,
            damage: Damage::Slow(share),
            at: at * MICROSECOND,
            until: until.map(|until| until * MICROSECOND),
        };
        scenario.faults = faults.iter().map(fault).collect();
        run(&scenario, 1).completion().unwrap()
    };
    let one = ends(&[(0.5, 0, None)]);
    let both = ends(&[(0.5, 0, None), (0.25, 10, Some(20))]);
    // A quarter for 10 µs instead of a half costs 5 µs.
    assert!((both - one - 5.0).abs() < 1.0, "{one} {both}");
}

#[test]
fn a_dead_link_costs_only_what_was_under_way() {
    let flows = || vec![flow(1, 0, 127, 4_000_000)];
    let healthy = run(&with_flows("oblivious-64", flows()), 1);
    let mut scenario = with_flows("oblivious-64", flows());
    let port = scenario.topology.find_port("agg0", "core0").unwrap();
    scenario.faults = vec![Fault { port, damage: Damage::Dead, at: 50 * MICROSECOND, until: None }];
    let dead = run(&scenario, 1);
    assert!((1..10).contains(&dead.lost), "{}", dead.lost);
    assert!(dead.completion().unwrap() < healthy.completion().unwrap() + 20.0);
    scenario.faults[0].damage = Damage::Silent;
    let silent = run(&scenario, 1);
    assert!(silent.lost > 5 * dead.lost, "{}", silent.lost);
}

#[test]
fn the_same_seed_gives_the_same_outcome_on_any_number_of_threads() {
    let scenario = scenario("ordered-25%", spraying("mixed-64").unwrap(), 128, 1);
    let checksums = |threads: u64| -> Vec<u64> {
        let scenario = &scenario;
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads)
                .map(|thread| {
                    scope.spawn(move || {
                        let seeds = (1..=4).filter(|seed| seed % threads == thread);
                        seeds.map(|seed| (seed, run(scenario, seed).checksum())).collect::<Vec<_>>()
                    })
                })
                .collect();
            let mut all: Vec<(u64, u64)> =
                handles.into_iter().flat_map(|handle| handle.join().unwrap()).collect();
            all.sort_unstable();
            all.into_iter().map(|(_, checksum)| checksum).collect()
        })
    };
    let one = checksums(1);
    assert_eq!((checksums(2), checksums(4)), (one.clone(), one.clone()));
    assert!(one.windows(2).all(|pair| pair[0] != pair[1]), "the seed counts");
}

#[test]
fn balance_is_counted_by_tier() {
    let outcome = run(&with_flows("known-oblivious-16", vec![flow(1, 0, 127, 2_000_000)]), 1);
    let up = outcome.ports.iter().filter(|port| port.tiers == (1, 2) && port.ends.0 == "leaf0");
    let loads: Vec<u64> = up.map(|port| port.counters.data_bytes).collect();
    assert_eq!(loads.iter().sum::<u64>(), 489 * 4150 + 2010);
    assert!(loads.iter().all(|load| (122 * 4150..=123 * 4150).contains(load)), "{loads:?}");
    // Only the uplinks of this leaf are on the ways of the flow, and they are even.
    let ratio = outcome.max_mean_ratio((1, 2)).unwrap();
    assert!((1.0..1.01).contains(&ratio), "{ratio}");
}

#[test]
fn larger_trees_have_the_same_round_trip_time() {
    let topology = fat_tree(1024);
    assert_eq!((topology.hosts, topology.ports()), (1024, 6144));
    let scenario = scenario("permutation-2M", spraying("reps-64").unwrap(), 1024, 1);
    assert_eq!(microseconds(scenario.transport.network.round_trip), 14.02272);
}
