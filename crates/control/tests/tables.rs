//! The tables that reference pages are generated from (`tests/tests/reference`) are complete.

#![cfg(test)]

use std::collections::BTreeSet;

use control::{Event, KernelOnlyReason};

#[test]
fn kinds_of_events_are_unique() {
    let kinds: BTreeSet<&str> = Event::KINDS.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds.len(), Event::KINDS.len());
}

#[test]
fn slugs_are_unique_and_those_that_are_named_exist() {
    let slugs: BTreeSet<&str> = KernelOnlyReason::ALL.iter().map(|(slug, _)| *slug).collect();
    assert_eq!(slugs.len(), KernelOnlyReason::ALL.len());
    for slug in KernelOnlyReason::UNTOUCHED {
        assert!(slugs.contains(slug), "{slug}");
    }
}
