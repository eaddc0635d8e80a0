use super::*;
use crate::record::tests::{experiment, run};
use crate::record::{Arrival, Completion, Discarded, Hit, Run};
use crate::units::InnerPort;

fn pinned() -> Experiment {
    let rest = "[traffic]\nrate = 1000\n[sweep]\nqueue-pairs = [8]";
    experiment(&["kernel", "qp-pin"], rest)
}

fn summary(runs: &[Run]) -> Summary {
    Summary::new(&pinned(), runs)
}

fn texts(runs: &[Run]) -> Vec<String> {
    let line = |verdict: Verdict| format!("{:?}: {}", verdict.grade, verdict.text);
    verdicts(&pinned(), &summary(runs)).into_iter().map(line).collect()
}

fn runs(pinned: [u64; 4]) -> Vec<Run> {
    let both = |at| [run("kernel", 8, at, &[800, 0, 0, 0]), run("qp-pin", 8, at, &pinned)];
    (0..5).flat_map(both).collect()
}

#[test]
fn good_and_bad_news() {
    let good = texts(&runs([200, 200, 200, 200]));
    assert_eq!(
        good,
        [
            "Good: qp-pin, one inner source port for all queue pairs: compared with kernel VXLAN, \
             the peak load is 50 % lower at the leaf, and 75 % lower between the spines.",
            "Good: qp-pin is at the floor at every point: no placement of whole queue pairs is more even.",
            "Note: Kernel VXLAN keeps the route to a VTEP for each CPU: the CPU of the sender chooses \
             the uplink of the leaf, whatever the source port. So a gain over kernel VXLAN at the \
             leaf is not that of a policy alone. Add the dataplane five-tuple, which gets a route for \
             each frame.",
            "Good: None of 8000 frames was lost or reordered.",
            "Good: Every mean MMR is known to ±5 % or better (95 % confidence).",
        ]
    );
    let mut bad = runs([800, 0, 0, 0]);
    let reason = "vtepd on leaf1 ended".to_owned();
    bad[2].discarded = vec![Discarded { reason, failed: true }];
    bad[3].arrival = Some(Arrival { lost: 7, ..Arrival::default() });
    bad[0].busy = 5.0;
    let bad = texts(&bad);
    assert!(
        bad[0].starts_with("Note: ") && bad[0].contains("is the same within noise at the leaf")
    );
    let repeated =
        "Bad: Runs did not count and were repeated: vtepd on leaf1 ended (1 of the runs).";
    assert!(bad.contains(&repeated.into()), "{bad:?}");
    assert!(bad.contains(&"Bad: Of 8000 frames, 7 were lost and 0 were reordered.".into()));
    assert!(!bad.iter().any(|text| text.contains("at the floor")), "{bad:?}");
    let above =
        "Bad: qp-pin is above the floor of whole queue pairs at 1 of 1 points, by up to 300 %.";
    assert!(bad.iter().any(|text| text == above), "{bad:?}");
    let mut busy = runs([200, 200, 200, 200]);
    busy.iter_mut().for_each(|run| (run.seconds, run.busy) = (8.0, 0.99));
    assert!(texts(&busy).last().unwrap().starts_with("Note: The machine was the limit"));
}

