//! Applies differences between steering plans to hooks and to the programs' maps.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tables::{
    MacLocation, MacLocationChange, PortChoice, Slot, SteeringDiff, SteeringPlan, TakenVni,
};
use wire::as_ipv6;

use super::{ANY_WORKER, Steering, chosen_port, sources};
use crate::error::SteeringError;
use crate::maps::{insert, remove, set};
use crate::offload::entries::words_of_ipv6;
use crate::programs::{PORT, UPLINK};
use crate::watchdog::are_idle;

/// How long the workers may take to send what they have. A worker that has not sent everything by then is
/// overloaded, and loses frames anyway.
const DRAIN_LIMIT: Duration = Duration::from_millis(100);
/// How often to look whether they have.
const DRAIN_STEP: Duration = Duration::from_micros(100);

const NETDEVS: &str = "taken_netdevs";
const TUNNELS: &str = "taken_tunnels";

shared! {
    /// A tunnel whose packets the programs redirect: `struct tunnel_end`.
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    pub struct TunnelEnd {
        /// In network byte order. IPv4 addresses are mapped.
        pub(crate) local: [u32; 4],
        pub(crate) vni: u32,
        /// In network byte order.
        pub(crate) port: u16,
        pub(crate) zero: u16,
    }

    /// How packets of a tunnel are redirected: `struct taken_tunnel`.
    pub struct TakenTunnel {
        /// The worker that receives all packets. Other numbers distribute the flows over all
        /// workers.
        pub(crate) worker: u32,
        pub(crate) slot: u16,
        /// 1 if flows go to the kernel once their worker has sent all that it has.
        pub(crate) draining: u16,
        /// The workers whose flows have gone, one bit each. Programs write it.
        pub(crate) drained: u32,
    }

    /// A vxlan netdev whose frames the programs redirect: `struct taken_netdev`.
    pub struct TakenNetdev {
        /// The longest frame that fits the underlay once it is encapsulated, in bytes.
        pub(crate) frame_limit: u32,
        pub(crate) slot: u16,
        /// As in [`TakenTunnel`].
        pub(crate) draining: u16,
        pub(crate) drained: u32,
    }
}

impl TunnelEnd {
    /// The tunnel of a VNI.
    #[must_use]
    pub fn of(vni: &TakenVni) -> Self {
        let local = words_of_ipv6(as_ipv6(vni.local));
        Self { local, vni: vni.vni.get(), port: vni.destination_port.to_be(), zero: 0 }
    }
}

impl TakenTunnel {
    /// Redirects to the worker with this number, or to all workers by flow.
    #[must_use]
    pub fn of(vni: &TakenVni, worker: Option<u32>) -> Self {
        let slot = Slot::of(vni.index).get();
        Self { worker: worker.unwrap_or(ANY_WORKER), slot, draining: 0, drained: 0 }
    }
}

impl TakenNetdev {
    /// The netdev of a VNI.
    #[must_use]
    pub fn of(vni: &TakenVni) -> Self {
        let slot = Slot::of(vni.index).get();
        Self { frame_limit: vni.frame_limit, slot, draining: 0, drained: 0 }
    }
}

impl Steering {
    /// What has to change so that this plan is applied. `mac_locations`: the addresses that have moved
    /// since the last call of [`Self::remove`] and [`Self::add`].
    ///
    /// After an error this is more than the difference between two plans of the control plane: what
    /// could not be applied is in it again.
    #[must_use]
    pub fn difference(
        &self,
        plan: &SteeringPlan,
        mac_locations: Arc<[MacLocationChange]>,
    ) -> SteeringDiff {
        let applied = SteeringPlan { ports: self.bypass.plan(), ..self.plan.clone() };
        let unhooked = self.netdevs.keys().copied().filter(|ifindex| !plan.is_hooked(*ifindex));
        SteeringDiff {
            unhooked: unhooked.collect(),
            ..SteeringDiff::between(&applied, plan, mac_locations)
        }
    }

