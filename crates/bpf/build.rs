//! Compiles the steering programs with clang.
#![allow(missing_docs)]

use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), String> {
    // The last two are for tests.
    ["steering", "route_lookup", "probe_filter", "chosen_port_test", "offload_test"]
        .into_iter()
        .try_for_each(compile)
}

/// Compiles one object.
fn compile(name: &str) -> Result<(), String> {
    let source = &format!("programs/{name}.bpf.c");
    println!("cargo::rerun-if-changed=programs");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = PathBuf::from(std::env::var("OUT_DIR").map_err(|e| e.to_string())?)
        .join(format!("{name}.bpf.o"));
    let architecture = std::env::var("CARGO_CFG_TARGET_ARCH").map_err(|e| e.to_string())?;
    // Without absolute paths, the object is the same wherever it is built.
    let here = std::env::current_dir().map_err(|e| e.to_string())?;
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror", "-mcpu=v3", "-c", source, "-o"])
        .arg(&out)
        // Headers are copied in halves of words (`read_front()`).
        .arg("-fno-strict-aliasing")
        .arg(format!("-ffile-prefix-map={}=.", here.display()))
        // Debian has <asm/types.h> in a directory for each architecture.
        .arg(format!("-I/usr/include/{architecture}-linux-gnu"))
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!(
            "{clang} could not compile {source} ({status}); are clang and linux-libc-dev installed?"
        )),
        Err(error) => Err(format!(
            "{clang} could not be started ({error}); it compiles the steering programs: apt-get install clang linux-libc-dev, \
             or name another one in the environment variable CLANG"
        )),
    }
}
