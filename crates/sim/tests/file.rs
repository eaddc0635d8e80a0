//! Files of simulations.

#![cfg(test)]

use std::path::Path;

use sim::file::{FileError, cases};
use sim::{Choice, Feedback};

const FILE: &str = r#"
name = "small"
title = "A small fabric"
question = "?"
seeds = 2

[fabric]
kind = "leaf-spine"
leaves = 4
hosts = 2
spines = 2
rate = "100Gbit/s"
delay = "1us"

[[traffic]]
kind = "permutation"
bytes = 100_000

[[traffic]]
kind = "matrix"
file = "own.cm"

[[fault]]
kind = "slow"
from = "spine0"
to = "leaf0"
both = false

[[variant]]
scheme = "reps"
values = 64

[[variant]]
scheme = "prime-like"

[sweep]
"traffic.0.bytes" = [100_000, 200_000]
"queue.trim" = [true, false]
"#;

const MATRIX: &str = "Nodes 8\n0->5 id 1 start 0 size 4000 send_done_trigger 1\n\
    5->0 id 2 trigger 1 size 4000 prio 1\ntrigger id 1 oneshot\n";

fn read(path: &Path) -> Result<String, String> {
    assert_eq!(path, Path::new("own.cm"));
    Ok(MATRIX.into())
}

fn error(from: &str, to: &str) -> String {
    assert!(FILE.contains(from), "{from}");
    match cases(Path::new("x.toml"), &FILE.replacen(from, to, 1)) {
        Err(error) => error.to_string(),
        Ok(cases) => cases
            .iter()
            .flat_map(|case| case.file.variants.iter().map(|variant| (&case.file, variant)))
            .find_map(|(file, variant)| file.scenario(variant, 1, &read).err())
            .expect("an error"),
    }
}

#[test]
fn each_combination_is_a_case() {
    let cases = cases(Path::new("x.toml"), FILE).unwrap();
    let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "small/queue.trim=true/traffic.0.bytes=100000",
            "small/queue.trim=true/traffic.0.bytes=200000",
            "small/queue.trim=false/traffic.0.bytes=100000",
            "small/queue.trim=false/traffic.0.bytes=200000",
        ]
    );
    let file = &cases[3].file;
    let labels: Vec<String> = file.variants.iter().map(|variant| variant.label()).collect();
    assert_eq!(labels, ["reps-64", "known-prime-like"]);
    let reps = file.scenario(&file.variants[0], 1, &read).unwrap();
    assert_eq!(reps.flows.iter().filter(|flow| flow.bytes == 200_000).count(), 8);
    assert_eq!((reps.limits.trim, reps.faults.len()), (false, 1));
    assert_eq!(reps.spraying.feedback, Feedback::Acknowledged);
    let prime = file.scenario(&file.variants[1], 1, &read).unwrap();
    assert_eq!(prime.spraying.choice, Choice::Known);
    assert_eq!((prime.spraying.tiers.paths(), prime.spraying.feedback), (2, Feedback::EachPacket));
}

#[test]
fn quantities_are_plain_numbers_or_have_units() {
    let text = FILE
        .replace("bytes = 100_000\n", "bytes = \"100kB\"\n")
        .replace("[100_000, 200_000]", "[100_000, \"200kB\"]")
        .replace("100Gbit/s", "100gbit")
        + "[transport]\npacket = \"4KiB\"\nroce = { timeout = \"500us\", mtu = \"4KiB\" }\n";
    let cases = cases(Path::new("x.toml"), &text).unwrap();
    let transport = &cases[1].file.transport;
    let roce = transport.roce.as_ref().unwrap();
    assert_eq!((transport.packet, roce.timeout, roce.mtu), (4096, 500_000, 4096));
    let scenario = cases[1].file.scenario(&cases[1].file.variants[0], 1, &read).unwrap();
    assert_eq!(scenario.flows.iter().filter(|flow| flow.bytes == 200_000).count(), 8);
}

#[test]
fn jobs_have_numbers_and_triggers_of_their_own() {
    let cases = cases(Path::new("x.toml"), FILE).unwrap();
    let file = &cases[0].file;
    let scenario = file.scenario(&file.variants[0], 1, &read).unwrap();
    let ids: Vec<u32> = scenario.flows.iter().map(|flow| flow.id).collect();
    assert_eq!(ids, (1..=10).collect::<Vec<u32>>());
    assert_eq!(scenario.flows[9].job, 1);
    let outcome = sim::run(&scenario, 1);
    assert_eq!(outcome.unfinished, []);
    assert_eq!(outcome.flows[9].start, outcome.flows[8].end);
}

