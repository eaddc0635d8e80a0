use super::*;

const GOOD: &str = r#"name = "sample"
title = "A sample"
question = "Does it work?"
topologies = ["../containerlab/minimal.clab.yml"]
baseline = "qp-hash"

[[dataplane]]
policy = "kernel"

[[dataplane]]
policy = "qp-hash"

[[dataplane]]
policy = "qp-bins"
bins = 8
datapath = "offload"

[sweep]
queue-pairs = [4, 8]

[quick.repetitions]
max = 5
"#;

fn error(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    let text = GOOD.replacen(from, to, 1);
    Experiment::parse("dir/x.toml".as_ref(), &text).unwrap_err().to_string()
}

#[test]
fn a_file_has_defaults_and_a_quick_form() {
    let experiment = Experiment::parse("dir/x.toml".as_ref(), GOOD).unwrap();
    assert_eq!(experiment.topologies, [Path::new("dir/../containerlab/minimal.clab.yml")]);
    assert_eq!((experiment.seed, experiment.repetitions.max.get()), (SEED, 100));
    assert_eq!(experiment.baseline(), "qp-hash");
    let labels: Vec<String> = experiment.dataplanes.iter().map(Dataplane::label).collect();
    assert_eq!(labels, ["kernel", "qp-hash", "qp-bins-8.offload"]);
    assert_eq!(experiment.sweep.inner_port, [InnerPort::Constant]);
    let quick = experiment.form(true);
    assert_eq!((quick.repetitions.max.get(), quick.repetitions.min.get()), (5, 10));
    assert_eq!(quick.sweep.queue_pairs.len(), 2, "what --quick does not name stays");
}

#[test]
fn an_error_names_line_and_column() {
    for (from, to, place, message) in [
        ("[4, 8]", "[4, 0]", "line 19, column 15", "0 queue pairs: expected 1 to 1000"),
        ("[4, 8]", "[4, 4]", "line 19, column 15", "4 is there twice"),
        (
            "[4, 8]",
            "[4]\ndelay = [\"1ms\", \"5ms\", \"1ms\"]",
            "line 20, column 9",
            "'1ms' is there twice",
        ),
        (
            "[4, 8]",
            "[4]\njitter = [\"1ms\", \"1000 us\"]",
            "line 20, column 10",
            "'1000us' is as long as '1ms'",
        ),
        (
            "[sweep]",
            "[traffic]\nsites = [[\"a\"], [\"b\", \"a\"]]\n\n[sweep]",
            "line 19, column 9",
            "the host 'a' is there twice",
        ),
        ("[4, 8]", "[]", "line 19, column 15", "the list is empty"),
        ("queue-pairs", "queue-pears", "line 19, column 1", "unknown field `queue-pears`"),
        ("\"sample\"", "\"a b\"", "line 1, column 8", "'a b' is no name"),
        (
            "= \"qp-hash\"\n\n",
            "= \"qp-pin\"\n\n",
            "line 5, column 12",
            "is no dataplane: expected kernel",
        ),
        ("title", "# title", "line 1, column 1", "missing field `title`"),
        ("queue-pairs", "queue-pair", "line 19, column 1", "did you mean `queue-pairs`?"),
        ("max = 5", "max = 0", "line 22, column 7", "expected a whole number above 0"),
        ("[sweep]", "[published]\n[sweep]", "line 18, column 1", "write [[published]], not"),
        ("[sweep]", "[sweep", "line 18, column 7", "unclosed table"),
    ] {
        let error = error(from, to);
        assert!(error.starts_with("dir/x.toml, ") && error.contains(place), "{place}: {error}");
        assert!(error.contains(message), "{message}: {error}");
    }
    let twice = error("policy = \"kernel\"", "policy = \"qp-hash\"");
    assert!(twice.contains("two dataplanes are called 'qp-hash'"), "{twice}");
    let missing = Experiment::load("/no/such.toml".as_ref()).unwrap_err();
    assert_eq!(missing.to_string(), "cannot read /no/such.toml");
}

