//! The reference pages that are generated from this crate. `VTEPD_UPDATE_DOCS=1 cargo test -p
//! control --test reference` writes them.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use control::{Event, KernelOnlyReason};

const HEAD: &str = "\
# What stays with the kernel

vtepd takes over a VNI only where it forwards exactly as kernel VXLAN would. Every other VNI stays
in the `kernel` datapath: kernel VXLAN forwards it. vtepd checks the reason again whenever something
changes, and takes a VNI over as soon as no reason is left.

`vtepctl status`, `vtepctl vni` and `vtepd --dry-run` show the slug and a sentence with the details.
The metric `vtepd_left_to_kernel` has the slug as its label `reason`.

*Source ports* says who chooses the outer UDP source port of these VNIs: vtepd by the VNI's policy,
or the kernel by its own hash.

This page is generated from the code (`crates/control/src/slug.rs`).

| slug | reason | source ports |
|---|---|---|
";

#[test]
fn the_page_of_reasons_is_up_to_date() {
    let mut page = HEAD.to_owned();
    for (slug, sentence) in KernelOnlyReason::ALL {
        let ports = if KernelOnlyReason::UNTOUCHED.contains(slug) { "kernel" } else { "vtepd" };
        writeln!(page, "| `{slug}` | {sentence} | {ports} |").unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/left-to-kernel.md");
    if std::env::var_os("VTEPD_UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &page).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page,
        "docs/reference/left-to-kernel.md is out of date: see the head of this test file"
    );
}

const EVENTS: &str = "\
# Events

`vtepctl events` shows what happened, `vtepctl events -f` follows. Events are numbered from 1
without gaps. The last 8,192 are remembered. A reader that is too slow gets one event of kind `lost`
with the number of events that it missed.

This page is generated from the code (`crates/control/src/events.rs`).

| kind | when |
|---|---|
";

#[test]
fn the_reference_of_events_is_up_to_date() {
    let mut page = EVENTS.to_owned();
    for (kind, when) in Event::KINDS {
        writeln!(page, "| `{kind}` | {when} |").unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/events.md");
    if std::env::var_os("VTEPD_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page,
        "docs/reference/events.md is out of date: see the head of this test file"
    );
}

/// The table and the function `kind` have the same kinds of events.
#[test]
fn the_table_of_events_has_every_kind() {
    let source = include_str!("../src/events.rs");
    let (_, function) = source.split_once("pub const fn kind(").unwrap();
    let (function, _) = function.split_once("\n    }\n").unwrap();
    let named: BTreeSet<&str> = function.split('"').skip(1).step_by(2).collect();
    let listed: BTreeSet<&str> = Event::KINDS.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(named, listed);
}

#[test]
fn slugs_are_unique_and_those_that_are_named_exist() {
    let slugs: BTreeSet<&str> = KernelOnlyReason::ALL.iter().map(|(slug, _)| *slug).collect();
    assert_eq!(slugs.len(), KernelOnlyReason::ALL.len());
    for slug in KernelOnlyReason::UNTOUCHED {
        assert!(slugs.contains(slug), "{slug}");
    }
}
