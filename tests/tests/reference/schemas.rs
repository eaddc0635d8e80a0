//! The code that is generated from `proto/`. protox compiles the schemas, so no `protoc` is needed.

use std::path::Path;

use prost::Message as _;

use crate::compare;

fn schemas() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto")
}

#[test]
fn the_code_of_the_api_is_up_to_date() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let descriptors = protox::compile(["vtepd/v1/vtepd.proto"], [schemas()]).unwrap();
    // The descriptor set for reflection.
    compare("crates/api/src/generated/descriptors.bin", descriptors.encode_to_vec());
    tonic_prost_build::configure()
        // JSON uses the schema's field names.
        .type_attribute(".", "#[derive(serde::Serialize)]")
        // A seed has 64 bits, but readers such as jq keep only 53 of a number.
        .field_attribute(".vtepd.v1.Policy.seed", "#[serde(serialize_with = \"crate::as_text\")]")
        .out_dir(out)
        .compile_fds(descriptors)
        .unwrap();
    let code = std::fs::read(out.join("vtepd.v1.rs")).unwrap();
    compare("crates/api/src/generated/vtepd.v1.rs", code);
}

#[test]
fn the_code_of_fpm_is_up_to_date() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let descriptors = protox::compile(["fpm.proto"], [schemas()]).unwrap();
    prost_build::Config::new().out_dir(out).compile_fds(descriptors).unwrap();
    compare("crates/fpm/src/generated/fpm.rs", std::fs::read(out.join("fpm.rs")).unwrap());
}