#[test]
fn errors_say_what_to_do() {
    for (from, to, words) in [
        ("leaves = 4", "leaves = 0", "at least 1"),
        ("leaves = 4", "leafs = 4", "leafs"),
        ("leaves = 4", "leaves = 4000000", "4 million ports"),
        ("\"1us\"", "\"1\"", "ns, us, ms, s, min, such as 5ms"),
        ("\"100Gbit/s\"", "\"100GB\"", "kbit, mbit, gbit, tbit, such as 1gbit"),
        ("values = 64", "values = 63", "power of two"),
        ("spines = 2", "spines = 3", "power of two"),
        ("\"reps\"", "\"prime\"", "prime-like"),
        ("\"traffic.0.bytes\"", "\"traffic.7.bytes\"", "no such place"),
        ("\"spine0\"", "\"spine9\"", "no link leads from 'spine9'"),
        ("seeds = 2", "seeds = 0", "'seeds'"),
        ("name = \"small\"", "name = \"a b\"", "'name'"),
        ("hosts = 2", "hosts = 1", "8 nodes"),
        ("leaves = 4\nhosts = 2", "leaves = 70000\nhosts = 1", "switches times leaves"),
        (
            "\"leaf-spine\"\nleaves = 4\nhosts = 2\nspines = 2",
            "\"two-sites\"\ncircuit-rate = \"1gbit\"\ncircuit-delay = \"1ms\"\n\
             leaves = 1073741824\nhosts = 4294967295\nspines = 1",
            "4 million ports",
        ),
        ("kind = \"permutation\"", "kind = \"ring\"\ngroup = 9", "there are 8 hosts"),
        ("kind = \"permutation\"", "kind = \"incast\"\nsenders = 8", "use 1 to 7"),
        (
            "kind = \"permutation\"",
            "kind = \"stream\"\nfrom = \"host0\"\nto = \"host1\"\nflows = 4000000000",
            "are too many",
        ),
        ("both = false", "both = false\nat = \"100us\"\nuntil = \"50us\"", "after 'at'"),
        ("[fabric]", "[transport]\ntimeout = \"1us\"\n\n[fabric]", "round trip time"),
    ] {
        let error = error(from, to);
        assert!(error.contains(words), "{to}: {error}");
    }
    let error = cases(Path::new("x.toml"), "name = 3").unwrap_err();
    assert!(matches!(error, FileError::Toml { .. }) && error.to_string().contains("line 1"));
}

#[test]
fn a_file_does_not_multiply_beyond_memory() {
    let problem = |text: &str| cases(Path::new("x.toml"), text).unwrap_err().to_string();
    let sweep = |lists: &[(&str, u32)]| {
        let list = |(key, number): &(&str, u32)| {
            let values: Vec<String> = (1..=*number).map(|value| value.to_string()).collect();
            format!("\"{key}\" = [{}]\n", values.join(", "))
        };
        let lists: String = lists.iter().map(list).collect();
        format!("{}\n[sweep]\n{lists}", FILE.split("[sweep]").next().unwrap())
    };
    // 10¹⁰ cases.
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let error = problem(&sweep(&keys.map(|key| (key, 10))));
    assert!(error.contains("sweep.\"e\"") && error.contains("use at most 10000"), "{error}");
    let two = [("traffic.0.bytes", 100), ("end", 100)];
    assert!(!problem(&sweep(&two)).contains("too many"), "the end is no number");
    // 100 cases with 2 variants and 10,000 seeds each.
    let text = sweep(&two[..1]).replacen("seeds = 2", "seeds = 10000", 1);
    assert!(problem(&text).contains("2000000 runs"), "{}", problem(&text));
    let long = sweep(&two[..1]).replacen("\"?\"", &format!("\"{}\"", "?".repeat(1 << 20)), 1);
    assert!(problem(&long).contains("use at most 63"), "{:.200}", problem(&long));
    for (kind, rest) in [
        ("traffic", "kind = 'permutation'\nbytes = 1"),
        ("fault", "kind = 'dead'\nfrom = 'a'\nto = 'b'"),
    ] {
        let many = format!("\n[[{kind}]]\n{rest}").repeat(1001);
        assert!(problem(&format!("{FILE}{many}")).contains("use at most 1000 [[traffic]]"));
    }
}

