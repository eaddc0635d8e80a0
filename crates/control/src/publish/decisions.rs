//! The decisions about VNIs: which are taken over, in which index and with which table, and
//! which stay with the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tables::{Fdb, KernelVni, PortChoice, Tunnel, VniIndex, VniSource, VniTable};

use crate::eligibility::ineligible::{KernelOnlyReason, LeftToKernel};
use crate::eligibility::local_address::LocalAddresses;
use crate::eligibility::{Candidate, EligibilityCheck, VniConfig};
use crate::publish::ids::VniIndices;
use crate::publish::table::table;
use crate::settings::{Namespace, Settings};
use crate::stores::Stores;

/// The decision about a VNI.
#[derive(Debug)]
pub(crate) enum Decision {
    Taken { index: VniIndex, config: VniConfig, table: Arc<VniTable> },
    Left(LeftToKernel),
}

/// The configuration that decisions depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Configuration<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) namespace: &'a Namespace,
}

/// The current decisions, and what depends on nothing else.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    all: BTreeMap<VniSource, Decision>,
    /// Those that found no free index.
    waiting: BTreeSet<VniSource>,
    /// Source port policies for frames that the kernel encapsulates.
    choices: BTreeMap<u32, PortChoice>,
    /// The tables of those with placed queue pairs, by their netdevs.
    kernel: BTreeMap<u32, Arc<KernelVni>>,
    kernel_changed: bool,
    indices: VniIndices,
    pub(crate) locals: LocalAddresses,
    /// VniIndices whose tables changed since [`Decisions::take_changed_tables`].
    changed: BTreeSet<VniIndex>,
    /// Bridges of netdevs with new decisions since [`Decisions::take_changed_bridges`].
    bridges: BTreeSet<u32>,
}

impl Decisions {
    /// Whether this VNI is taken over.
    pub(crate) fn takes(&self, source: VniSource) -> bool {
        matches!(self.all.get(&source), Some(Decision::Taken { .. }))
    }

    /// VniIndex and configuration of a VNI that is taken over.
    pub(crate) fn taken(&self, source: VniSource) -> Option<(VniIndex, &VniConfig)> {
        match self.all.get(&source)? {
            Decision::Taken { index, config, .. } => Some((*index, config)),
            Decision::Left(_) => None,
        }
    }

    /// The tunnel settings of VNIs taken over, by source.
    pub(crate) fn tunnels(&self) -> impl Iterator<Item = (VniSource, &Tunnel)> {
        self.all.keys().filter_map(|source| Some((*source, &self.taken(*source)?.1.tunnel)))
    }

