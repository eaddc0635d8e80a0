//! The ports of the bridge bypass (`programs/bypass.bpf.h`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::programs::tc::SchedClassifierLink;
use netlink::Direction;
use tables::{BypassPort, Difference, MacLocationChange, OpenPort, Slot, VniIndex};

use crate::attach::{attach_by_index, exists};
use crate::error::SteeringError;
use crate::foreign_programs::{bypass_obstacle, has_own};
use crate::hook::Hook;
use crate::mac_locations::{self, MacLocations};
use crate::maps::{insert, remove};
use crate::port_counts::{Numbers, PortCounts};
use crate::programs::{Entry, PORT};
use crate::rcu_expedite::GracePeriods;

shared! {
    /// `struct bypass_port` of the programs.
    pub(crate) struct PortEntry {
        pub(crate) refresh: u64,
        pub(crate) frame_limit: u32,
        pub(crate) slot: u16,
        pub(crate) number: u16,
        pub(crate) delivery_limit: u32,
        pub(crate) zero: u32,
    }
}

/// A port with an attached program. It has the bypass, or only watches for source addresses.
struct Attached {
    port: BypassPort,
    number: u16,
    hook: Hook,
    link: SchedClassifierLink,
}

impl Attached {
    /// Lets the port's frames take the bypass, if the plan allows it.
    fn engage(&self, ebpf: &mut Ebpf) -> Result<(), SteeringError> {
        self.write(ebpf, if self.port.sends { self.port.frame_limit } else { LISTENS })
    }

    /// Leaves the port's frames to the bridge. The program still watches for source addresses.
    fn pause(&self, ebpf: &mut Ebpf) -> Result<(), SteeringError> {
        self.write(ebpf, LISTENS)
    }

    fn write(&self, ebpf: &mut Ebpf, frame_limit: u32) -> Result<(), SteeringError> {
        let Self { port, number, .. } = self;
        let delivers = frame_limit != LISTENS && port.delivers;
        let entry = PortEntry {
            refresh: u64::try_from(port.refresh.as_nanos()).unwrap_or(u64::MAX),
            frame_limit,
            slot: Slot::of(port.index).get(),
            number: *number,
            delivery_limit: if delivers { port.mtu.saturating_add(HEADER) } else { 0 },
            zero: 0,
        };
        insert(ebpf, PORTS, port.ifindex, entry)
    }
}

/// The state of the bypass in the programs' maps.
#[derive(Default)]
pub(crate) struct Bypass {
    ports: BTreeMap<u32, Attached>,
    /// Programs at ports that are not in the plan any more, and how they are attached. Their frames
    /// pass. The programs stay until the port is deleted, because attaching takes a grace period.
    unused: BTreeMap<u32, (Hook, SchedClassifierLink)>,
    pub(crate) grace_periods: GracePeriods,
    numbers: Numbers,
    /// Ports that get no program, and why. Either a program of another tool would not see frames
    /// that take the bypass, or no number for counters is free.
    refused: BTreeMap<u32, (BypassPort, String)>,
    /// Ports whose frames pass the bridge until the control task has read the notifications of that
    /// time. `paused` are those since the last call of [`Self::resume`], `due` those of the call
    /// before.
    paused: BTreeSet<u32>,
    due: BTreeSet<u32>,
    /// When ports were last paused.
    paused_at: Option<Instant>,
    /// The port that [`Self::next`] returned last.
    reviewed: u32,
    locations: MacLocations,
}

/// State of the bridge bypass, for reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BypassState {
    /// Ports with the bypass, by interface index, with counts of their frames since they have it.
    pub ports: BTreeMap<u32, PortCounts>,
    /// Ports that the plan allows but that are refused, by interface index, with the reason as the
    /// end of a sentence.
    pub refused: BTreeMap<u32, String>,
    /// Addresses in the map.
    pub addresses: usize,
    /// Addresses that the map can hold.
    pub capacity: usize,
    /// Addresses that do not fit now.
    pub waiting: usize,
    /// How many addresses have not fitted so far.
    pub no_room: u64,
}

impl Bypass {
    /// The ports that are applied, attached or refused.
    pub(crate) fn plan(&self) -> BTreeMap<u32, BypassPort> {
        self.candidates().map(|port| (port.ifindex, port.clone())).collect()
    }