    /// Stops redirecting what is gone or changes. To be called before the workers get the snapshot
    /// that belongs to the plan.
    ///
    /// # Errors
    /// When the kernel refuses. Changes that were made before the error remain.
    pub fn remove(&mut self, diff: &SteeringDiff) -> Result<(), SteeringError> {
        let removed =
            if diff.has_only_mac_locations() { Ok(()) } else { self.remove_steering(diff) };
        removed.and(self.bypass.remove_addresses(&mut self.ebpf, &diff.mac_locations))
    }

    fn remove_steering(&mut self, diff: &SteeringDiff) -> Result<(), SteeringError> {
        self.bypass.remove_ports(&mut self.ebpf, &diff.ports)?;
        // Before a netdev is given back: the kernel encapsulates its next frame with the port
        // chosen here.
        for choice in diff.choices.set() {
            if self.netdevs.contains_key(&choice.ifindex) {
                self.set_port_choice(choice)?;
            }
        }
        let released: Vec<TakenVni> = diff.released_vnis().cloned().collect();
        self.drain_vnis(&released)?;
        for vni in &released {
            if let Some(ifindex) = vni.source.netdev() {
                remove::<_, TakenNetdev>(&mut self.ebpf, NETDEVS, &ifindex)?;
            }
            remove::<_, TakenTunnel>(&mut self.ebpf, TUNNELS, &TunnelEnd::of(vni))?;
            // The slot keeps its netdev for frames that are still with the worker. It is
            // overwritten when it is used again.
            self.plan.vnis.remove(&vni.source);
        }
        for choice in &diff.choices.removed {
            if let Some(choice) = self.plan.choices.remove(&choice.ifindex) {
                chosen_port::remove(&mut self.ebpf, &choice)?;
            }
        }
        self.leave_netdevs(&diff.unhooked);
        for uplink in &diff.uplinks.removed {
            self.uplinks.remove(&uplink.ifindex);
            self.plan.uplinks.remove(uplink);
        }
        for (old, new) in &diff.uplinks.changed {
            // Only the name has changed.
            if self.plan.uplinks.remove(old) {
                self.plan.uplinks.insert(new.clone());
            }
        }
        Ok(())
    }

