//! The JSON Schema of experiment files says what the parser says.

#![cfg(test)]

use std::fs;
use std::path::{Path, PathBuf};

use experiment::Experiment;
use study::run::{self, schema};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/experiments")
}

fn shipped() -> Vec<(PathBuf, String)> {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
    files.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

fn json(text: &str) -> serde_json::Value {
    serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap()).unwrap()
}

#[test]
fn schema_and_parser_accept_what_is_shipped() {
    let schema = jsonschema::validator_for(&schema()).unwrap();
    let all = shipped();
    assert!(all.len() >= 6);
    for (path, text) in all {
        Experiment::parse(&path, &text).unwrap_or_else(|error| panic!("{error}"));
        let errors: Vec<String> =
            schema.iter_errors(&json(&text)).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{}: {errors:?}", path.display());
    }
}

#[test]
fn schema_and_parser_refuse_the_same() {
    let schema = jsonschema::validator_for(&schema()).unwrap();
    let path = folder().join("scaleacross-failover.toml");
    let good = fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("title =", "titel ="),
        ("kind = \"silent\"", "kind = \"fire\""),
        ("kind = \"silent\"", "kind = \"silent\"\nat = \"soon\""),
        ("kind = \"silent\"", "kind = \"silent\"\nlink = \"spine1\""),
        ("kind = \"silent\"", "kind = \"silent\"\nlasts = \"1s\""),
        ("rate = 10000", "rate = 0"),
        ("rate = 10000", "rate = \"10k\""),
        ("queue-pairs = [32]", "queue-pairs = [0]"),
        ("queue-pairs = [32]", "queue-pairs = [1001]"),
        ("precision = 0.2", "precision = 1.0"),
        ("min = 3", "min = 0"),
        ("name = \"silent-bfd-10ms\"", "name = \"silent bfd\""),
        ("[traffic]", "[circuits]\ndelay = \"5\"\n[traffic]"),
        ("[traffic]", "[circuits]\nloss = 101\n[traffic]"),
        ("[traffic]", "[[circuit]]\nlink = \"a:b\"\n[traffic]"),
        ("[traffic]", "[[circuit]]\nlink = \"a:b\"\ndirection = \"up\"\ncircuits = {}\n[traffic]"),
        ("quantity = \"outage\"", "quantity = \"outrage\""),
    ] {
        assert!(good.contains(from), "{from}");
        let bad = good.replacen(from, to, 1);
        let error = Experiment::parse(&path, &bad).map(drop).unwrap_err().to_string();
        assert!(error.contains(", line "), "{error}");
        assert!(!schema.is_valid(&json(&bad)), "the schema accepts {to}");
    }
}

/// Whether `lab run` accepts a file, with its error.
fn parse(text: &str) -> Result<(), String> {
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    let own = format!("{}/../", folder().display());
    fs::write(file.path(), text.replace("\"../", &format!("\"{own}"))).unwrap();
    run::read(file.path(), false).map(drop).map_err(|error| error.to_string())
}

#[test]
fn schema_and_parser_agree_about_workloads() {
    let schema = jsonschema::validator_for(&schema()).unwrap();
    let read = |name: &str| fs::read_to_string(folder().join(name)).unwrap();
    let (jobs, program) = (read("neighbours.toml"), read("mpi.toml"));
    let variant = |keys: &str| format!("name = \"beside\"\nworkload = {{ {keys} }}");
    let quick = |keys: &str| format!("[quick.workload]\n{keys}\n[quick.sweep]");
    let same = |keys: &str| format!("iterations = 3\n{keys}");
    let compute = |keys: &str| same(&format!("compute = {{ {keys} }}"));
    for (good, from, to, valid) in [
        (&jobs, "iterations = 3", same("skew = 1.5"), true),
        (&jobs, "iterations = 3", same("iteration = 3"), false),
        (&jobs, "iterations = 3", same("queue-pairs = 4"), false),
        (&jobs, "iterations = 3", same("source-port = \"soft-roce\""), false),
        (&jobs, "iterations = 3", same("seed = 1"), false),
        (&jobs, "iterations = 3", same("on = \"first\""), false),
        (&jobs, "iterations = 3", same("skew = 11"), false),
        (&jobs, "iterations = 3", same("dealing = \"split\""), true),
        (&jobs, "iterations = 3", same("dealing = \"divide\""), false),
        (&jobs, "iterations = 3", "iterations = 0".into(), false),
        (&jobs, "iterations = 3", compute("distribution = \"fixed\", seconds = 1"), true),
        (&jobs, "iterations = 3", compute("distribution = \"none\""), true),
        (&jobs, "iterations = 3", compute("distribution = \"fixed\", time = 1"), false),
        (&jobs, "iterations = 3", compute("distribution = \"fixed\", seconds = 1, x = 1"), false),
        (&jobs, "timeout =", "mtu = 4096\ntimeout =".into(), true),
        (&jobs, "timeout =", "time-out =".into(), false),
        (&jobs, "timeout =", "dcqcn = {}\nrate = 1000000\ntimeout =".into(), true),
        (
            &jobs,
            "timeout =",
            "order = \"place\"\nnscc = {}\nrate = 1000000\ntimeout =".into(),
            true,
        ),
        (&jobs, "timeout =", "order = \"keep\"\ntimeout =".into(), false),
        (&jobs, "timeout =", "dcqcn = { h = 1 }\nrate = 1000000\ntimeout =".into(), false),
        (&jobs, "name = \"beside\"", variant("bytes = 5000"), true),
        (&jobs, "name = \"beside\"", variant("byte = 5000"), false),
        (&jobs, "name = \"beside\"", variant("transport = { mtu = 512 }"), true),
        (&jobs, "name = \"beside\"", variant("transport = { mtus = 512 }"), false),
        (&jobs, "[quick.sweep]", quick("warm-up = 1"), true),
        (&jobs, "[quick.sweep]", quick("warmup = 1"), false),
        (&jobs, "[job.workload]", "[job.workload]\nqueue-pairs = 4".into(), true),
        (&jobs, "[job.workload]", "[job.workload]\nwarm-up = 1".into(), false),
        (&jobs, "[job.workload]", "[job.workload]\ncommand = [\"a\"]".into(), false),
        (&program, "on = \"first\"", "on = \"all\"\nmessage = 1000".into(), true),
        (&program, "on = \"first\"", "on = \"last\"".into(), false),
        (&program, "on = \"first\"", "collective = \"all-gather\"".into(), false),
        (&program, "on = \"first\"", "transport = {}".into(), false),
        (&program, "on = \"first\"", "iterations = 2".into(), false),
        (&program, "warm-up = ", "warmup = ".into(), false),
        (&program, "command = ", "command = \"a\" # ".into(), false),
    ] {
        assert!(good.contains(from), "{from}");
        let text = good.replacen(from, &to, 1);
        let parsed = parse(&text);
        assert_eq!(parsed.is_ok(), valid, "{to}: {parsed:?}");
        let errors: Vec<String> =
            schema.iter_errors(&json(&text)).map(|error| error.to_string()).collect();
        assert_eq!(errors.is_empty(), valid, "{to}: {errors:?}");
    }
}