#[test]
fn the_schema_has_names_ranges_and_descriptions() {
    let schema = schema().to_string();
    for part in ["queue-pairs", "\"maximum\":1000", "What the experiment answers", "dataplane"] {
        assert!(schema.contains(part), "{part}: {schema}");
    }
}

#[test]
fn circuits_of_a_variant_win() {
    let text = GOOD.replace(
        "[sweep]",
        "[circuits]\ndelay = \"5ms\"\nrate = 100\n[[variant]]\nname = \"far\"\n\
         circuits = { delay = \"20ms\", loss = 0.5 }\n[sweep]",
    );
    let experiment = Experiment::parse("x.toml".as_ref(), &text).unwrap();
    let options = experiment.variants[0].circuits.options(&experiment.circuits);
    let words: Vec<String> =
        options.into_iter().map(|(name, value)| format!("{name} {value}")).collect();
    assert_eq!(words, ["--delay 20ms", "--loss 0.5", "--rate 100"]);
    let bad = text.replace("20ms", "20 parsecs");
    let error = Experiment::parse("x.toml".as_ref(), &bad).unwrap_err().to_string();
    assert!(error.contains("expected 0 s to 3600 s"), "{error}");
}

#[test]
fn a_workload_needs_hosts_and_the_quick_form_may_change_it() {
    let text = GOOD.replace("[sweep]", "[workload]\nbytes = 1000\n[sweep]");
    let error = Experiment::parse("x.toml".as_ref(), &text).unwrap_err().to_string();
    assert!(error.contains("a workload needs hosts"), "{error}");
    let text = text.replace("[workload]", "[traffic]\nsites = [[\"a\"], [\"b\"]]\n[workload]");
    let text = text.replace("[quick.rep", "[quick.workload]\nbytes = 10\n[quick.rep");
    let bytes = |experiment: &Experiment| {
        experiment.workload.as_ref().unwrap().get_ref()["bytes"].as_integer()
    };
    let experiment = Experiment::parse("x.toml".as_ref(), &text).unwrap();
    assert_eq!(bytes(&experiment), Some(1000));
    assert_eq!(bytes(&experiment.form(true)), Some(10));
}

const FAILURES: &str = r#"
[[failure]]
kind = "silent"

[[failure]]
kind = "frr"
at = "2s"
node = "spine1"

[[variant]]
name = "power"
failure = [{ kind = "router", at = "500ms", for = "3s", limit = 90 }]

[[variant]]
name = "slow"
failure = [{ kind = "circuits", link = "spine1:dci1", circuits = { delay = "50ms" } }]

[[variant]]
name = "whole"
failure = []
"#;

#[test]
fn failures_have_times_and_a_variant_may_have_its_own() {
    let experiment = Experiment::parse("x.toml".as_ref(), &format!("{GOOD}{FAILURES}")).unwrap();
    assert!(experiment.has_failures());
    let times = |variant| {
        let failures = experiment.failures(variant);
        let times = failures.iter().map(|failure| {
            (
                failure.at().as_millis(),
                failure.until().map(|until| until.as_millis()),
                failure.limit,
            )
        });
        times.collect::<Vec<_>>()
    };
    // FRR is started again at once.
    assert_eq!(times(None), [(1000, None, 60), (2000, Some(2000), 60)]);
    assert_eq!(times(Some(0)), [(500, Some(3500), 90)]);
    assert_eq!(times(Some(1)), [(1000, None, 60)]);
    assert_eq!(times(Some(2)), []);
    assert!(!Experiment::parse("x.toml".as_ref(), GOOD).unwrap().has_failures());
}

