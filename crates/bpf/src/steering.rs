//! Loads and attaches the steering programs (`programs/steering.bpf.c`) and writes the plan into
//! their maps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aya::{Ebpf, EbpfLoader};
use netlink::PrivateNamespace;
use path::{CounterId, Version};
use tables::{BypassPort, OpenPort, Snapshot, SteeringPlan};
use wire::Vni;

use crate::attach::{attach, attach_by_index, exists};
use crate::bypass::{Bypass, BypassState};
use crate::dropped::ProgramDrops;
use crate::error::SteeringError;
use crate::foreign_programs::remember_own;
use crate::hook::Hook;
use crate::kill_switch::KillSwitch;
use crate::mapped::{MappedWords, mapped};
use crate::offload::Offload;
use crate::offload::pinned::{OffloadUsage, PINNED, PinnedFlow};
use crate::offload::traffic::OffloadCounts;
use crate::placed::PlacedPorts;
use crate::programs::{
    ACCESS, ARRIVED, EMPTIED, ENTRIES, Entry, FAR_END, PORT, PUNT, SPLIT, SPLIT_FAR, STEERS,
    classifier, trim_heap,
};
use crate::rcu_expedite::GracePeriods;
use crate::watchdog::{MOST_WORKERS, Wakeups, Watchdog};

pub(crate) mod apply;
pub(crate) mod chosen_port;
pub(crate) mod counts;
mod descriptors;
mod placed;
pub(crate) mod sources;

pub use apply::{TakenNetdev, TakenTunnel, TunnelEnd};
pub use chosen_port::{PortChoiceEntry, ROUTE_PER_FRAME_MARK};
pub use counts::SteeringCounts;
use descriptors::{allow_descriptors, take_kill_switch};
use placed::Placed;

/// The near ends of a worker's punt pairs: their interface indices and names. The far ends have
/// the same names in a private namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearEnds {
    /// Of the underlay punt pair.
    pub underlay: (u32, String),
    /// Of the bridge punt pair.
    pub bridge: (u32, String),
}

/// The steering programs of one network namespace. Dropping it empties the kill switch and detaches
/// them.
pub struct Steering {
    ebpf: Ebpf,
    hook: Hook,
    kill_switch: KillSwitch,
    watch: Option<(Vec<Watchdog>, Wakeups)>,
    drops: Option<ProgramDrops>,
    /// What workers and programs tell each other.
    shared_words: Arc<MappedWords>,
    workers: usize,
    /// The worker that receives all frames of a VNI, by its number. Other VNIs use all workers.
    worker_of_vni: BTreeMap<Vni, u32>,
    plan: SteeringPlan,
    /// Entry programs at the ingress of the uplinks, by interface index.
    uplinks: BTreeMap<u32, Placed>,
    /// Entry programs at the egress of vxlan netdevs, by interface index.
    netdevs: BTreeMap<u32, Placed>,
    /// The same for netdevs that are not in the plan any more. Their frames pass. The programs stay
    /// until the netdev is deleted, because attaching takes a grace period.
    unused: BTreeMap<u32, Placed>,
    grace_periods: GracePeriods,
    /// Entry programs at the ingress of vtepd's own interfaces and of access ports, by interface
    /// index.
    punts: BTreeMap<u32, Placed>,
    /// Entry programs at the ingress of vxlan netdevs, by interface index. They stay until the
    /// netdev is deleted, because attaching takes a grace period.
    arrivals: BTreeMap<u32, Placed>,
    bypass: Bypass,
    offload: Offload,
}

impl std::fmt::Debug for Steering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steering")
            .field("hook", &self.hook)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

/// Worker number in `taken_tunnels` that distributes the flows of the VNI over all workers.
const ANY_WORKER: u32 = u32::MAX;