/// `deploy/experiments/schema.json` is for editors.
#[test]
fn the_shipped_schema_is_up_to_date() {
    let file = folder().join("schema.json");
    let mut text = serde_json::to_string_pretty(&schema()).unwrap();
    text.push('\n');
    if std::env::var_os("VTEPD_UPDATE_DOCS").is_some() {
        fs::write(&file, text).unwrap();
        return;
    }
    let found = fs::read_to_string(&file).unwrap();
    assert_eq!(found, text, "run VTEPD_UPDATE_DOCS=1 cargo test -p lab --test experiments");
}

const GUIDE: &str = include_str!("../../../docs/guide/experiments.md");

/// The examples of the guide that begin with this line.
fn examples(first: &str) -> Vec<String> {
    let blocks = GUIDE.split("\n```\n").flat_map(|text| text.split("\n```toml\n"));
    blocks.filter(|block| block.starts_with(first)).map(str::to_owned).collect()
}

#[test]
fn the_experiments_of_the_guide_are_valid() {
    let all = examples("name = ");
    assert_eq!(all.len(), 2);
    for text in all {
        let topology = folder().join("../containerlab/scaleacross.clab.yml");
        let topology = format!("[\"{}\"]", topology.display());
        let text = text
            .replace("[\"fabric.clab.yml\"]", &topology)
            .replace("[\"scaleacross.clab.yml\"]", &topology);
        assert_eq!(parse(&text), Ok(()), "{text}");
    }
    let failures = &examples("[[failure]]")[0];
    let file = shipped().into_iter().find(|(path, _)| path.ends_with("scaleacross-qp.toml"));
    assert_eq!(parse(&format!("{}\n{failures}", file.unwrap().1)), Ok(()));
}

/// An iperf3 that reaches no server at first, and then ends with status 0, as that of Debian 12.
const IPERF3: &str = r#"#!/bin/sh
echo "$@" >>"$CALLS"
if [ "$(wc -l <"$CALLS")" -lt 3 ]; then
  echo '{"start": {}, "end": {}, "error": "unable to connect to server"}'
else
  echo '{"end": {"sum_received": {"seconds": 0.25}}}'
fi
"#;

#[test]
fn the_script_of_the_guide_waits_for_its_server() {
    use std::os::unix::fs::PermissionsExt as _;
    let [script] = examples("#!/bin/sh\n").try_into().unwrap();
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    for (name, text) in [("script", script.as_str()), ("iperf3", IPERF3)] {
        fs::write(place.join(name), text).unwrap();
        fs::set_permissions(place.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let run = |rank: &str| {
        let mut command = std::process::Command::new("timeout");
        command.args(["20", "./script"]).current_dir(place).env("CALLS", place.join("calls"));
        command.env("PATH", format!("{}:{}", place.display(), std::env::var("PATH").unwrap()));
        command.envs([
            ("LAB_RANK", rank),
            ("LAB_BYTES", "1000"),
            ("LAB_ADDRESSES", "10.0.0.1,10.0.0.2"),
        ]);
        let output = command.output().unwrap();
        let calls = fs::read_to_string(place.join("calls")).unwrap_or_default();
        let _ = fs::remove_file(place.join("calls"));
        (String::from_utf8(output.stdout).unwrap(), calls, output.status.success())
    };
    let client = run("0");
    let server = run("1");
    let call = "-J -n 1000 -c 10.0.0.2\n";
    assert_eq!(client, ("{\"seconds\":0.25}\n".to_owned(), call.repeat(3), true));
    assert_eq!((server.1.as_str(), server.2), ("-s\n", true));
}