#[test]
fn keys_of_a_failure_that_do_not_fit_are_named_with_their_line() {
    let line = GOOD.lines().count() + 2;
    for (from, to, message) in [
        (
            "kind = \"silent\"",
            "kind = \"silent\"\nnode = \"a\"",
            "'node' is for the failures router",
        ),
        ("node = \"spine1\"", "link = \"a:b\"", "'link' is for the failures silent"),
        (", circuits = { delay = \"50ms\" }", "", "needs settings of circuits"),
        ("kind = \"silent\"", "kind = \"silent\"\ncircuits = { loss = 1 }", "and no other, needs"),
        ("spine1:dci1", "spine1", "use NODE:INTERFACE"),
        ("50ms", "50", "such as 5ms"),
        ("kind = \"frr\"", "kind = \"fire\"", "unknown variant `fire`, expected one of"),
    ] {
        assert!(FAILURES.contains(from), "{from}");
        let text = format!("{GOOD}{}", FAILURES.replacen(from, to, 1));
        let error = Experiment::parse("x.toml".as_ref(), &text).unwrap_err().to_string();
        assert!(error.contains(message) && error.starts_with("x.toml, line "), "{error}");
    }
    let text =
        format!("{GOOD}{}", FAILURES.replacen("kind = \"silent\"", "kind = \"circuits\"", 1));
    let error = Experiment::parse("x.toml".as_ref(), &text).unwrap_err().to_string();
    assert!(error.starts_with(&format!("x.toml, line {line}, ")), "{error}");
}

#[test]
fn what_contradicts_another_value_is_named_with_its_line() {
    let variants = "[[variant]]\nname = 'a'\n[[variant]]\nname = 'b'\n";
    let published = "[[published]]\nwhat = ''\nvalue = ''\nsource = ''\n\
        measured = { dataplane = 'kernel', tier = 'spine', quantity = 'mmr', variant = 'a' }\n";
    let good = GOOD.replace("[sweep]", &format!("{variants}{published}[sweep]"));
    let good = good.replace("[quick.", "[quick]\nvariants = ['b']\n[quick.");
    Experiment::parse("x.toml".as_ref(), &good).unwrap();
    for (from, to, message) in [
        ("variants = ['b']", "variants = ['b', 'c']", "'c' is no [[variant]] of the file"),
        ("name = 'b'", "name = 'a'", "two variants are called 'a'"),
        ("dataplane = 'kernel'", "dataplane = 'kernal'", "expected kernel, qp-hash, qp-bins-8"),
        ("variant = 'a' }", "variant = 'z' }", "expected a, b"),
        (
            "policy = \"qp-hash\"",
            "policy = \"qp-hash\"\nname = \"qp-hash\"\nbins = 4",
            "for the policy qp-bins",
        ),
        (
            "policy = \"kernel\"",
            "policy = \"kernel\"\nname = \"kernel\"\ndatapath = \"auto\"",
            "without vtepd",
        ),
        ("al.clab.yml\"", "al.clab.yml\", \"minimal.clab.yml\"", "two topologies are called"),
        ("max = 5", "max = 5\nmin = 6", "'min' is larger than 'max'"),
        ("name = 'a'", "name = 'a'\nworkload = { bytes = 1 }", "[workload], which is missing"),
        ("[4, 8]", "[4, 8]\nbytes = [1, 2]", "[workload], which is missing"),
        ("name = 'a'", "name = 'a'\ncircuits = { delay = '1ms' }", ""),
    ] {
        assert!(good.contains(from), "{from}");
        let text = good.replacen(from, to, 1);
        let Err(error) = Experiment::parse("x.toml".as_ref(), &text) else {
            assert!(message.is_empty(), "{to}");
            let both = text.replacen("[4, 8]", "[4, 8]\ndelay = ['2ms']", 1);
            let error = Experiment::parse("x.toml".as_ref(), &both).unwrap_err().to_string();
            assert!(error.contains("'a' sets 'delay', too"), "{error}");
            continue;
        };
        let error = error.to_string();
        assert!(error.starts_with("x.toml, line ") && error.contains(message), "{error}");
        let line = text[..text.rfind(to).unwrap()].matches('\n').count();
        let lines = line..=line + 1 + to.matches('\n').count();
        assert!(lines.into_iter().any(|at| error.contains(&format!("line {at},"))), "{error}");
    }
}

