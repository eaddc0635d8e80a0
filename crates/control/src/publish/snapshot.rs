//! Builds the snapshot from the previous one and what changed since.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use tables::{SnapshotBuilder, Vtep};

use crate::publish::decisions::{Configuration, Decisions};
use crate::publish::update::Update;
use crate::stores::Stores;
use crate::stores::vteps::Known;

/// Builds the next snapshot of `update`.
pub(crate) fn build(
    update: &mut Update,
    stores: &Stores,
    configuration: Configuration<'_>,
    decisions: &mut Decisions,
) {
    let before = Arc::clone(&update.snapshot);
    let mut snapshot = SnapshotBuilder::after(&before);
    for (index, table) in decisions.take_changed_tables() {
        match table {
            Some(table) => snapshot.vni(table),
            None => snapshot.remove_vni(index),
        }
    }
    if let Some(vnis) = decisions.take_changed_kernel_vnis() {
        snapshot.kernel_vnis(vnis);
    }
    // The kernel looks up the route to a source, which may not be one for broadcast, as soon as there
    // were other rules than the default ones (`fib_validate_source()`).
    let (none, had_rules) = (BTreeSet::new(), stores.policies.had_other_rules());
    let broadcasts = if had_rules { stores.addresses.broadcasts() } else { &none };
    let refuses_own = !configuration.namespace.defaults.accept_local;
    let is_refused =
        |source: &IpAddr| source.is_ipv4() && refuses_own || broadcasts.contains(source);
    snapshot.own(stores.addresses.own().union(broadcasts).copied().filter(is_refused));
    // VTEPs that are or were reached by a default route only.
    let mut news = Vec::new();
    for (index, known) in stores.vteps.entries() {
        let published = before.vtep(index);
        let was =
            || published.filter(|vtep| vtep.paths.by_default()).map(|vtep| (vtep.address, false));
        match known.filter(|known| known.is_taken()) {
            Some(Known { address, paths, .. }) => {
                let same = published.is_some_and(|vtep| {
                    vtep.address == *address
                        && paths.as_ref().is_some_and(|paths| Arc::ptr_eq(paths, &vtep.paths))
                });
                if !same {
                    let paths = paths.clone().unwrap_or_default();
                    let is = paths.by_default().then_some((*address, true));
                    news.extend(was().into_iter().chain(is));
                    snapshot.vtep(index, Vtep { address: *address, paths });
                }
            }
            None if published.is_some() => {
                news.extend(was());
                snapshot.remove_vtep(index);
            }
            None => {}
        }
    }
    by_default(&mut update.by_default, &news);
    update.snapshot = Arc::new(snapshot.build());
}

/// Updates the set of VTEPs that only a default route leads to: first removals, then additions.
fn by_default(known: &mut Arc<BTreeSet<IpAddr>>, news: &[(IpAddr, bool)]) {
    if news.is_empty() {
        return;
    }
    let mut now = BTreeSet::clone(known);
    for (vtep, _) in news.iter().filter(|(_, is)| !is) {
        now.remove(vtep);
    }
    now.extend(news.iter().filter(|(_, is)| *is).map(|(vtep, _)| *vtep));
    if now != **known {
        *known = Arc::new(now);
    }
}