    /// All decisions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (VniSource, &Decision)> {
        self.all.iter().map(|(source, decision)| (*source, decision))
    }

    /// Source port policies for frames that the kernel encapsulates, by netdev.
    pub(crate) const fn choices(&self) -> &BTreeMap<u32, PortChoice> {
        &self.choices
    }

    /// Sets the local addresses that use the bypass, if this VNI is taken over.
    pub(crate) fn set_hosts(&mut self, source: VniSource, hosts: Fdb<u32>) {
        if let Some(Decision::Taken { index, table, .. }) = self.all.get_mut(&source)
            && !(table.hosts.is_empty() && hosts.is_empty())
        {
            Arc::make_mut(table).hosts = hosts;
            self.changed.insert(*index);
        }
    }

    /// The indices whose tables changed since the last call, with the tables that they have now.
    pub(crate) fn take_changed_tables(&mut self) -> BTreeMap<VniIndex, Option<Arc<VniTable>>> {
        let mut tables: BTreeMap<VniIndex, Option<Arc<VniTable>>> =
            std::mem::take(&mut self.changed).into_iter().map(|index| (index, None)).collect();
        if tables.is_empty() {
            return tables;
        }
        for decision in self.all.values() {
            if let Decision::Taken { index, table, .. } = decision
                && let Some(current) = tables.get_mut(index)
            {
                *current = Some(Arc::clone(table));
            }
        }
        tables
    }

    /// The VNIs whose queue pairs are placed while the kernel encapsulates their frames, by their
    /// netdevs; `None` if they are the same as at the last call.
    pub(crate) fn take_changed_kernel_vnis(&mut self) -> Option<BTreeMap<u32, Arc<KernelVni>>> {
        std::mem::take(&mut self.kernel_changed).then(|| self.kernel.clone())
    }

    /// The bridges of netdevs with new decisions since the last call.
    pub(crate) fn take_changed_bridges(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.bridges)
    }

    /// Decides again about these VNIs, and rebuilds the tables of VNIs taken over whose entries
    /// or configuration changed. Returns whether any decision or source port policy changed.
    pub(crate) fn decide(
        &mut self,
        stores: &mut Stores,
        configuration: Configuration<'_>,
        sources: &BTreeSet<VniSource>,
        entries_changed: &BTreeSet<VniSource>,
    ) -> bool {
        let mut changed = false;
        let mut taken = Vec::new();
        let mut choices = Vec::new();
        let uplinks = named_uplinks(stores);
        // VniIndices are freed before new ones are allocated.
        for &source in sources {
            let local_is_present = self.locals.has_that_of(stores, source);
            let (config, choice) = check(stores, configuration, source, local_is_present, &uplinks);
            choices.extend(source.netdev().map(|ifindex| (ifindex, choice)));
            match config {
                Some(Ok(config)) => taken.push((source, config)),
                Some(Err(left)) => changed |= self.leave(stores, left),
                None => changed |= self.remove(stores, source),
            }
        }
        for (source, config) in taken {
            changed |= self.take(stores, source, config, entries_changed.contains(&source));
        }
        for (ifindex, choice) in choices {
            self.pin(stores, ifindex, choice.as_ref(), entries_changed);
            changed |= self.choose(ifindex, choice);
        }
        self.take_waiting(stores, configuration) | changed
    }

    fn mark_bridge(&mut self, stores: &Stores, source: VniSource) {
        self.bridges.extend(stores.bridge_of(source));
    }

    fn remove(&mut self, stores: &mut Stores, source: VniSource) -> bool {
        self.waiting.remove(&source);
        self.mark_bridge(stores, source);
        if let Some(overlay) = stores.overlays.get_mut(&source) {
            overlay.take(&mut stores.vteps, false);
        }
        match self.all.remove(&source) {
            Some(Decision::Taken { index, .. }) => {
                self.indices.give_back(index);
                self.changed.insert(index);
                true
            }
            Some(Decision::Left(_)) => true,
            None => false,
        }
    }

    fn leave(&mut self, stores: &mut Stores, left: LeftToKernel) -> bool {
        match self.all.get(&left.source) {
            Some(Decision::Left(before)) if *before == left => return false,
            _ => {}
        }
        self.remove(stores, left.source);
        if left.reason == KernelOnlyReason::SlotsExhausted {
            self.waiting.insert(left.source);
        }
        self.all.insert(left.source, Decision::Left(left));
        true
    }

    fn take(
        &mut self,
        stores: &mut Stores,
        source: VniSource,
        config: VniConfig,
        entries_changed: bool,
    ) -> bool {
        if !stores.overlays.contains_key(&source) {
            return false;
        }
        let held = match self.all.get(&source) {
            Some(Decision::Taken { index, config: before, table }) => {
                if *before == config && !entries_changed {
                    return false;
                }
                Some((*index, *before != config, table.hosts.clone()))
            }
            _ => None,
        };
        let (index, changed, hosts) = match held {
            Some(held) => held,
            None => match self.indices.take() {
                Some(index) => (index, true, Fdb::default()),
                None => {
                    let reason = KernelOnlyReason::SlotsExhausted;
                    let (name, vni) = (config.netdev, config.tunnel.vni.get());
                    return self.leave(stores, LeftToKernel { source, name, vni, reason });
                }
            },
        };
        let Some(overlay) = stores.overlays.get_mut(&source) else { return false };
        overlay.take(&mut stores.vteps, true);
        let table = Arc::new(table(index, source, &config, overlay, hosts));
        if changed {
            self.mark_bridge(stores, source);
        }
        self.changed.insert(index);
        self.waiting.remove(&source);
        self.all.insert(source, Decision::Taken { index, config, table });
        changed
    }

    /// Sets the source port policy of a netdev for frames that the kernel encapsulates. Returns
    /// whether it changed.
    fn choose(&mut self, ifindex: u32, choice: Option<PortChoice>) -> bool {
        if self.choices.get(&ifindex) == choice.as_ref() {
            return false;
        }
        match choice {
            Some(choice) => self.choices.insert(ifindex, choice),
            None => self.choices.remove(&ifindex),
        };
        true
    }

    /// Updates the table of a netdev whose queue pairs are placed while the kernel encapsulates their
    /// frames. To be called before [`Self::choose`].
    fn pin(
        &mut self,
        stores: &mut Stores,
        ifindex: u32,
        choice: Option<&PortChoice>,
        entries_changed: &BTreeSet<VniSource>,
    ) {
        let source = VniSource::Netdev(ifindex);
        let pinned = choice.and_then(|choice| Some((choice, choice.pins.clone()?)));
        let overlay = stores.overlays.get_mut(&source);
        let (Some((choice, tunnel)), Some(overlay)) = (pinned, overlay) else {
            if self.kernel.remove(&ifindex).is_some() {
                self.kernel_changed = true;
                let overlay = stores.overlays.get_mut(&source).filter(|_| !self.takes(source));
                overlay.into_iter().for_each(|overlay| overlay.take(&mut stores.vteps, false));
            }
            return;
        };
        // Its VTEPs are probed.
        overlay.take(&mut stores.vteps, true);
        let is_same = self.choices.get(&ifindex) == Some(choice)
            && self.kernel.contains_key(&ifindex)
            && !entries_changed.contains(&source);
        if is_same {
            return;
        }
        let (netdev, entropy) = (choice.name.clone(), choice.entropy);
        let (route_per_frame, fdb) = (choice.route_per_frame, overlay.fdb.clone());
        let table = KernelVni { netdev, tunnel, entropy, route_per_frame, fdb };
        self.kernel.insert(ifindex, Arc::new(table));
        self.kernel_changed = true;
    }

    /// Decides again about VNIs that found no index, if one is free now.
    fn take_waiting(&mut self, stores: &mut Stores, configuration: Configuration<'_>) -> bool {
        let waiting = self.waiting.clone();
        self.indices.any_free()
            && !waiting.is_empty()
            && self.decide(stores, configuration, &waiting, &BTreeSet::new())
    }
}

