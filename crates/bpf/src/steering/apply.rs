//! Applies a plan: the difference to the plan before goes into the programs' maps.

use std::collections::BTreeSet;
use std::time::Instant;

use aya::Pod;
use aya::maps::{Array, HashMap, MapData};
use aya::programs::tc::SchedClassifierLink;
use tables::{PortChoice, SteeringPlan, TakenVni};

use super::{
    DEALT, LEAVING, PORT, Placed, Steering, SteeringError, TUNNEL, UPLINK, absent, attach_by_index,
    chosen_port, map, sources,
};

/// `struct tunnel_end` of the programs. `local` and `port` are in network byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
struct TunnelEnd {
    local: u32,
    vni: u32,
    port: u16,
    zero: u16,
}

/// `struct taken_netdev` of the programs.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct TakenNetdev {
    frame_limit: u32,
    slot: u32,
}

// SAFETY: plain integers without padding.
unsafe impl Pod for TunnelEnd {}
// SAFETY: plain integers without padding.
unsafe impl Pod for TakenNetdev {}

impl TunnelEnd {
    fn of(vni: &TakenVni) -> Self {
        Self {
            local: u32::from_ne_bytes(vni.local.octets()),
            vni: vni.vni.get(),
            port: vni.destination_port.to_be(),
            zero: 0,
        }
    }
}

impl Steering {
    /// Stops redirecting what the new plan lacks or changes. To be called before the snapshot that
    /// belongs to the plan is published.
    ///
    /// # Errors
    /// When the kernel refuses. Changes that were made before the error remain.
    pub fn shrink(&mut self, plan: &SteeringPlan) -> Result<(), SteeringError> {
        self.bypass.shrink(&mut self.ebpf, plan)?;
        // Before a netdev is given back: the kernel encapsulates its next frame with the port
        // chosen here.
        for choice in plan.choices.values() {
            if self.netdevs.contains_key(&choice.ifindex) {
                self.choose(choice)?;
            }
        }
        let gone: Vec<TakenVni> = self
            .plan
            .vnis
            .values()
            .filter(|old| plan.vnis.get(&old.source).is_none_or(|new| !same_place(old, new)))
            .cloned()
            .collect();
        for vni in gone {
            if let Some(ifindex) = vni.source.netdev() {
                self.netdevs_map()?
                    .remove(&ifindex)
                    .or_else(absent)
                    .map_err(|e| SteeringError::Map("taken_netdevs", e))?;
            }
            self.tunnels_map()?
                .remove(&TunnelEnd::of(&vni))
                .or_else(absent)
                .map_err(|e| SteeringError::Map("taken_tunnels", e))?;
            // The slot keeps its netdev for frames that are still with the worker. It is
            // overwritten when it is used again.
            self.plan.vnis.remove(&vni.source);
        }
        let gone: Vec<u32> = self
            .plan
            .choices
            .keys()
            .copied()
            .filter(|index| !plan.choices.contains_key(index))
            .collect();
        for ifindex in gone {
            if let Some(choice) = self.plan.choices.remove(&ifindex) {
                chosen_port::remove(&mut self.ebpf, &choice)?;
            }
        }
        self.leave_netdevs(plan);
        let wanted: BTreeSet<u32> = plan.uplinks.iter().map(|uplink| uplink.ifindex).collect();
        // A worker may still send super-frames that only the egress program can complete.
        self.detach_leaving();
        let gone: Vec<u32> =
            self.uplinks.keys().copied().filter(|ifindex| !wanted.contains(ifindex)).collect();
        for (_, egress) in gone.iter().filter_map(|ifindex| self.uplinks.remove(ifindex)) {
            self.leaving.extend(egress.map(|link| (Instant::now(), link)));
        }
        self.plan.uplinks.retain(|uplink| wanted.contains(&uplink.ifindex));
        Ok(())
    }