    /// Lets the flows of all VNIs go to the kernel without overtaking what the workers have of them.
    /// To be called before [`Self::release`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn drain(&mut self) -> Result<(), SteeringError> {
        let all: Vec<TakenVni> = self.plan.vnis.values().cloned().collect();
        self.drain_vnis(&all)
    }

    /// Lets the flows of these VNIs go to the kernel: each one as soon as its worker has sent all
    /// that it has. Returns when all workers were idle twice in a row, or after [`DRAIN_LIMIT`].
    fn drain_vnis(&mut self, vnis: &[TakenVni]) -> Result<(), SteeringError> {
        if vnis.is_empty() || !self.kill_switch.is_engaged() {
            return Ok(());
        }
        for vni in vnis {
            let worker = self.worker_of_vni.get(&vni.vni).copied();
            let tunnel = TakenTunnel { draining: 1, ..TakenTunnel::of(vni, worker) };
            insert(&mut self.ebpf, TUNNELS, TunnelEnd::of(vni), tunnel)?;
            if let Some(ifindex) = vni.source.netdev() {
                let netdev = TakenNetdev { draining: 1, ..TakenNetdev::of(vni) };
                insert(&mut self.ebpf, NETDEVS, ifindex, netdev)?;
            }
        }
        let began = Instant::now();
        // Twice in a row: a frame that was on its way into a punt pair has arrived by the second time.
        let mut idle = 0;
        while began.elapsed() < DRAIN_LIMIT && idle < 2 {
            std::thread::sleep(DRAIN_STEP);
            idle = if are_idle(&self.shared_words, self.workers) { idle + 1 } else { 0 };
        }
        Ok(())
    }

    /// Redirects what is new or changes. To be called after [`Self::remove`] with the same
    /// difference, and after the workers got the snapshot.
    ///
    /// # Errors
    /// When an interface vanished or the kernel refuses. The rest is still applied, and the first
    /// error is returned. [`Self::difference`] then has what is missing.
    pub fn add(&mut self, diff: &SteeringDiff) -> Result<(), SteeringError> {
        // The worker may have frames for an address that was unknown until now.
        for change in diff.mac_locations.iter().filter(|change| change.there) {
            let (MacLocation::Port { index, .. } | MacLocation::Remote { index, .. }) =
                change.location;
            self.offload.settle(Slot::of(index).get());
        }
        let added = if diff.has_only_mac_locations() { Ok(()) } else { self.add_steering(diff) };
        added.and(self.bypass.add_addresses(&mut self.ebpf, &diff.mac_locations))
    }

    fn add_steering(&mut self, diff: &SteeringDiff) -> Result<(), SteeringError> {
        let has_program =
            |ifindex: &u32| self.netdevs.contains_key(ifindex) || self.unused.contains_key(ifindex);
        let netdevs = diff.vnis.set().filter_map(|vni| vni.source.netdev());
        let hooked: BTreeSet<u32> =
            netdevs.chain(diff.choices.set().map(|choice| choice.ifindex)).collect();
        let missing = hooked.iter().filter(|ifindex| !has_program(ifindex)).count();
        let _expedited = self.grace_periods.for_hooks(missing);
        let mut first = Ok(());
        // Before the uplinks are attached, so that no packet skips the check of its source.
        if let Some(checked) = &diff.checked_sources {
            first = sources::apply(&mut self.ebpf, &self.plan.checked_sources, checked);
            if first.is_ok() {
                self.plan.checked_sources.clone_from(checked);
            }
        }
        for uplink in &diff.uplinks.added {
            match self.attach_behind(uplink.ifindex, UPLINK, None) {
                Ok(link) => {
                    self.uplinks.insert(uplink.ifindex, link);
                    self.plan.uplinks.insert(uplink.clone());
                }
                Err(error) => first = first.and(Err(error)),
            }
        }
        for vni in diff.vnis.set() {
            match self.redirect_vni(vni) {
                Ok(()) => {
                    self.plan.vnis.insert(vni.source, vni.clone());
                }
                Err(error) => first = first.and(Err(error)),
            }
        }
        for choice in diff.choices.set() {
            let chosen =
                self.hook_netdev(choice.ifindex).and_then(|()| self.set_port_choice(choice));
            first = first.and(chosen);
        }
        first.and(self.bypass.add_ports(&mut self.ebpf, self.hook, PORT, &diff.ports))
    }

    fn redirect_vni(&mut self, vni: &TakenVni) -> Result<(), SteeringError> {
        let netdev = vni.source.netdev();
        let entry = TakenNetdev::of(vni);
        if let Some(ifindex) = netdev {
            self.hook_netdev(ifindex)?;
            set(&mut self.ebpf, "slots", entry.slot.into(), ifindex)?;
        }
        let tunnel = TakenTunnel::of(vni, self.worker_of_vni.get(&vni.vni).copied());
        insert(&mut self.ebpf, TUNNELS, TunnelEnd::of(vni), tunnel)?;
        netdev.map_or(Ok(()), |ifindex| insert(&mut self.ebpf, NETDEVS, ifindex, entry))
    }

    /// Chooses the source ports of frames that the kernel encapsulates according to `choice`.
    fn set_port_choice(&mut self, choice: &PortChoice) -> Result<(), SteeringError> {
        let before = self.plan.choices.get(&choice.ifindex);
        if before == Some(choice) {
            return Ok(());
        }
        chosen_port::set(&mut self.ebpf, before, choice)?;
        self.plan.choices.insert(choice.ifindex, choice.clone());
        Ok(())
    }
}
