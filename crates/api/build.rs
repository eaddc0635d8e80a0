//! Generates messages, server and client. protox compiles the schema, so no `protoc` is needed.

use std::error::Error;
use std::path::Path;

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    let schemas = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", schemas.join("vtepd").display());
    let descriptors = protox::compile(["vtepd/v1/vtepd.proto"], [schemas])?;
    // The descriptor set for reflection.
    let file = Path::new(&std::env::var("OUT_DIR")?).join("descriptors.bin");
    std::fs::write(file, descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // JSON uses the schema's field names.
        .type_attribute(".", "#[derive(serde::Serialize)]")
        // A seed has 64 bits, but readers such as jq keep only 53 of a number.
        .field_attribute(".vtepd.v1.Policy.seed", "#[serde(serialize_with = \"crate::as_text\")]")
        .compile_fds(descriptors)?;
    Ok(())
}