#[test]
fn the_gain_of_a_policy_is_that_over_a_route_for_each_frame() {
    let rest = "[traffic]\nrate = 1000\n[sweep]\nqueue-pairs = [8]";
    let experiment = experiment(&["kernel", "five-tuple", "qp-hash"], rest);
    let of = |at| {
        let loads = [("kernel", [800, 0, 0, 0]), ("five-tuple", [400, 0, 400, 0])];
        let all = loads.into_iter().chain([("qp-hash", [400, 0, 400, 0])]);
        all.map(move |(dataplane, loads)| run(dataplane, 8, at, &loads))
    };
    let runs: Vec<Run> = (0..5).flat_map(of).collect();
    let summary = Summary::new(&experiment, &runs);
    let texts: Vec<String> =
        verdicts(&experiment, &summary).into_iter().map(|of| of.text).collect();
    let has = |part: &str| texts.iter().any(|text| text.contains(part));
    assert!(
        has("qp-hash, one inner source port for all queue pairs: compared with kernel VXLAN, the \
                 peak load is 50 % lower at the leaf"),
        "{texts:?}"
    );
    assert!(has("compared with five-tuple, the peak load is the same within noise at the leaf"));
    assert!(has("Compare the policies with five-tuple"), "{texts:?}");
    let headline = headline(&experiment, &summary).unwrap();
    let expected = "The most loaded path carries this multiple of the mean: 2.00 with five-tuple and \
                    qp-hash, 4.00 with kernel VXLAN.";
    assert_eq!(headline, expected);
}

/// Points within noise have no part in the range, on whichever side they are.
#[test]
fn a_range_of_gains_is_that_of_the_points_beyond_noise() {
    let rest = "[traffic]\nrate = 1000\n[sweep]\nqueue-pairs = [8, 16]";
    let experiment = experiment(&["kernel", "qp-hash"], rest);
    let of = |at| {
        let noisy = if at == 0 { [800, 0, 0, 0] } else { [400, 0, 400, 0] };
        [
            run("kernel", 8, at, &[800, 0, 0, 0]),
            run("qp-hash", 8, at, &[400, 0, 400, 0]),
            run("kernel", 16, at, &[400, 0, 400, 0]),
            run("qp-hash", 16, at, &noisy),
        ]
    };
    let runs: Vec<Run> = (0..5).flat_map(of).collect();
    let summary = Summary::new(&experiment, &runs);
    let found = verdicts(&experiment, &summary);
    let gain = found.iter().find(|of| of.text.contains("compared with kernel")).unwrap();
    let expected = "the peak load is 50 % lower at the leaf (within noise at 1 of 2 points)";
    assert!(gain.grade == Grade::Good && gain.text.contains(expected), "{}", gain.text);
}

/// The same can be said of all inner source ports: it is said once.
#[test]
fn verdicts_that_say_the_same_are_one() {
    let mut runs = runs([200, 200, 200, 200]);
    let mut others = runs.clone();
    others.iter_mut().for_each(|run| run.key.point.inner_port = InnerPort::PerQueuePair);
    runs.extend(others);
    let found = texts(&runs);
    let gains: Vec<&String> = found.iter().filter(|text| text.contains("compared with")).collect();
    assert_eq!(gains.len(), 1, "{gains:?}");
    assert!(gains[0].contains("one inner source port for all queue pairs or "), "{gains:?}");
    assert!(gains[0].contains("50 % lower at the leaf, and 75 % lower between"), "{gains:?}");
}

