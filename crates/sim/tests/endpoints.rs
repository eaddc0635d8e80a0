//! Hosts that are endpoints of the crate `roce`.

#![cfg(test)]

use roce::{Order, Settings, dcqcn, nscc};
use sim::reference::{scenario, spraying};
use sim::scenario::{Damage, Fault};
use sim::time::{MICROSECOND, MILLISECOND};
use sim::traffic::{Flow, Start};
use sim::{Outcome, Scenario, run};

fn settings(order: Order) -> Settings {
    Settings {
        mtu: 4096,
        order,
        rate: 100_000_000_000,
        acknowledge_every: 4,
        timeout: 500_000,
        retries: 50,
        reordering: 30_000,
        ..Settings::default()
    }
}

/// Flows of 500 kB from each host of the first pod to the next pods, or the given ones.
fn with(settings: Settings, scheme: &str, flows: Option<Vec<Flow>>) -> Scenario {
    let flow = |(id, (source, target)): (u32, (u32, u32))| Flow {
        id,
        source,
        target,
        bytes: 500_000,
        start: Start::At(0),
        fires: None,
        ordered: false,
        job: 0,
    };
    let all = || (1..).zip((0..16).map(|host| (host, 16 + host * 7))).map(flow).collect();
    let base = scenario("permutation-2M", spraying(scheme).unwrap(), 128, 1);
    let mut limits = base.limits;
    limits.trim = false;
    Scenario {
        roce: Some(settings),
        limits,
        flows: flows.unwrap_or_else(all),
        end: 60 * MILLISECOND,
        ..base
    }
}

fn finished(scenario: &Scenario) -> Outcome {
    let outcome = run(scenario, 1);
    assert_eq!((&outcome.unfinished[..], outcome.mismatches), (&[][..], 0));
    outcome
}

#[test]
fn a_flow_alone_takes_the_time_of_its_frames_and_a_round_trip() {
    let flows = with(settings(Order::Drop), "ecmp", None).flows;
    let one = Some(vec![flows[15].clone()]);
    let outcome = finished(&with(settings(Order::Drop), "ecmp", one));
    // 122 frames of 4096 bytes and one of 288 with 58 bytes of headers, and 16 for the address.
    let bytes = 500_000.0 + 123.0 * 58.0 + 16.0;
    let lines = bytes * 80e-6 + 5.0 * (4096.0 + 58.0) * 80e-6 + 12.0 + 6.0 * 62.0 * 80e-6;
    let time = outcome.flows[0].time().unwrap();
    assert!((time - lines).abs() < 0.02 * lines, "{time} {lines}");
    assert_eq!((outcome.packets, outcome.retransmitted, outcome.lost), (123, 0, 0));
}

#[test]
fn an_endpoint_with_half_the_rate_of_its_line_keeps_it() {
    let half = Settings { rate: 50_000_000_000, ..settings(Order::Drop) };
    let flows = with(half.clone(), "ecmp", None).flows;
    let outcome = finished(&with(half, "ecmp", Some(vec![flows[15].clone()])));
    // A byte takes 160 ps at the source, and 80 on the other links.
    let frame = 4096.0 + 58.0;
    let lines = (500_000.0 + 123.0 * 58.0) * 160e-6 + 5.0 * frame * 80e-6 + 12.0;
    let time = outcome.flows[0].time().unwrap();
    assert!((time - lines).abs() < 0.03 * lines, "{time} {lines}");
}

#[test]
fn a_host_that_places_packets_gains_from_spraying_and_one_that_drops_them_loses() {
    let spread = |order, scheme| finished(&with(settings(order), scheme, None));
    let drop = spread(Order::Drop, "oblivious-64");
    let place = spread(Order::Place, "oblivious-64");
    let ordered = spread(Order::Drop, "ecmp");
    let ends = [&drop, &place, &ordered].map(|outcome| outcome.completion().unwrap());
    assert!(drop.nacks > 100 && drop.retransmitted > 1000, "{ends:?} {}", drop.nacks);
    assert_eq!((place.nacks, place.retransmitted, place.timeouts), (0, 0, 0), "{ends:?}");
    assert!(ends[1] < 0.5 * ends[2] && ends[1] < 0.5 * ends[0], "{ends:?}");
}

#[test]
fn congestion_control_keeps_an_incast_from_losing_packets() {
    let flows: Vec<Flow> = with(settings(Order::Place), "ecmp", None)
        .flows
        .into_iter()
        .map(|flow| Flow { target: 100, ..flow })
        .collect();
    let outcome = |nscc, dcqcn| {
        let place = settings(Order::Place);
        let settings = Settings { nscc, dcqcn, acknowledge_marked: true, ..place };
        finished(&with(settings, "oblivious-64", Some(flows.clone())))
    };
    let nscc = outcome(Some(nscc::Parameters { round_trip: 14_100 }), None);
    // It knows of marks only.
    let dcqcn = outcome(None, Some(dcqcn::Parameters::default()));
    let without = outcome(None, None);
    assert!(without.retransmitted > 500, "{}", without.retransmitted);
    assert!(nscc.retransmitted < without.retransmitted / 2, "{}", nscc.retransmitted);
    assert!(dcqcn.retransmitted < without.retransmitted * 9 / 10, "{}", dcqcn.retransmitted);
}

#[test]
fn a_connection_that_fails_is_named_and_runs_are_repeatable() {
    let mut scenario = with(Settings { retries: 2, ..settings(Order::Drop) }, "bitmap-64", None);
    let (first, second) = (run(&scenario, 3), run(&scenario, 3));
    assert_eq!((first.checksum(), &first), (second.checksum(), &second));
    // The link of host 16, to which host 0 sends.
    let port = 2 * 16 + 1;
    scenario.faults =
        vec![Fault { port, damage: Damage::Silent, at: 10 * MICROSECOND, until: None }];
    let outcome = run(&scenario, 1);
    let texts: Vec<String> = outcome.unfinished.iter().map(ToString::to_string).collect();
    let expected = "flow 1 from host 0 to host 16: its connection failed: transport retry counter \
                    exceeded: the peer does not answer";
    assert_eq!(texts, [expected]);
}
