//! The tables that reference pages are generated from (`tests/tests/reference`) are complete.

#![cfg(test)]

use std::collections::BTreeSet;

use control::{Event, KernelOnlyReason};

/// The table and the function `kind` have the same kinds of events.
#[test]
fn the_table_of_events_has_every_kind() {
    let source = include_str!("../src/events/event.rs");
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