#[test]
fn timeouts_are_said_where_they_made_the_difference() {
    let rest = "workload = { bytes = 1000 }
        [traffic]\nsites = [['a'], ['b']]\n[sweep]\nqueue-pairs = [8]";
    let experiment = experiment(&["kernel", "qp-pin"], rest);
    let of = |at: u32, dataplane: &str, times: &[(f64, u64)]| {
        let each = times.iter().map(|(milliseconds, timeouts)| {
            let all = [("tx_packets", 100), (Completion::TIMEOUTS, *timeouts)];
            let counters = all.into_iter().filter(|(_, value)| *value > 0);
            let counters = counters.map(|(name, value)| (name.to_owned(), value)).collect();
            let milliseconds = milliseconds + f64::from(at);
            crate::record::Iteration { milliseconds, counters, ..Default::default() }
        });
        let timeouts: u64 = times.iter().map(|(_, timeouts)| timeouts).sum();
        let mean = times.iter().map(|(time, _)| time).sum::<f64>() / times.len() as f64;
        let counters =
            [("tx_packets".to_owned(), 200), (Completion::TIMEOUTS.to_owned(), timeouts)];
        let workload = Completion {
            iterations: 2,
            milliseconds: mean + f64::from(at),
            counters: counters.into_iter().filter(|(_, value)| *value > 0).collect(),
            each: each.collect(),
            ..Completion::default()
        };
        Run { workload: Some(workload), seconds: 1.0, ..run(dataplane, 8, at, &[8, 8, 8, 8]) }
    };
    let verdict = |kernel: &[(f64, u64)]| {
        let fast = [(800.0, 0), (800.0, 0)];
        let runs: Vec<Run> =
            (0..5).flat_map(|at| [of(at, "kernel", kernel), of(at, "qp-pin", &fast)]).collect();
        let summary = Summary::new(&experiment, &runs);
        let found = verdicts(&experiment, &summary);
        let found = found.into_iter().find(|of| of.text.contains("completion time")).unwrap();
        (found.grade, found.text)
    };
    let (grade, text) = verdict(&[(2900.0, 13), (2900.0, 13)]);
    assert_eq!(grade, Grade::Note);
    assert_eq!(
        text,
        "qp-pin: compared with kernel VXLAN, the completion time is 72 % lower (beyond noise at 1 of \
         1 points). Timeouts are in these times: 0.0 in an iteration with qp-pin, 13.0 with kernel \
         VXLAN. Too few iterations are without them to tell the difference that remains."
    );
    let (_, text) = verdict(&[(2900.0, 4), (1000.0, 0)]);
    assert!(
        text.contains("2.0 with kernel VXLAN. In iterations without them, the time is 20 % lower.")
    );
    let (grade, text) = verdict(&[(1600.0, 0), (1600.0, 0)]);
    assert!(grade == Grade::Good && !text.contains("imeouts"), "{text}");
    let (grade, text) = verdict(&[(800.0, 0), (800.0, 0)]);
    let same = "qp-pin: compared with kernel VXLAN, the completion time is the same within noise.";
    assert_eq!((grade, text.as_str()), (Grade::Note, same));
}

#[test]
fn it_is_said_how_much_longer_a_workload_takes_beside_other_jobs() {
    let rest = "workload = { bytes = 1000 }
        variant = [{name = 'alone'}, {name = 'beside'}]
        job = [{name = 'other', sites = [['c'], ['d']], variants = ['beside']}]
        [traffic]\nsites = [['a'], ['b']]\n[sweep]\nqueue-pairs = [8]";
    let experiment = experiment(&["kernel"], rest);
    let of = |index: usize, name: &str, milliseconds| {
        let workload = Completion { iterations: 1, milliseconds, ..Completion::default() };
        let mut run = run("kernel", 8, 0, &[8, 8, 8, 8]);
        run.key.point.variant = Some((index, name.parse().unwrap()));
        Run { workload: Some(workload), seconds: 1.0, ..run }
    };
    let runs = [of(0, "alone", 200.0), of(1, "beside", 500.0)];
    let found = verdicts(&experiment, &Summary::new(&experiment, &runs));
    let expected = "kernel VXLAN: beside other jobs, an iteration takes 500 ms instead of 200 ms with 8 queue \
         pairs (2.5 times as long).";
    assert!(found.iter().any(|of| of.text == expected), "{found:?}");
    let runs: Vec<Run> = (0..3)
        .flat_map(|at| {
            let own = |mut run: Run| {
                run.key.repetition = at;
                run
            };
            let more = f64::from(at) * 100.0;
            [own(of(0, "alone", 200.0)), own(of(1, "beside", 300.0 + more))]
        })
        .collect();
    let found = verdicts(&experiment, &Summary::new(&experiment, &runs));
    let told = "400 ms instead of 200 ms with 8 queue pairs (not told apart, 2.0 ± ";
    assert!(found.iter().any(|of| of.text.contains(told)), "{found:?}");
}

