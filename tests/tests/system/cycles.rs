//! Q21 and Q22: vtepd starts and stops while numbered frames pass.
//!
//! The short runs are part of every test run. `tests/cycles` runs all of them with fifty cycles
//! each and prints the table.

use root_test::root_test;
use vtepd_tests::Lab;
use vtepd_tests::cycles::{self, Direction, End, HEADING, Run};

/// Runs both directions at all rates and prints the costs. Fails with all runs that missed their
/// target. A run that misses the time limit of SIGKILL is repeated up to `tries` times, because a
/// busy machine may suspend the test for some milliseconds.
fn come_and_go(
    case: &str,
    hook: &'static str,
    ends: &[End],
    rates: &[u32],
    count: usize,
    tries: usize,
) {
    come_and_go_with(1, case, hook, ends, rates, count, tries);
}

fn come_and_go_with(
    workers: u8,
    case: &str,
    hook: &'static str,
    ends: &[End],
    rates: &[u32],
    count: usize,
    tries: usize,
) {
    let lab = Lab::new(case);
    let mut missed = Vec::new();
    println!("{HEADING}");
    let row = |end, direction, rate, count| {
        let costs = cycles::run(&lab, Run { hook, workers, direction, end, rate, cycles: count });
        print!("{costs}");
        costs
    };
    if hook == "clsact" {
        println!(
            "the first attach adds the qdiscs, for which the kernel stops the interfaces (qdisc_graft() in net/sched/sch_api.c):"
        );
        row(End::Detach, Direction::Out, rates.first().copied().unwrap(), 1);
        println!("from then on they are there:");
    }
    for &end in ends {
        for &rate in rates {
            for direction in [Direction::Out, Direction::In] {
                let mut late = None;
                for _ in 0..tries {
                    let costs = row(end, direction, rate, count);
                    missed.extend(costs.check_frames().err());
                    late = costs.check_time().err();
                    if late.is_none() {
                        break;
                    }
                }
                missed.extend(late);
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// The rate of the short runs. An unoptimised worker on a busy machine can forward that.
const SHORT: [u32; 1] = [20_000];
const SHORT_CYCLES: usize = 3;
const SHORT_TRIES: usize = 3;

#[root_test]
fn q21_attach_and_detach_under_traffic_lose_and_double_nothing_on_tcx() {
    come_and_go("q21t", "tcx", &[End::Detach], &SHORT, SHORT_CYCLES, SHORT_TRIES);
}

#[root_test]
fn q21_attach_and_detach_under_traffic_lose_and_double_nothing_with_several_workers() {
    come_and_go_with(3, "q21w", "tcx", &[End::Detach], &SHORT, SHORT_CYCLES, SHORT_TRIES);
}

#[root_test]
fn q21_attach_and_detach_under_traffic_lose_and_double_nothing_on_clsact() {
    come_and_go("q21c", "clsact", &[End::Detach], &SHORT, SHORT_CYCLES, SHORT_TRIES);
}

#[root_test]
fn q22_sigkill_under_traffic_loses_less_than_5_ms_on_tcx() {
    come_and_go("q22t", "tcx", &[End::Kill], &SHORT, SHORT_CYCLES, SHORT_TRIES);
}

#[root_test]
fn q22_sigkill_under_traffic_loses_less_than_5_ms_on_clsact() {
    come_and_go("q22c", "clsact", &[End::Kill], &SHORT, SHORT_CYCLES, SHORT_TRIES);
}

/// The whole table. `CYCLES` sets the number of cycles (50 by default), `HOOK` restricts it to one
/// kind of hook.
#[root_test]
#[ignore = "takes about ten minutes and two idle cores: tests/cycles"]
fn all_cycles() {
    let count =
        std::env::var("CYCLES").map_or(50, |text| text.parse().expect("CYCLES is a number"));
    let ends = [End::Detach, End::Kill];
    let only = std::env::var("HOOK").ok().filter(|hook| !hook.is_empty());
    let missed: Vec<String> = ["tcx", "clsact"]
        .into_iter()
        .filter(|hook| only.as_deref().is_none_or(|only| only == *hook))
        .filter_map(|hook| {
            let run =
                || come_and_go(&format!("all{hook}"), hook, &ends, &[100_000, 1000], count, 1);
            std::panic::catch_unwind(run).err().map(|_| hook.to_owned())
        })
        .collect();
    assert!(missed.is_empty(), "missed targets on {missed:?}, see above");
}