#[test]
fn a_fabric_of_a_topology_file_is_not_larger_than_others() {
    let own = "[fabric]\nkind = \"topology\"\nfile = \"x.clab.yml\"\nrate = \"1gbit\"\n";
    let (before, rest) = FILE.split_once("[fabric]").unwrap();
    let (_, rest) = rest.split_once("delay").unwrap();
    let cases = cases(Path::new("x.toml"), &format!("{before}{own}delay{rest}")).unwrap();
    // A star of 8,192 leaves with a host each.
    let link = |leaf: u32| format!("host{leaf} leaf{leaf}\nleaf{leaf} spine0\n");
    let links: String = (0..8192).map(link).collect();
    let read = |path: &Path| match path.extension() {
        Some(own) if own == "yml" => Ok(links.clone()),
        _ => read(path),
    };
    let error = cases[0].file.scenario(&cases[0].file.variants[0], 1, &read).unwrap_err();
    let expected = "x.clab.yml: 'fabric' is too large: switches times leaves may be 64 million";
    assert_eq!(error, expected);
}

/// 15 µs and six full queues of 80 µs.
#[test]
fn the_default_timeout_is_that_of_the_queues() {
    let timeout = |text: &str| {
        let all = cases(Path::new("x.toml"), text).unwrap();
        all[0].file.scenario(&all[0].file.variants[0], 1, &read).unwrap().transport.timeout
    };
    let large = FILE.replacen("[fabric]", "[queue]\nbytes = \"1MB\"\n\n[fabric]", 1);
    assert_eq!(timeout(&large), 495_000_000);
    assert!(timeout(FILE) < 200_000_000);
}

#[test]
fn the_shipped_file_can_be_used() {
    let text = include_str!("../../../deploy/simulations/spraying.toml");
    let all = cases(Path::new("spraying.toml"), text).unwrap();
    assert!(all.len() > 1);
    for case in &all {
        for variant in &case.file.variants {
            case.file.scenario(variant, 1, &read).unwrap();
        }
    }
}

#[test]
fn sizes_come_from_a_distribution() {
    let random =
        "kind = \"random\"\nsizes = [[1000, 0.5], [100_000, 1.0]]\nload = 0.5\nuntil = \"1ms\"\n";
    let with = |random: &str| FILE.replacen("kind = \"permutation\"\nbytes = 100_000\n", random, 1);
    let sweep = "\"traffic.0.bytes\" = [100_000, 200_000]\n";
    let text = with(random).replacen(sweep, "", 1);
    let all = cases(Path::new("x.toml"), &text).unwrap();
    let file = &all[0].file;
    let scenario = file.scenario(&file.variants[0], 1, &read).unwrap();
    // 8 hosts with 100 Gbit/s, half used: 50 MB in a millisecond, of 25,750 bytes in the mean.
    let number = scenario.flows.iter().filter(|flow| flow.job == 0).count();
    assert!((1700..2200).contains(&number), "{number}");
    for (from, to, says) in [
        ("load = 0.5", "load = 0.0", "above 0"),
        ("1.0]]", "0.9]]", "1 at the end"),
        ("until = \"1ms\"", "until = \"60s\"", "too many"),
    ] {
        let all = cases(Path::new("x.toml"), &text.replacen(from, to, 1)).unwrap();
        let file = &all[0].file;
        let error = file.scenario(&file.variants[0], 1, &read).map(drop).unwrap_err();
        assert!(error.contains(says), "{to}: {error}");
    }
}

#[test]
fn hosts_can_be_roce_endpoints() {
    let roce = "[transport.roce]\norder = \"place\"\nnscc = {}\n\n[[traffic]]";
    let cases = cases(Path::new("x.toml"), &FILE.replacen("[[traffic]]", roce, 1)).unwrap();
    let scenario = |file: &sim::file::File| file.scenario(&file.variants[0], 1, &read);
    let found = scenario(&cases[0].file).unwrap();
    let settings = found.roce.unwrap();
    assert_eq!((settings.order, settings.rate), (roce::Order::Place, 100_000_000_000));
    assert!(!found.limits.trim, "an endpoint does not know trimmed packets");
    let wrong = roce.replace("nscc = {}", "mtu = 1000");
    let cases = sim::file::cases(Path::new("x.toml"), &FILE.replacen("[[traffic]]", &wrong, 1));
    let error = scenario(&cases.unwrap()[0].file).unwrap_err();
    assert_eq!(
        error,
        "'transport.roce': the path MTU is 1000: use 256, 512, 1024, 2048 or 4096 bytes"
    );
}