#[test]
fn no_conclusion_from_times_if_the_machine_was_the_limit() {
    let rest = "circuits = { rate = 1000 }\nworkload = { bytes = 1000 }
        [traffic]\nsites = [['a'], ['b']]\n[sweep]\nqueue-pairs = [8]";
    let experiment = experiment(&["kernel", "qp-pin"], rest);
    let texts = |busy: f64, full: f64, neighbour: f64| {
        let workload = |milliseconds| Completion {
            iterations: 2,
            milliseconds,
            worst: milliseconds,
            bus_bandwidth: 1.0,
            message_p99: 1.0,
            busy,
            ..Completion::default()
        };
        let of = |at: u32, dataplane: &str, milliseconds: f64| {
            let loads = [20, 10, 0, 0];
            let jobs =
                [("other".to_owned(), Completion { busy: neighbour, ..workload(1.0) })].into();
            let workload = Some(workload(milliseconds + f64::from(at)));
            let full = Some(full);
            Run { seconds: 1.0, full, workload, jobs, ..run(dataplane, 8, at, &loads) }
        };
        let both = |at| [of(at, "kernel", 2000.0), of(at, "qp-pin", 1000.0)];
        let runs: Vec<Run> = (0..5).flat_map(both).collect();
        let summary = Summary::new(&experiment, &runs);
        verdicts(&experiment, &summary).into_iter().map(|of| of.text).collect::<Vec<_>>()
    };
    let has = |texts: &[String], part: &str| texts.iter().any(|text| text.contains(part));
    let (time, limit) = ("the completion time is 50 % lower", "The machine was the limit");
    let idle = texts(0.3, 0.2, 0.1);
    assert!(!has(&idle, "an iteration takes"), "there is another dataplane: {idle:?}");
    assert!(has(&idle, time) && !has(&idle, limit), "{idle:?}");
    let busy = texts(0.97, 0.2, 0.1);
    assert!(!has(&busy, time) && has(&busy, limit), "{busy:?}");
    assert!(has(&busy, "No conclusion from times is drawn"), "{busy:?}");
    // The fabric was the limit, even if the machine was busy, too.
    let full = texts(0.97, 1.0, 0.1);
    assert!(has(&full, time) && !has(&full, limit), "{full:?}");
    let beside = texts(0.3, 0.2, 0.97);
    assert!(!has(&beside, time) && has(&beside, limit), "another job was the limit: {beside:?}");
}

#[test]
fn a_failure_is_a_sentence_for_each_point() {
    let of = |at, dataplane, outage, hit: Option<f64>| Run {
        outage: Some(outage),
        outage_longest: Some(outage),
        hit: hit.map(|milliseconds| Hit { milliseconds, usual: 190.0, retransmitted: 3 }),
        ..run(dataplane, 8, at, &[8, 0, 0, 0])
    };
    let once = [of(0, "kernel", 9000.0, None), of(0, "qp-pin", 160.0, None)];
    assert_eq!(
        outages(&summary(&once))[0].text,
        "traffic that the failure hits stops for 9000 ms with kernel VXLAN, 160 ms with qp-pin \
         (one run each)."
    );
    let resolved = |time: f64| {
        let run = Run { sent: 1_000_000, ..of(0, "kernel", time, None) };
        let summary = summary(&[Run { outage_resolution: Some(8.0), ..run }]);
        let wanted = "dataplane = 'kernel'\ntier = 'spine'\nquantity = 'outage'";
        let published = measured(&toml::from_str(wanted).unwrap(), &summary);
        (outages(&summary)[0].text.clone(), published)
    };
    let (text, published) = resolved(15.0);
    assert!(text.contains("for less than 16.0 ms with kernel VXLAN (one run each; resolution 8.0"));
    assert_eq!(published, "less than 16.0 ms", "two intervals of a queue pair");
    let (text, published) = resolved(17.0);
    assert!(text.contains("for 17.0 ms with kernel VXLAN") && published == "17.0 ms", "{text}");
    let twice = [of(0, "kernel", 90.0, Some(300.0)), of(1, "kernel", 110.0, Some(500.0))];
    assert_eq!(
        outages(&summary(&twice))[0].text,
        "traffic that the failure hits stops for 100 ms with kernel VXLAN (means of up to 2 \
         runs). The iteration that it hits takes 400 ms with kernel VXLAN, instead of 190 ms."
    );
}

