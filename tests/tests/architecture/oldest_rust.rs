//! The promise of `rust-version` in `Cargo.toml`: no dependency needs a newer Rust, and every place
//! that names the version names this one.

use std::process::Command;

use serde_json::Value;

use super::{manifest, root};

/// The places that name the oldest Rust, each with the text before it.
const PLACES: [(&str, &str); 4] = [
    ("README.md", "[Rust](https://rustup.rs) "),
    ("docs/guide/install.md", "[Rust](https://rustup.rs) "),
    ("deploy/prepare", "Rust is missing ("),
    ("tests/run", "Rust is missing ("),
];

fn promised() -> String {
    manifest(&root())["workspace"]["package"]["rust-version"].as_str().unwrap().to_owned()
}

/// `1.88` and `1.88.0` are the same.
fn version(text: &str) -> Vec<u32> {
    let mut numbers: Vec<u32> = text.split('.').map(|number| number.parse().unwrap()).collect();
    numbers.resize(3, 0);
    numbers
}

/// What cargo knows of the packages that this machine builds.
#[test]
fn no_dependency_needs_a_newer_rust_than_is_promised() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--offline", "--format-version", "1"])
        .args(["--filter-platform", &format!("{}-unknown-linux-gnu", std::env::consts::ARCH)])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 200, "{}", packages.len());
    let promised = version(&promised());
    for package in packages {
        let needs = package["rust_version"].as_str();
        assert!(
            needs.is_none_or(|needs| version(needs) <= promised),
            "{} {} needs Rust {needs:?}",
            package["name"],
            package["version"]
        );
    }
}

#[test]
fn every_place_names_the_rust_that_is_promised() {
    let promised = promised();
    for (path, before) in PLACES {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let found: Vec<&str> = text.split(before).skip(1).collect();
        assert!(!found.is_empty(), "{path}: '{before}'");
        for behind in found {
            assert!(behind.starts_with(&promised), "{path}: {}", &behind[..4]);
        }
    }
}
