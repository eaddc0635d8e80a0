//! Generates `docs/reference/configuration.md` from the structs of the file:
//! `VTEPD_UPDATE_DOCS=1 cargo test -p vtepd reference` writes it.

use std::fmt::Write as _;

use schemars::schema_for;
use serde_json::{Map, Value};

use super::*;

const HEAD: &str = "\
# Configuration

vtepd reads a TOML file: `vtepd --config FILE`. Every key has a default, and an unknown key is an
error. A [flag](cli.md) wins over the file. vtepd reads the file again on SIGHUP and logs what
changed.

This page is generated from the code (`crates/configuration/src/file.rs`).

## Example

";

const EXAMPLE: &str = r#"[takeover]
vnis = [10010, 10020]
stall-limit-ms = 500

[entropy]
policy = "qp-hash"
source-ports = "49152-65535"

[vni.10020]
policy = "qp-bins"
bins = 8

[fpm]
listen = "127.0.0.1:2620"

[metrics]
listen = "127.0.0.1:9472"
"#;

/// The definition that a schema refers to, or the schema itself.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let among =
        schema["anyOf"].as_array().and_then(|options| options.iter().find(|o| o["type"] != "null"));
    let schema = among.unwrap_or(schema);
    let name = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
    name.map_or(schema, |name| &root["$defs"][name])
}

/// A value's type in a word, or the words that it may be.
fn kind(root: &Value, schema: &Value) -> String {
    let schema = resolve(root, schema);
    let words: Vec<&Value> = match (schema["enum"].as_array(), schema["oneOf"].as_array()) {
        (Some(words), _) => words.iter().collect(),
        (None, Some(options)) => options.iter().map(|option| &option["const"]).collect(),
        (None, None) => Vec::new(),
    };
    if !words.is_empty() {
        return words.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    }
    if let Some(options) = schema["anyOf"].as_array() {
        return options.iter().map(|option| kind(root, option)).collect::<Vec<_>>().join(" or ");
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().find(|kind| *kind != "null").and_then(Value::as_str),
        kind => kind.as_str(),
    };
    match kind {
        Some("array") => format!("list of {}", kind_of_items(root, schema)),
        Some("object") => "table".to_owned(),
        Some(kind) => kind.to_owned(),
        None => panic!("no type: {schema}"),
    }
}

fn kind_of_items(root: &Value, schema: &Value) -> String {
    match kind(root, &schema["items"]).as_str() {
        "string" => "strings".to_owned(),
        "integer" => "integers".to_owned(),
        "table" => "tables".to_owned(),
        other => other.to_owned(),
    }
}

fn sentence(schema: &Value) -> String {
    let text =
        schema["description"].as_str().unwrap_or_else(|| panic!("without a sentence: {schema}"));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The text in lines of at most 100 columns.
fn wrap(text: &str) -> String {
    let (mut wrapped, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > 100 {
            wrapped.push('\n');
            column = 0;
        } else if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += width;
    }
    wrapped
}

fn table(
    page: &mut String,
    root: &Value,
    heading: &str,
    text: &str,
    properties: &Map<String, Value>,
) {
    let text = wrap(text);
    write!(page, "\n## {heading}\n\n{text}\n\n| key | value | meaning |\n|---|---|---|\n").unwrap();
    for (key, schema) in properties {
        writeln!(page, "| `{key}` | {} | {} |", kind(root, schema), sentence(schema)).unwrap();
    }
}

#[test]
fn the_reference_of_the_configuration_is_up_to_date() {
    toml::from_str::<File>(EXAMPLE).unwrap();
    let root = schema_for!(File).to_value();
    let mut page = format!("{HEAD}```toml\n{EXAMPLE}```\n");
    for (section, schema) in root["properties"].as_object().unwrap() {
        let (heading, inner) = match section.as_str() {
            "vni" => ("`[vni.N]`".to_owned(), &schema["additionalProperties"]),
            "standalone" => ("`[[standalone]]`".to_owned(), &schema["items"]),
            _ => (format!("`[{section}]`"), schema),
        };
        let properties = resolve(&root, inner)["properties"].as_object().unwrap();
        table(&mut page, &root, &heading, &sentence(schema), properties);
        if let Some(ports) = properties.get("ports").filter(|_| section == "standalone") {
            let ports = resolve(&root, &ports["items"])["properties"].as_object().unwrap();
            table(&mut page, &root, "`ports` of a `[[standalone]]`", "One access port.", ports);
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/configuration.md");
    if std::env::var_os("VTEPD_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == page, "docs/reference/configuration.md is out of date: see {}", file!());
}
