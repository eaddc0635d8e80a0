//! Abstract hosts and real VTEPs make the same choices from the same feedback.
#![cfg(test)]

use path::Fate;
use sim::file::cases;
use sim::vtep::{Data, Fate as Arrival};
use sim::{Scenario, Vteps as _};
use spray::{Entropy, Random, Scheme, Signal, Spray as _, Sprayer};
use vteps::{Bytes, Unfit, Vteps};

/// 16 hosts at 4 leaves with 4 spines; the file may name something else.
fn scenario_of(more: &str, variant: &str, seed: u64) -> Scenario {
    let text = format!(
        "name = \"vteps\"\ntitle = \"Real VTEPs\"\nquestion = \"?\"\n{more}\n\
         [[traffic]]\nkind = \"permutation\"\nbytes = 500_000\n[[variant]]\n{variant}\n"
    );
    let cases = cases("vteps.toml".as_ref(), &text).unwrap();
    let [case] = &cases[..] else { panic!("{cases:?}") };
    case.file.scenario(&case.file.variants[0], seed, &|_| Err("no file".into())).unwrap()
}

const FABRIC: &str = "[fabric]\nkind = \"leaf-spine\"\nleaves = 4\nhosts = 4\nspines = 4\n\
    rate = \"100Gbit/s\"\ndelay = \"1us\"";

fn scenario(scheme: Scheme, seed: u64) -> Scenario {
    scenario_of(FABRIC, &format!("scheme = \"{scheme}\""), seed)
}

const SCHEMES: [Scheme; 5] =
    [Scheme::Oblivious, Scheme::Reps, Scheme::Bitmap, Scheme::Mixed, Scheme::PrimeLike];

/// What a report says of four paths: at most one good packet of each, and bad news of one.
fn report(random: &mut Random) -> [Fate; 4] {
    let mut fates = [Fate::default(); 4];
    for fate in &mut fates {
        fate.good = random.next() % 2;
    }
    let bad = (random.next() % 4) as usize;
    match random.next() % 4 {
        0 => fates[bad].lost = 1 + random.next() % 3,
        // Marks of one path, where others have none: marks of most paths are for the hosts.
        1 => {
            fates.iter_mut().for_each(|fate| fate.good = 1);
            fates[bad].marked = 1 + random.next() % 3;
        }
        _ => {}
    }
    fates
}

/// A worker's scheme begins as that of an abstract host with the same random numbers.
#[test]
fn one_feedback_log_gives_the_same_choices() {
    for scheme in SCHEMES {
        for seed in 1..=5 {
            let scenario = scenario(scheme, seed);
            let mut vteps = Vteps::new(&scenario, seed).unwrap();
            let mut random = Random::new(vteps::seed_of(seed, 0));
            let tiers = scenario.spraying.tiers;
            let round_trip = scenario.transport.network.round_trip / 1000;
            let times = (round_trip, round_trip / u64::from(tiers.paths()));
            // The worker has a scheme for each of the 15 other VTEPs. The first one is host 1's.
            let mut own = Sprayer::new(scheme, tiers, times, &mut random);
            for _ in 2..16 {
                let _ = Sprayer::new(scheme, tiers, times, &mut random);
            }
            let mut log = Random::stream(seed, 99);
            let mut choices = Vec::new();
            for number in 0..4000_u32 {
                let now = u64::from(number) * 350_000;
                if number % 20 == 19 {
                    let fates = report(&mut log);
                    vteps.pair(0, 1).unwrap().report(fates);
                    let all = || (0..).map(Entropy).zip(fates);
                    for (path, _) in all().filter(|(_, fate)| fate.good > 0) {
                        own.feedback(now / 1000, path, Signal::Good(1));
                    }
                    for (path, Fate { marked, lost, .. }) in all() {
                        if marked > 0 {
                            own.feedback(now / 1000, path, Signal::Marked(marked as u16));
                        }
                        if lost > 0 {
                            own.feedback(now / 1000, path, Signal::Lost(lost as u16));
                        }
                    }
                }
                let data = Data { source: 0, target: 1, flow: 3, number, size: 4150 };
                let real = vteps.choose(now, data);
                let ours = own.next(now / 1000, &mut random).0;
                assert_eq!(real, ours, "{scheme}, seed {seed}, packet {number}");
                choices.push(real);
            }
            let of = |path| choices.iter().filter(|choice| **choice == path).count();
            let all = [0, 1, 2, 3].map(of);
            assert!(all.iter().all(|number| *number > 100), "{scheme}: {all:?}");
            assert_eq!(vteps.bytes(), Bytes::default());
        }
    }
}