impl Steering {
    /// Loads the programs for workers with these punt pairs, at most [`MOST_WORKERS`], and for the
    /// splitter with this interface index. Nothing is attached or redirected yet. After frames have
    /// waited for `stall_limit`, the programs pass further frames to the kernel. Without
    /// `udp_super_frames`, all super-frames from uplinks pass the splitter. The programs forward
    /// queue pairs whose counts have numbers up to `most_pinned`.
    ///
    /// # Errors
    /// When the kernel refuses them.
    pub fn load(
        hook: Hook,
        near_ends: &[NearEnds],
        splitter: u32,
        stall_limit: Duration,
        udp_super_frames: bool,
        most_pinned: u32,
    ) -> Result<Self, SteeringError> {
        let most_pinned = most_pinned.min(PINNED);
        let mut near = [[0; MOST_WORKERS]; 2];
        let [underlay, bridge] = &mut near;
        for ((ends, underlay), bridge) in near_ends.iter().zip(underlay).zip(bridge) {
            (*underlay, *bridge) = (ends.underlay.0, ends.bridge.0);
        }
        let workers = near_ends.len().min(MOST_WORKERS);
        let count = workers as u32;
        let splits_all = u32::from(!udp_super_frames);
        let limit = u64::try_from(stall_limit.as_nanos()).unwrap_or(u64::MAX >> 1);
        let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steering.bpf.o"));
        let mut ebpf = EbpfLoader::new()
            .override_global("workers", &count, true)
            .override_global("underlay_punts", &near[0], true)
            .override_global("bridge_punts", &near[1], true)
            .override_global("stall_limit", &limit, true)
            .override_global("splitter", &splitter, true)
            .override_global("splits_all", &splits_all, true)
            .map_max_entries("offload_usage", most_pinned + 1)
            .map_max_entries("placed_ports", most_pinned + 1)
            .load(object)?;
        for program in
            ENTRIES.map(|e| e.program).into_iter().chain(STEERS.map(|(_, program)| program))
        {
            let classifier = classifier(&mut ebpf, program)?;
            classifier.load().map_err(|error| SteeringError::Program(program, error))?;
            remember_own(classifier);
        }
        allow_descriptors();
        let map = take_kill_switch(&mut ebpf)?;
        let mut programs = Vec::new();
        for (place, program) in STEERS {
            let missing = |error| SteeringError::Program("behind the kill switch", error);
            let fd = classifier(&mut ebpf, program)?.fd().map_err(missing)?;
            programs.push((place, fd.try_clone().map_err(SteeringError::Descriptor)?));
        }
        let kill_switch = KillSwitch::new(map, programs, &EMPTIED);
        let offload = Offload::new(&ebpf, most_pinned)?;
        let shared_words = Arc::new(mapped(&ebpf, "waiting_since")?);
        let watch = Some(watch(&mut ebpf, &shared_words, workers, stall_limit)?);
        let drops = Some(ProgramDrops::take(&mut ebpf)?);
        trim_heap();
        Ok(Self {
            ebpf,
            hook,
            watch,
            drops,
            shared_words,
            workers,
            worker_of_vni: BTreeMap::new(),
            kill_switch,
            plan: SteeringPlan::default(),
            uplinks: BTreeMap::new(),
            netdevs: BTreeMap::new(),
            unused: BTreeMap::new(),
            grace_periods: GracePeriods::default(),
            punts: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            bypass: Bypass::default(),
            offload,
        })
    }

    /// Allows steering to set the machine's switch `rcu_expedited` while it attaches or detaches
    /// many programs.
    pub const fn allow_expedited_rcu(&mut self) {
        self.grace_periods.expedite = true;
        self.bypass.grace_periods.expedite = true;
    }

    /// The watchdogs of the workers and the ring buffer that wakes workers up. `None` after the
    /// first call.
    pub const fn take_watch(&mut self) -> Option<(Vec<Watchdog>, Wakeups)> {
        self.watch.take()
    }

    /// The frames that the programs drop. `None` after the first call.
    pub const fn take_drops(&mut self) -> Option<ProgramDrops> {
        self.drops.take()
    }

    /// Assigns all frames of a VNI to the worker with this number, from the next time that the VNI
    /// is taken over. The flows of other VNIs are distributed over all workers.
    pub fn serve(&mut self, vni: Vni, worker: usize) {
        self.worker_of_vni.insert(vni, worker as u32);
    }

    /// The plan that is applied now.
    #[must_use]
    pub const fn plan(&self) -> &SteeringPlan {
        &self.plan
    }