#[test]
fn no_times_of_failures_if_the_machine_was_the_limit() {
    let rest = "[sweep]\nqueue-pairs = [8]\n[traffic]\nrate = 1000
        [[failure]]\nkind = 'silent'\n[[published]]\nwhat = ''\nvalue = ''\nsource = ''
        measured = { dataplane = 'kernel', tier = 'spine', quantity = 'outage' }";
    let experiment = experiment(&["kernel"], rest);
    let of = |seconds: f64| {
        let of = |at| Run { outage: Some(123.0), seconds, ..run("kernel", 8, at, &[800, 0, 0, 0]) };
        let summary = Summary::new(&experiment, &[of(0), of(1)]);
        let wanted = experiment.published[0].measured.clone().unwrap();
        let texts = verdicts(&experiment, &summary).into_iter().map(|of| of.text);
        (texts.collect::<String>(), measured(&wanted, &summary))
    };
    let (idle, published) = of(0.8);
    assert!(idle.contains("stops for 123 ms") && published == "123 ms", "{idle} {published}");
    let (limited, published) = of(8.0);
    assert!(!limited.contains("ms") && limited.contains("No conclusion from times"), "{limited}");
    assert_eq!(published, "– (the machine was the limit)");
}

#[test]
fn figures_beside_published_ones() {
    let text = "dataplane = 'qp-pin'\ntier = 'spine'\nquantity = 'peak-gain'";
    let wanted: Measured = toml::from_str(text).unwrap();
    let summary = summary(&runs([200, 200, 200, 200]));
    assert_eq!(measured(&wanted, &summary), "75 % lower (±0.0 %)");
    let mmr = Measured { quantity: Quantity::Mmr, tier: Role::Leaf, ..wanted.clone() };
    assert_eq!(measured(&mmr, &summary), "1.00");
    let ports = Some(InnerPort::PerQueuePair);
    assert_eq!(measured(&Measured { inner_port: ports, ..wanted }, &summary), "–");
}

#[test]
fn a_change_in_words() {
    assert_eq!(change(0.1, 0.25), "10 % to 25 % lower");
    assert_eq!(change(0.1, 0.1), "10 % lower");
    assert_eq!(change(-0.001, 0.25), "0 % to 25 % lower");
    assert_eq!(change(-0.1, -0.1), "10 % higher");
    assert_eq!(change(-0.1, 0.25), "10 % higher to 25 % lower");
    assert_eq!(change(-0.3, -0.1), "10 % to 30 % higher");
}

#[test]
fn inner_ports_change_what_hashes_them() {
    let mut runs = runs([200, 200, 200, 200]);
    let mut others = runs.clone();
    for run in &mut others {
        run.key.point.inner_port = InnerPort::SoftRoce;
        if run.key.dataplane == "kernel" {
            let loads = run.tiers[1].links.values_mut();
            loads.zip([400, 400, 0, 0]).for_each(|(load, value)| *load = value);
        }
    }
    runs.extend(others);
    let found = texts(&runs);
    for expected in [
        "Note: kernel VXLAN: with Soft-RoCE's inner source port for each queue pair instead of one \
         inner source port for all queue pairs, the peak load is 50 % lower (beyond noise at 1 of \
         1 points).",
        "Good: qp-pin: with Soft-RoCE's inner source port for each queue pair instead of one inner \
         source port for all queue pairs, the peak load is the same within noise.",
    ] {
        assert!(found.contains(&expected.to_owned()), "{found:?}");
    }
}