    /// Redirects what the plan contains. To be called after [`Self::shrink`] with the same plan,
    /// and after the snapshot is published.
    ///
    /// # Errors
    /// When an interface vanished or the kernel refuses. The rest of the plan is still applied, and
    /// the first error is returned.
    pub fn grow(&mut self, plan: &SteeringPlan) -> Result<(), SteeringError> {
        let has_program =
            |ifindex: &u32| self.netdevs.contains_key(ifindex) || self.unused.contains_key(ifindex);
        let missing = plan.hooked().filter(|ifindex| !has_program(ifindex)).count();
        let _expedited = self.grace_periods.for_hooks(missing);
        // Before the uplinks are attached, so that no packet skips the check of its source.
        let mut first =
            sources::apply(&mut self.ebpf, &self.plan.checked_sources, &plan.checked_sources);
        if first.is_ok() {
            self.plan.checked_sources.clone_from(&plan.checked_sources);
        }
        for uplink in &plan.uplinks {
            if !self.uplinks.contains_key(&uplink.ifindex) {
                match self.attach_uplink(uplink.ifindex) {
                    Ok(links) => {
                        self.uplinks.insert(uplink.ifindex, links);
                        self.plan.uplinks.insert(uplink.clone());
                    }
                    Err(error) => first = first.and(Err(error)),
                }
            }
        }
        for vni in plan.vnis.values() {
            if self.plan.vnis.get(&vni.source) != Some(vni) {
                match self.take(vni) {
                    Ok(()) => {
                        self.plan.vnis.insert(vni.source, vni.clone());
                    }
                    Err(error) => first = first.and(Err(error)),
                }
            }
        }
        for choice in plan.choices.values() {
            if self.plan.choices.get(&choice.ifindex) != Some(choice) {
                let chosen = self.hook_netdev(choice.ifindex).and_then(|()| self.choose(choice));
                first = first.and(chosen);
            }
        }
        first.and(self.bypass.grow(&mut self.ebpf, self.hook, PORT, plan))
    }

    pub(super) fn detach_leaving(&mut self) {
        self.leaving.retain(|(since, _)| since.elapsed() < LEAVING);
    }

    fn attach_uplink(
        &mut self,
        ifindex: u32,
    ) -> Result<(Placed, Option<SchedClassifierLink>), SteeringError> {
        let ingress = self.attach_behind(ifindex, UPLINK, None)?;
        // Without the egress program the worker splits TCP super-frames, so a failure is ignored.
        let egress =
            self.tunnels.then(|| attach_by_index(&mut self.ebpf, self.hook, ifindex, TUNNEL).ok());
        Ok((ingress, egress.flatten()))
    }

    fn take(&mut self, vni: &TakenVni) -> Result<(), SteeringError> {
        let netdev = vni.source.netdev();
        let slot = u32::from(vni.slot.get());
        if let Some(ifindex) = netdev {
            self.hook_netdev(ifindex)?;
            self.slots_map()?.set(slot, ifindex, 0).map_err(|e| SteeringError::Map("slots", e))?;
        }
        let worker = self.served.get(&vni.vni).copied().unwrap_or(DEALT);
        self.tunnels_map()?
            .insert(TunnelEnd::of(vni), worker, 0)
            .map_err(|e| SteeringError::Map("taken_tunnels", e))?;
        let Some(ifindex) = netdev else { return Ok(()) };
        let netdev = TakenNetdev { frame_limit: vni.frame_limit, slot };
        self.netdevs_map()?
            .insert(ifindex, netdev, 0)
            .map_err(|e| SteeringError::Map("taken_netdevs", e))
    }

    /// Chooses the source ports of frames that the kernel encapsulates according to `choice`.
    fn choose(&mut self, choice: &PortChoice) -> Result<(), SteeringError> {
        let before = self.plan.choices.get(&choice.ifindex);
        if before == Some(choice) {
            return Ok(());
        }
        chosen_port::set(&mut self.ebpf, before, choice)?;
        self.plan.choices.insert(choice.ifindex, choice.clone());
        Ok(())
    }

    fn netdevs_map(&mut self) -> Result<HashMap<&mut MapData, u32, TakenNetdev>, SteeringError> {
        map(&mut self.ebpf, "taken_netdevs")
    }

    fn tunnels_map(&mut self) -> Result<HashMap<&mut MapData, TunnelEnd, u32>, SteeringError> {
        map(&mut self.ebpf, "taken_tunnels")
    }

    fn slots_map(&mut self) -> Result<Array<&mut MapData, u32>, SteeringError> {
        map(&mut self.ebpf, "slots")
    }
}

/// Whether at most the frame limit (or the name) differs, which can be changed in place.
fn same_place(old: &TakenVni, new: &TakenVni) -> bool {
    let TakenVni { vni, source, slot, local, destination_port, name: _, frame_limit: _ } = old;
    (vni, source, slot, local, destination_port)
        == (&new.vni, &new.source, &new.slot, &new.local, &new.destination_port)
}
