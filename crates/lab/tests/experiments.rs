//! The JSON Schema of experiment files says what the parser says.

#![cfg(test)]

use std::fs;
use std::path::{Path, PathBuf};

use experiment::Experiment;
use experiment::file::schema;

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