/// Whether a VNI may be taken over, and the source port policy for frames that the kernel
/// encapsulates; `None` if its source is gone.
fn check(
    stores: &Stores,
    Configuration { settings, namespace }: Configuration<'_>,
    source: VniSource,
    local_is_present: bool,
    uplinks: &BTreeMap<u32, String>,
) -> (Option<Result<VniConfig, LeftToKernel>>, Option<PortChoice>) {
    let (Some(candidate), Some(overlay)) =
        (Candidate::find(stores, source), stores.overlays.get(&source))
    else {
        return (None, None);
    };
    let check = EligibilityCheck { settings, namespace, stores, local_is_present, uplinks };
    let decision = check.decide(candidate, overlay);
    let choice = check.port_choice(candidate, overlay, decision.as_ref().err());
    let Candidate { name, vxlan, .. } = candidate;
    let left = |reason| LeftToKernel { source, name: name.to_owned(), vni: vxlan.id, reason };
    (Some(decision.map_err(left)), choice)
}

/// The uplinks to all remote VTEPs with their names; empty without packet filters and routing rules.
/// Received packets of a VNI may arrive at any of them.
fn named_uplinks(stores: &Stores) -> BTreeMap<u32, String> {
    if stores.packet_filters.is_empty() && !stores.policies.any() {
        return BTreeMap::new();
    }
    let routes = stores.vteps.iter().filter_map(|(_, known)| known.route.as_ref());
    let uplinks: BTreeSet<u32> = routes.flat_map(|route| route.uplinks.iter().copied()).collect();
    uplinks.into_iter().map(|source| (source, stores.links.name(source))).collect()
}
