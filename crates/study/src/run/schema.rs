//! The JSON Schema of experiment files, with the keys of workloads.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

use super::program::Program;
use traffic::workload::Workload;

/// Keys that a workload does not have in an experiment file, and those that it does not have in a
/// `[[job]]`.
const NOT_OF_WORKLOAD: [&str; 1] = ["queue-pairs"];
const NOT_OF_JOB: [&str; 2] = ["iterations", "warm-up"];

/// The JSON Schema of experiment files.
#[must_use]
pub fn schema() -> Value {
    let mut schema = experiment::file::schema();
    let mut generator = schemars::generate::SchemaSettings::draft2020_12().into_generator();
    let (workload, program) = (of::<Workload>(&mut generator), of::<Program>(&mut generator));
    let mut definitions = generator.take_definitions(true);
    definitions.insert("JobWorkload".into(), without(&workload, &NOT_OF_JOB));
    definitions.insert("Workload".into(), without(&workload, &NOT_OF_WORKLOAD));
    definitions.insert("Program".into(), program);
    let refer = |name: &str| json!({ "$ref": format!("#/$defs/{name}") });
    let either = json!([refer("Workload"), refer("Program")]);
    let whole = json!({ "$ref": "#/$defs/Program", "required": ["command"] });
    for (place, of) in [
        ("/properties/workload", json!([refer("Workload"), whole])),
        ("/$defs/Variant/properties/workload", either.clone()),
        ("/$defs/Quick/properties/workload", either),
        ("/$defs/Job/properties/workload", json!([refer("JobWorkload")])),
    ] {
        if let Some(property) = schema.pointer_mut(place) {
            let description = property.get("description").cloned().unwrap_or_default();
            *property = json!({ "description": description, "anyOf": of });
        }
    }
    if let Some(Value::Object(all)) = schema.get_mut("$defs") {
        all.extend(definitions);
    }
    schema
}

/// The schema of a table.
fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    T::json_schema(generator).to_value()
}

/// The schema of a table without some of its keys.
fn without(schema: &Value, keys: &[&str]) -> Value {
    let mut schema = schema.clone();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.retain(|name, _| !keys.contains(&name.as_str()));
    }
    schema
}