    /// Takes the bypass from ports that lose it or whose slot changes, and stops those that may no
    /// longer send. Returns the first error, after all ports were tried.
    pub(crate) fn remove_ports(
        &mut self,
        ebpf: &mut Ebpf,
        diff: &Difference<BypassPort>,
    ) -> Result<(), SteeringError> {
        for old in diff.removed.iter().chain(diff.changed.iter().map(|(old, _)| old)) {
            self.refused.remove(&old.ifindex);
        }
        let moved = diff.changed.iter().filter(|(old, new)| old.index != new.index);
        let gone = diff.removed.iter().chain(moved.map(|(old, _)| old));
        let gone: Vec<u32> = gone.map(|old| old.ifindex).collect();
        let mut first = self.take(ebpf, &gone);
        self.unused.retain(|ifindex, _| exists(*ifindex));
        for (_, new) in diff.changed.iter().filter(|(old, new)| old.sends && !new.sends) {
            if let Some(attached) = self.ports.get_mut(&new.ifindex) {
                attached.port = new.clone();
                first = first.and(attached.engage(ebpf));
            }
        }
        first
    }

    /// Removes the ports' map entries, so that no frame of theirs takes the bypass. Their programs
    /// stay attached. Returns the first error, after all ports were tried. A port with an error
    /// keeps the bypass.
    fn take(&mut self, ebpf: &mut Ebpf, gone: &[u32]) -> Result<(), SteeringError> {
        let mut first = Ok(());
        for ifindex in gone {
            if let Err(error) = remove::<_, PortEntry>(ebpf, PORTS, ifindex) {
                first = first.and(Err(error));
            } else if let Some(attached) = self.ports.remove(ifindex) {
                self.numbers.give_back(attached.number);
                self.unused.insert(*ifindex, (attached.hook, attached.link));
            }
        }
        first
    }

    /// Gives the bypass to new ports, and updates those that change. Returns the first error, after
    /// all ports were tried.
    pub(crate) fn add_ports(
        &mut self,
        ebpf: &mut Ebpf,
        hook: Hook,
        entry: Entry,
        diff: &Difference<BypassPort>,
    ) -> Result<(), SteeringError> {
        let has =
            |port: &BypassPort| self.ports.get(&port.ifindex).is_some_and(|had| had.port == *port);
        let wanted: Vec<BypassPort> = diff.set().filter(|port| !has(port)).cloned().collect();
        self.give(ebpf, hook, entry, wanted)
    }

    /// Attaches or updates these ports, unless something prevents it.
    fn give(
        &mut self,
        ebpf: &mut Ebpf,
        hook: Hook,
        entry: Entry,
        wanted: Vec<BypassPort>,
    ) -> Result<(), SteeringError> {
        let new = || wanted.iter().filter(|port| !self.ports.contains_key(&port.ifindex));
        let attached = new().filter(|port| !self.unused.contains_key(&port.ifindex)).count();
        let _expedited = self.grace_periods.for_ports(attached);
        // While a hook is attached, the program does not watch for hosts that move to this port,
        // but the bridge learns them. Until the control task has read the bridge's notifications,
        // all frames of the VNI's other ports pass the bridge. This takes milliseconds, so a port
        // watches before it forwards.
        let indices: BTreeSet<VniIndex> = new().map(|port| port.index).collect();
        let others = self.ports.values().filter(|attached| indices.contains(&attached.port.index));
        let others: Vec<u32> = others.map(|attached| attached.port.ifindex).collect();
        if !others.is_empty() {
            self.paused_at = Some(Instant::now());
        }
        self.paused.extend(&others);
        for attached in others.iter().filter_map(|ifindex| self.ports.get(ifindex)) {
            attached.pause(ebpf)?;
        }
        let mut first = Ok(());
        for port in wanted {
            if let Err(error) = self.give_one(ebpf, hook, entry, port) {
                first = first.and(Err(error));
            }
        }
        first
    }

    /// Resumes ports that were paused before the previous call. The control task has read the
    /// notifications from before that call.
    fn resume(&mut self, ebpf: &mut Ebpf) -> Result<(), SteeringError> {
        let paused = std::mem::take(&mut self.paused);
        let due = std::mem::replace(&mut self.due, paused);
        let mut first = Ok(());
        for attached in due.difference(&self.due).filter_map(|ifindex| self.ports.get(ifindex)) {
            first = first.and(attached.engage(ebpf));
        }
        first
    }