    /// Attaches programs to both ends of a worker's punt pairs that drop every frame that is not
    /// redirected. To be called before the punt pairs are brought up, so that no frame reaches an
    /// IP stack.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn close(
        &mut self,
        NearEnds { underlay, bridge }: &NearEnds,
        private: &PrivateNamespace,
    ) -> Result<(), SteeringError> {
        self.close_link(&underlay.1, [FAR_END, FAR_END], private)?;
        self.close_link(&bridge.1, [PUNT, FAR_END], private)
    }

    /// Attaches the programs to both ends of the splitter. To be called before it is brought up.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn close_splitter(
        &mut self,
        name: &str,
        private: &PrivateNamespace,
    ) -> Result<(), SteeringError> {
        self.close_link(name, [SPLIT, SPLIT_FAR], private)
    }

    /// Attaches programs to both ends of a veth pair to the private namespace. They have the same
    /// name.
    fn close_link(
        &mut self,
        name: &str,
        [near, far]: [Entry; 2],
        private: &PrivateNamespace,
    ) -> Result<(), SteeringError> {
        let (ebpf, hook) = (&mut self.ebpf, self.hook);
        let link = private.enter(|| Ok(attach(ebpf, hook, name, far)));
        // The link is leaked: detaching would have to happen inside the namespace. The program goes
        // with the namespace.
        std::mem::forget(link.map_err(SteeringError::Namespace)??);
        let link = attach(&mut self.ebpf, self.hook, name, near)?;
        // The interface has just been created.
        let ifindex = nix::net::if_::if_nametoindex(name).unwrap_or_default();
        self.punts.insert(ifindex, Placed::new(self.hook, near, link));
        Ok(())
    }

    /// Drops what arrives on an access port before the IP stack sees it, while the kill switch is
    /// filled. The AF_PACKET socket of the port has already received the frame.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn shut(&mut self, ifindex: u32) -> Result<(), SteeringError> {
        let link = attach_by_index(&mut self.ebpf, self.hook, ifindex, ACCESS)?;
        self.punts.insert(ifindex, Placed::new(self.hook, ACCESS, link));
        Ok(())
    }

    /// Forgets access ports whose interfaces are gone. Each holds a descriptor.
    pub fn forget_gone_ports(&mut self) {
        self.punts.retain(|ifindex, _| exists(*ifindex));
    }

    /// Fills the kill switch: from now on the programs redirect frames according to the plan.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn engage(&mut self) -> Result<(), SteeringError> {
        self.kill_switch.engage()
    }

    /// The kill switch, for a thread that empties it when the control task hangs.
    #[must_use]
    pub fn kill_switch(&self) -> KillSwitch {
        self.kill_switch.clone()
    }

    /// Empties the kill switch: from now on the kernel forwards everything. Frames that a worker
    /// already has may still be handed to the bridge.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn release(&mut self) -> Result<(), SteeringError> {
        self.kill_switch.release()
    }

    /// Writes the tables of the `offload` datapath. To be called between [`Self::remove`] and
    /// [`Self::add`].
    ///
    /// # Errors
    /// When the kernel refuses. The next call tries again.
    pub fn offload(&mut self, snapshot: &Snapshot) -> Result<(), SteeringError> {
        let attached = self.attach_arrivals(snapshot);
        attached.and(self.offload.follow(&mut self.ebpf, snapshot))
    }

    /// Attaches the program that tells when frames have left the backlog before the bridge. Without
    /// it, all decapsulated frames pass the bridge.
    fn attach_arrivals(&mut self, snapshot: &Snapshot) -> Result<(), SteeringError> {
        let offloaded = snapshot.vnis().filter(|table| table.offload);
        let netdevs =
            offloaded.filter_map(|table| nix::net::if_::if_nametoindex(table.netdev.as_str()).ok());
        let new: Vec<u32> = netdevs.filter(|netdev| !self.arrivals.contains_key(netdev)).collect();
        if !new.is_empty() {
            // Those of netdevs that are gone hold descriptors.
            self.arrivals.retain(|netdev, _| exists(*netdev));
        }
        for ifindex in new {
            let _expedited = self.grace_periods.for_hooks(1);
            let link = attach_by_index(&mut self.ebpf, self.hook, ifindex, ARRIVED)?;
            self.arrivals.insert(ifindex, Placed::new(self.hook, ARRIVED, link));
        }
        Ok(())
    }

    /// The counters of the `offload` datapath for the VNIs and VTEPs in this snapshot, and for all
    /// next hops.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn offload_counts(&self, snapshot: &Snapshot) -> Result<OffloadCounts, SteeringError> {
        self.offload.counts(&self.ebpf, snapshot)
    }

    /// Writes which paths the queue pairs of `qp-pin` have in the `offload` datapath. The worker gets
    /// the frames of others. To be called again when [`Self::offload_version`] has changed.
    ///
    /// # Errors
    /// When the kernel refuses. The next call tries again.
    pub fn pin(
        &mut self,
        changes: &[(CounterId, Option<PinnedFlow>)],
    ) -> Result<(), SteeringError> {
        self.offload.pin(&mut self.ebpf, changes)
    }

    /// A number that changes when the tables of the `offload` datapath do.
    #[must_use]
    pub const fn offload_version(&self) -> Version<Offload> {
        self.offload.version()
    }

    /// What the programs send of each queue pair.
    ///
    /// # Errors
    /// When the map cannot be mapped into memory.
    pub fn pinned_usage(&self) -> Result<OffloadUsage, SteeringError> {
        self.offload.pinned_usage(&self.ebpf)
    }

    /// The queue pairs of the `kernel` datapath. To be called once.
    ///
    /// # Errors
    /// When the maps are not there, or cannot be mapped into memory.
    pub fn take_placed(&mut self) -> Result<PlacedPorts, SteeringError> {
        PlacedPorts::take(&mut self.ebpf)
    }

    /// The candidates for the bypass at these interfaces, which are host ports or their vxlan
    /// netdevs. For [`crate::bypass_obstacle`], which sends netlink requests and therefore runs on
    /// another thread.
    #[must_use]
    pub fn bypass_ports_at(&self, interfaces: &BTreeSet<u32>) -> Vec<BypassPort> {
        self.bypass.at(interfaces)
    }

    /// The next group of candidates for the bypass, in rotation. To be called periodically.
    pub fn next_bypass_ports(&mut self) -> Vec<BypassPort> {
        self.bypass.next()
    }

    /// Applies what [`crate::bypass_obstacle`] found.
    ///
    /// # Errors
    /// When the kernel refuses. The remaining ports are still updated.
    pub fn review(
        &mut self,
        found: Vec<(BypassPort, Option<String>)>,
    ) -> Result<(), SteeringError> {
        self.bypass.review(&mut self.ebpf, self.hook, PORT, found)
    }

    /// The ports with the bypass to which the worker may send frames directly.
    #[must_use]
    pub fn delivering_ports(&self) -> Vec<OpenPort> {
        self.bypass.delivering().collect()
    }

    /// State of the bridge bypass.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn bypass(&self) -> Result<BypassState, SteeringError> {
        self.bypass.state(&self.ebpf)
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        // First no frame is redirected any more, then the hooks are detached one by one.
        let _ = self.release();
        let hooks =
            self.netdevs.len() + self.arrivals.len() + self.unused.len() + self.bypass.hooks();
        let _expedited = self.grace_periods.for_hooks(hooks);
        self.netdevs.clear();
        self.arrivals.clear();
        self.unused.clear();
        self.bypass.clear();
    }
}

fn watch(
    ebpf: &mut Ebpf,
    shared_words: &Arc<MappedWords>,
    workers: usize,
    limit: Duration,
) -> Result<(Vec<Watchdog>, Wakeups), SteeringError> {
    let ring = ebpf.take_map("calls").ok_or(SteeringError::Missing("calls"))?;
    let ring = ring.try_into().map_err(|error| SteeringError::Map("calls", error))?;
    Ok((
        Watchdog::share(shared_words, workers, limit),
        Wakeups::new(ring, Arc::clone(shared_words)),
    ))
}