/// The worst point of one dataplane says nothing about that of another.
#[test]
fn the_headline_compares_at_one_point() {
    let rest = "[traffic]\nrate = 1000\n[sweep]\nqueue-pairs = [1, 8]";
    let experiment = experiment(&["kernel", "five-tuple"], rest);
    let of = |at| {
        let one = [("kernel", 1, [800, 0, 0, 0]), ("five-tuple", 1, [799, 1, 0, 0])];
        let many = [("kernel", 8, [600, 200, 0, 0]), ("five-tuple", 8, [200, 200, 200, 200])];
        one.into_iter()
            .chain(many)
            .map(move |(dataplane, pairs, loads)| run(dataplane, pairs, at, &loads))
    };
    let runs: Vec<Run> = (0..5).flat_map(of).collect();
    let summary = Summary::new(&experiment, &runs);
    // One queue pair is on one path, wherever it is placed.
    let one = Run::clone(&runs[0]);
    let alone = verdicts(&experiment, &Summary::new(&experiment, &[one]));
    assert!(!alone.iter().any(|of| of.text.contains("at the floor")), "{alone:?}");
    let headline = headline(&experiment, &summary).unwrap();
    let expected =
        "1.00 with five-tuple, 3.00 with kernel VXLAN (8 queue pairs), where they differ most.";
    assert!(headline.ends_with(expected), "{headline}");
}

#[test]
fn a_headline_says_if_nothing_differs_beyond_noise() {
    let rest = "[traffic]\nrate = 1000\n[sweep]\nqueue-pairs = [8]";
    let experiment = experiment(&["kernel", "qp-pin"], rest);
    let of = |at: u32| {
        let loads = |more: u32| [300 + 100 * u64::from((at + more) % 3), 100, 200, 200];
        [run("kernel", 8, at, &loads(0)), run("qp-pin", 8, at, &[310, 100, 190, 200])]
    };
    let runs: Vec<Run> = (0..3).flat_map(of).collect();
    let summary = Summary::new(&experiment, &runs);
    let headline = headline(&experiment, &summary).unwrap();
    assert!(headline.starts_with("No dataplane differs from another beyond noise. "), "{headline}");
    let texts: Vec<String> =
        verdicts(&experiment, &summary).into_iter().map(|of| of.text).collect();
    assert!(texts.iter().any(|text| text.contains("not told apart (noise ±")), "{texts:?}");
}

#[test]
fn more_queue_pairs_are_faster_if_the_difference_is_beyond_noise() {
    let rest = "workload = { bytes = 1000 }
        [traffic]\nsites = [['a'], ['b']]\n[sweep]\nqueue-pairs = [1, 16]";
    let experiment = experiment(&["qp-hash"], rest);
    let verdict = |one: f64, swing: f64| {
        let of = |at: u32, pairs, milliseconds: f64| {
            let milliseconds = milliseconds + swing * f64::from(at);
            let workload = Completion { iterations: 1, milliseconds, ..Completion::default() };
            let run = run("qp-hash", pairs, at, &[8, 8, 8, 8]);
            Run { workload: Some(workload), seconds: 1.0, ..run }
        };
        let runs: Vec<Run> = (0..4).flat_map(|at| [of(at, 1, one), of(at, 16, 100.0)]).collect();
        times::times(&compared(&experiment, &Summary::new(&experiment, &runs))).remove(0)
    };
    let clear = verdict(400.0, 1.0);
    assert_eq!(clear.grade, Grade::Good);
    let expected = "an iteration takes 402 ms with 1 queue pair, 102 ms with 16 queue pairs: 75 ± ";
    assert!(clear.text.starts_with(expected), "{}", clear.text);
    let noisy = verdict(150.0, 100.0);
    assert!(noisy.grade == Grade::Note && noisy.text.ends_with("not told apart."), "{noisy}");
}