    fn give_one(
        &mut self,
        ebpf: &mut Ebpf,
        hook: Hook,
        entry: Entry,
        port: BypassPort,
    ) -> Result<(), SteeringError> {
        let (number, hook, link) = match self.ports.remove(&port.ifindex) {
            Some(Attached { number, hook, link, .. }) => (number, hook, link),
            None => {
                if let Some(reason) = bypass_obstacle(&port) {
                    self.refused.insert(port.ifindex, (port, reason));
                    return Ok(());
                }
                let Some(number) = self.numbers.take(ebpf)? else {
                    let reason = format!("{} other ports have it", Numbers::MOST);
                    self.refused.insert(port.ifindex, (port, reason));
                    return Ok(());
                };
                match self.attach(ebpf, hook, port.ifindex, entry) {
                    Ok(link) => (number, hook, link),
                    Err(error) => {
                        self.numbers.give_back(number);
                        return Err(error);
                    }
                }
            }
        };
        let attached = Attached { port, number, hook, link };
        match self.waits(attached.port.ifindex) {
            true => attached.pause(ebpf)?,
            false => attached.engage(ebpf)?,
        }
        self.ports.insert(attached.port.ifindex, attached);
        Ok(())
    }

    /// Attaches the program to a port, unless it is still there.
    fn attach(
        &mut self,
        ebpf: &mut Ebpf,
        hook: Hook,
        ifindex: u32,
        entry: Entry,
    ) -> Result<SchedClassifierLink, SteeringError> {
        // Another port may have the index of a deleted one.
        let is_there =
            |(old, _): &(Hook, _)| *old == hook && has_own(ifindex, Direction::Ingress, hook);
        match self.unused.remove(&ifindex).filter(is_there) {
            Some((_, link)) => Ok(link),
            None => attach_by_index(ebpf, hook, ifindex, entry),
        }
    }

    /// All ports that the plan allows, attached or refused.
    fn candidates(&self) -> impl Iterator<Item = &BypassPort> {
        self.ports
            .values()
            .map(|attached| &attached.port)
            .chain(self.refused.values().map(|(port, _)| port))
    }

    /// Where ports have clsact filters.
    pub(crate) fn filters(&self) -> impl Iterator<Item = (u32, Direction)> {
        let ports = self.ports.iter().filter(|(_, attached)| attached.hook == Hook::Clsact);
        ports.map(|(ifindex, _)| (*ifindex, Direction::Ingress))
    }

    /// Attaches clsact filters again that other software has deleted. A port without its filter has
    /// not seen hosts that moved to it, so it gets the bypass like a new one.
    pub(crate) fn attach_again(
        &mut self,
        ebpf: &mut Ebpf,
        lost: &[(u32, Direction)],
    ) -> Result<(), SteeringError> {
        let at_ingress = lost.iter().filter(|(_, direction)| *direction == Direction::Ingress);
        let ports: Vec<BypassPort> = at_ingress
            .filter_map(|(ifindex, _)| Some(self.ports.get(ifindex)?.port.clone()))
            .collect();
        let gone: Vec<u32> = ports.iter().map(|port| port.ifindex).collect();
        self.take(ebpf, &gone)?;
        self.give(ebpf, Hook::Clsact, PORT, ports)
    }

    /// The candidates at these interfaces, which are host ports or their vxlan netdevs.
    pub(crate) fn at(&self, interfaces: &BTreeSet<u32>) -> Vec<BypassPort> {
        let concerns = |port: &&BypassPort| {
            interfaces.contains(&port.ifindex) || interfaces.contains(&port.netdev)
        };
        self.candidates().filter(concerns).cloned().collect()
    }

    /// The next candidates to check again, in rotation.
    pub(crate) fn next(&mut self) -> Vec<BypassPort> {
        let all: BTreeMap<u32, &BypassPort> =
            self.candidates().map(|port| (port.ifindex, port)).collect();
        let after = all.range((Bound::Excluded(self.reviewed), Bound::Unbounded));
        let turn = after.chain(all.range(..=self.reviewed)).take(AT_ONCE);
        let turn: Vec<BypassPort> = turn.map(|(_, port)| (*port).clone()).collect();
        self.reviewed = turn.last().map_or(0, |port| port.ifindex);
        turn
    }

