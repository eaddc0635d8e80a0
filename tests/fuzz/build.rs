//! Compiles the BPF programs with clang, for the targets that run them.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap());
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let architecture = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap();
    println!("cargo::rerun-if-changed=../../crates/bpf/programs");
    println!("cargo::rerun-if-env-changed=CLANG");
    for name in ["steering", "chosen_port_test", "offload_test"] {
        let status = Command::new(&clang)
            .args(["-target", "bpf", "-O2", "-g", "-mcpu=v3", "-fno-strict-aliasing", "-c"])
            .arg(format!("../../crates/bpf/programs/{name}.bpf.c"))
            .arg("-o")
            .arg(out.join(format!("{name}.bpf.o")))
            .arg(format!("-I/usr/include/{architecture}-linux-gnu"))
            .status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "{clang} could not compile {name}.bpf.c"
        );
    }
}