#[test]
fn a_fabric_can_be_a_list_of_links() {
    let built = "kind = \"leaf-spine\"\nleaves = 4\nhosts = 2\nspines = 2\n";
    let own = "kind = \"topology\"\nfile = \"x.clab.yml\"\n";
    let text = FILE.replacen(built, own, 1).replace("spine0", "s2").replace("leaf0", "l1");
    let cases = cases(Path::new("x.toml"), &text).unwrap();
    let links = "l1 s1\nl1 s2\nl2 s1\nl2 s2\nl1 a\nl1 b\nl2 c\nl2 d\nl2 e\nl1 f\nl1 g\nl2 h\n";
    let read = |path: &Path| match path.extension() {
        Some(own) if own == "yml" => Ok(links.to_owned()),
        _ => read(path),
    };
    let scenario = cases[0].file.scenario(&cases[0].file.variants[1], 1, &read).unwrap();
    let topology = &scenario.topology;
    assert_eq!((topology.hosts, &topology.uplinks[..]), (8, &[2][..]));
    assert_eq!((topology.name(2), topology.name(8)), ("c".to_owned(), "l1".to_owned()));
    assert_eq!(scenario.faults[0].port, topology.find_port("s2", "l1").unwrap());
    assert_eq!(sim::run(&scenario, 1).unfinished, []);
}

/// A policy that hashes each queue pair draws a path for each, one that places them takes all paths
/// in turns, and a scheme sprays each over all paths.
#[test]
fn a_stream_is_hashed_placed_or_sprayed() {
    let text = r#"
        name = "stream"
        title = ""
        question = ""
        [fabric]
        kind = "two-sites"
        leaves = 1
        hosts = 1
        spines = 2
        rate = "100Gbit/s"
        delay = "1us"
        circuit-rate = "100Gbit/s"
        circuit-delay = "50us"
        [[traffic]]
        kind = "stream"
        from = "host0"
        to = "host1"
        flows = 2
        bytes = 4_000_000
        [[variant]]
        scheme = "ecmp"
        placed = true
        [[variant]]
        scheme = "oblivious"
        [[variant]]
        scheme = "ecmp"
        values = 64
        [sweep]
        "traffic.0.flows" = [1, 2, 4]
    "#;
    let cases = cases(Path::new("x.toml"), text).unwrap();
    let no_file = |_: &Path| Err(String::new());
    let mmr = |case: usize, variant: usize, seed: u64| {
        let file = &cases[case].file;
        let scenario = file.scenario(&file.variants[variant], seed, &no_file).unwrap();
        let outcome = sim::run(&scenario, seed);
        assert_eq!(outcome.unfinished, []);
        outcome.max_mean_ratio((2, 2)).unwrap()
    };
    for seed in 1..=3 {
        // 1, 2 and 4 flows on as many of the four circuits.
        assert_eq!([0, 1, 2].map(|case| mmr(case, 0, seed).round()), [4.0, 2.0, 1.0]);
        for case in 0..3 {
            assert!((1.0..1.02).contains(&mmr(case, 1, seed)), "{}", mmr(case, 1, seed));
        }
        assert_eq!(mmr(0, 2, seed), 4.0);
    }
    let hashed = (1..=40).map(|seed| mmr(1, 2, seed)).sum::<f64>() / 40.0;
    assert!((2.1..2.9).contains(&hashed), "two random circuits: {hashed}, expected 2.5");
    for (from, to, problem) in [
        ("to = \"host1\"", "to = \"host7\"", "'host7' is no host"),
        ("to = \"host1\"", "to = \"host0\"", "a stream needs two hosts"),
        ("placed = true", "name = \"x\"\nplaced = true\nvalues = 64", "'placed' is for the scheme"),
    ] {
        assert!(text.contains(from), "{from}");
        let wrong = sim::file::cases(Path::new("x.toml"), &text.replacen(from, to, 1)).unwrap();
        let file = &wrong[0].file;
        let error = file.scenario(&file.variants[0], 1, &no_file).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
}
