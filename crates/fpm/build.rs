//! Generates the protobuf types. protox compiles the schema, so no `protoc` is needed.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let schemas = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", schemas.join("fpm.proto").display());
    let descriptors = protox::compile(["fpm.proto"], [schemas])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