    /// Applies what [`bypass_obstacle`] found. Ports that have changed since are left alone.
    pub(crate) fn review(
        &mut self,
        ebpf: &mut Ebpf,
        hook: Hook,
        entry: Entry,
        found: Vec<(BypassPort, Option<String>)>,
    ) -> Result<(), SteeringError> {
        let (mut refused, mut again) = (BTreeMap::new(), Vec::new());
        for (port, obstacle) in found {
            let attached =
                self.ports.get(&port.ifindex).is_some_and(|attached| attached.port == port);
            let waits = self.refused.get(&port.ifindex).is_some_and(|(waits, _)| *waits == port);
            match obstacle {
                Some(reason) if attached || waits => {
                    refused.insert(port.ifindex, (port, reason));
                }
                None if waits => {
                    self.refused.remove(&port.ifindex);
                    again.push(port);
                }
                _ => {}
            }
        }
        let gone: Vec<u32> = refused.keys().copied().collect();
        // The caller cannot know what the control task has read. It reads notifications well within
        // this time.
        let heard = self.paused_at.is_none_or(|at| at.elapsed() >= DEAF);
        let resumed = if heard { self.resume(ebpf) } else { Ok(()) };
        let taken = self.take(ebpf, &gone).and(resumed);
        self.refused.extend(refused);
        taken.and(self.give(ebpf, hook, entry, again))
    }

    /// Removes the addresses that have left their locations.
    pub(crate) fn remove_addresses(
        &mut self,
        ebpf: &mut Ebpf,
        changes: &[MacLocationChange],
    ) -> Result<(), SteeringError> {
        self.locations.remove(ebpf, changes)
    }

    /// Adds the addresses that are at new locations, as many as fit.
    pub(crate) fn add_addresses(
        &mut self,
        ebpf: &mut Ebpf,
        changes: &[MacLocationChange],
    ) -> Result<(), SteeringError> {
        self.resume(ebpf)?;
        self.locations.add(ebpf, changes)
    }

    /// Counts of all ports that have or had the bypass.
    pub(crate) fn counts_of_all(&self, ebpf: &Ebpf) -> Result<PortCounts, SteeringError> {
        self.numbers.counts_of_all(ebpf)
    }

    pub(crate) fn state(&self, ebpf: &Ebpf) -> Result<BypassState, SteeringError> {
        let counted = |(ifindex, attached): (&u32, &Attached)| {
            Ok((*ifindex, self.numbers.counts(ebpf, attached.number)?))
        };
        let ports = self.ports.iter().filter(|(_, attached)| attached.port.sends);
        Ok(BypassState {
            ports: ports.map(counted).collect::<Result<_, SteeringError>>()?,
            refused: self
                .refused
                .iter()
                .map(|(ifindex, (_, why))| (*ifindex, why.clone()))
                .collect(),
            addresses: self.locations.known,
            capacity: mac_locations::capacity(ebpf)?,
            waiting: self.locations.waiting(),
            no_room: self.locations.no_room,
        })
    }

    /// The ports to which the worker may send frames directly.
    pub(crate) fn delivering(&self) -> impl Iterator<Item = OpenPort> {
        let ports = self.ports.values().map(|attached| &attached.port).filter(|port| port.delivers);
        let open = ports.filter(|port| !self.waits(port.ifindex));
        open.map(|port| OpenPort { ifindex: port.ifindex, mtu: port.mtu })
    }

    /// Whether all frames of the port pass the bridge for now.
    fn waits(&self, ifindex: u32) -> bool {
        self.paused.contains(&ifindex) || self.due.contains(&ifindex)
    }

    /// How many ports have a program attached.
    pub(crate) fn hooks(&self) -> usize {
        self.ports.len() + self.unused.len()
    }

    /// Detaches all programs.
    pub(crate) fn clear(&mut self) {
        self.ports.clear();
        self.unused.clear();
    }
}

/// Ports that are checked in one call.
const AT_ONCE: usize = 32;
/// How long after a pause the control task may still have unread notifications of that time.
const DEAF: Duration = Duration::from_millis(200);
/// Header of an Ethernet frame in bytes.
const HEADER: u32 = 14;
/// The frame limit of a port that only watches: no frame is that short.
const LISTENS: u32 = 0;

const PORTS: &str = "bypass_ports";