/// All flows of both end, about at the same time, and each byte arrives.
#[test]
fn runs_with_real_vteps_are_like_those_of_abstract_hosts() {
    for scheme in SCHEMES {
        let scenario = scenario(scheme, 1);
        let ours = sim::run(&scenario, 1);
        let real = vteps::run(&scenario, 1).unwrap();
        let [us, vs] = [&ours, &real].map(|one| one.completion().unwrap());
        println!("{scheme}: abstract hosts {us:.1} µs, real VTEPs {vs:.1} µs");
        assert!((vs / us - 1.0).abs() < 0.15, "{scheme}: {us} {vs}");
        let mut vteps = Vteps::new(&scenario, 1).unwrap();
        let again = sim::run_with(&scenario, 1, &mut vteps);
        assert_eq!(again, real, "{scheme}: not the same again");
        let Bytes { right, changed } = vteps.bytes();
        // 123 packets of each flow. What is trimmed is sent again.
        assert_eq!((changed, right >= 16 * 123), (0, true), "{right}");
    }
}

/// Losses without a word are found by difference, and the path is left.
#[test]
fn a_path_that_loses_all_in_silence_is_found() {
    let fault = format!(
        "{FABRIC}\n[[fault]]\nkind = \"silent\"\nfrom = \"leaf0\"\nto = \"spine0\"\nboth = false\n\
         [[traffic]]\nkind = \"permutation\"\nbytes = 4_000_000"
    );
    for scheme in [Scheme::Bitmap, Scheme::PrimeLike] {
        let scenario = scenario_of(&fault, &format!("scheme = \"{scheme}\""), 1);
        let mut vteps = Vteps::new(&scenario, 1).unwrap();
        let outcome = sim::run_with(&scenario, 1, &mut vteps);
        assert!(outcome.unfinished.is_empty(), "{:?}", outcome.unfinished);
        // The first hosts are those of the first leaf.
        let ends = scenario.flows.iter().map(|flow| (flow.source, flow.target));
        let (source, target) = ends.clone().find(|(from, to)| *from < 4 && *to >= 4).unwrap();
        let sent = vteps.pair(source, target).unwrap().sent();
        println!("{scheme}: {sent:?}");
        let most = sent[1..].iter().max().unwrap();
        assert!(3 * sent[0] < 2 * most, "{scheme}: {sent:?}");
    }
}

/// A wrong byte is seen.
#[test]
fn frames_that_change_are_counted() {
    let scenario = scenario(Scheme::Oblivious, 1);
    let mut vteps = Vteps::new(&scenario, 1).unwrap();
    let data = Data { source: 0, target: 5, flow: 1, number: 7, size: 4150 };
    let path = vteps.send(0, data);
    vteps.receive(9, Data { number: 8, ..data }, path, Arrival::Good);
    assert_eq!(vteps.bytes(), Bytes { right: 0, changed: 1 });
    vteps.receive(9, data, path, Arrival::Marked);
    assert_eq!(vteps.bytes(), Bytes { right: 1, changed: 1 });
}

#[test]
fn what_real_vteps_cannot_do_is_said() {
    let many = FABRIC.replace("leaves = 4", "leaves = 5");
    let scheme = "scheme = \"bitmap\"";
    for (fabric, variant, expected) in [
        (&many[..], scheme, Unfit::Hosts(20)),
        (FABRIC, "scheme = \"bitmap\"\nvalues = 64", Unfit::Hashed),
        (FABRIC, "scheme = \"ecmp\"", Unfit::Hashed),
        (&format!("{FABRIC}\n[transport.roce]\nmtu = 4096"), scheme, Unfit::Roce),
    ] {
        let scenario = scenario_of(fabric, variant, 1);
        assert_eq!(vteps::run(&scenario, 1).unwrap_err(), expected);
    }
}