#[test]
fn tables_of_a_variants_workload_are_merged_key_by_key() {
    let text = GOOD.replace(
        "[sweep]",
        "[traffic]\nsites = [['a'], ['b']]\n[workload]\nbytes = 1000\n[workload.transport]\nmtu = \
         512\nretries = 9\n[[variant]]\nname = 'v'\nworkload = { transport = { mtu = 1024 } }\n\
         sites = [['a', 'b'], ['c']]\n[sweep]",
    );
    let experiment = Experiment::parse("x.toml".as_ref(), &text).unwrap().form(false);
    let expected: toml::Table =
        toml::from_str("bytes = 1000\ntransport = { mtu = 1024, retries = 9 }").unwrap();
    assert_eq!(experiment.workload(Some(0)), expected);
    assert_eq!(experiment.sites(Some(0)).iter().flatten().count(), 3);
    assert_eq!(experiment.sites(None).iter().flatten().count(), 2);
}

#[test]
fn values_of_a_sweep_make_variants() {
    let text = GOOD.replace(
        "queue-pairs = [4, 8]",
        "queue-pairs = [4]\ndelay = ['1ms', '10ms']\nloss = [0, 0.5]\nrate = [9]\nbytes = [70]",
    );
    let text = text.replace(
        "[sweep]",
        "[traffic]\nsites = [['a'], ['b']]\n[workload]\n[[variant]]\nname = 'near'\n\
         workload = { message = 8 }\n[[variant]]\nname = 'far'\n[[job]]\nname = 'other'\n\
         sites = [['a'], ['b']]\nvariants = ['far']\n[sweep]",
    );
    let experiment = Experiment::parse("x.toml".as_ref(), &text).unwrap().form(false);
    let names: Vec<&str> = experiment.variants.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names.len(), 2 * 2 * 2);
    assert_eq!(names[0], "near.bytes-70.delay-1ms.loss-0.rate-9");
    assert_eq!(names[7], "far.bytes-70.delay-10ms.loss-0.5.rate-9");
    let last = &experiment.variants[7];
    assert_eq!((last.base().as_str(), last.circuits.rate), ("far", Some(9)));
    assert_eq!(last.circuits.delay.as_ref().unwrap().as_str(), "10ms");
    assert_eq!(experiment.workload(Some(7))["bytes"].as_integer(), Some(70));
    assert_eq!(experiment.workload(Some(0))["message"].as_integer(), Some(8));
    assert_eq!(experiment.jobs(Some(&last.name)).count(), 1, "a job names the file's variant");
    assert_eq!(experiment.jobs(Some(&experiment.variants[0].name)).count(), 0);
    let alone = GOOD.replace("[4, 8]", "[4]\ndelay = ['1 ms', '2ms']");
    let alone = Experiment::parse("x.toml".as_ref(), &alone).unwrap().form(true);
    let names: Vec<&str> = alone.variants.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["delay-1ms", "delay-2ms"]);
    let long = text.replace("'near'", "'a-variant-with-a-name-of-many-letters'");
    let error = Experiment::parse("x.toml".as_ref(), &long).unwrap_err().to_string();
    assert!(error.contains("use 1 to 63 letters") && error.contains(", line "), "{error}");
}

/// Times of other messages are not compared with published ones; loads are.
#[test]
fn the_quick_form_with_other_bytes_has_no_published_times() {
    let measured = |bytes: &str, quantity: &str| {
        let text = format!(
            "name = 'x'\ntitle = ''\nquestion = ''\ntopologies = ['a.clab.yml']
             dataplane = [{{policy = 'kernel'}}]\nworkload = {{ bytes = 1000 }}
             [traffic]\nsites = [['a'], ['b']]\n[quick]\nworkload = {{ {bytes} }}
             [[published]]\nwhat = ''\nvalue = '5 s'\nsource = ''
             measured = {{ dataplane = 'kernel', tier = 'leaf', quantity = '{quantity}' }}"
        );
        let experiment = Experiment::parse("x.toml".as_ref(), &text).unwrap();
        [false, true].map(|quick| experiment.clone().form(quick).published[0].measured.is_some())
    };
    assert_eq!(measured("bytes = 10", "completion"), [true, false]);
    assert_eq!(measured("bytes = 10", "mmr"), [true, true]);
    assert_eq!(measured("iterations = 1", "completion"), [true, true]);
}
