//! The takeover of one namespace: punt pairs, splitter, steering programs and workers, set up and
//! removed in the right order.

use std::collections::BTreeSet;
use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use bpf::{Hook, Steering, SteeringError, stale_filters};
use configuration::Access;
use control::{Adjacency, Request, Update};
use netlink::PrivateNamespace;
use pipeline::{Counters, Identifications, Pins};
use ports::{AccessPort, PacketSocket, RingSize};
use tables::{BypassPort, SteeringDiff};
use tokio::sync::{mpsc, oneshot};
use worker::{
    Features, Ports, PrivateLink, PuntError, PuntPairs, Report, Reports, Sockets, Worker,
    WorkerOptions,
};

use crate::guard::Guarded;
use crate::own_links::OwnLinkError;
use crate::program_drops::ProgramDrops;
use crate::wakeups;

/// Punt pairs, splitter, steering programs and workers of one network namespace. [`Takeover::stop`]
/// gives everything back to the kernel.
#[derive(Debug)]
pub(crate) struct Takeover {
    steering: Steering,
    workers: Vec<Worker>,
    engaged: bool,
    /// Whether the last difference was not applied completely.
    incomplete: bool,
    /// What the programs drop.
    drops: Arc<ProgramDrops>,
    /// Standalone: bound sockets that reserve the VXLAN UDP ports until all workers have ended.
    _claims: Vec<UdpSocket>,
    /// Splits super-frames for the programs.
    splitter: PrivateLink,
    /// Dropped last, because it removes the far ends that workers read.
    punts: Vec<PuntPairs>,
    _private: PrivateNamespace,
}

/// How the steering programs are loaded and attached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SteeringOptions {
    /// The kind of hook.
    pub hook: Hook,
    /// What the kernel can do.
    pub features: Features,
    /// How long frames may wait for a worker before the kernel forwards further ones.
    pub stall_limit: Duration,
    /// Whether RCU grace periods may be shortened while many programs are attached.
    pub expedited_rcu: bool,
}

/// An error while starting, changing or stopping a takeover.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TakeoverError {
    /// The private network namespace could not be created.
    #[error("a private network namespace could not be made: {0}; vtepd needs CAP_SYS_ADMIN")]
    Namespace(io::Error),
    /// A punt pair or the splitter could not be created.
    #[error(transparent)]
    PuntPair(#[from] PuntError),
    /// The steering programs could not be loaded or changed.
    #[error(transparent)]
    Steering(#[from] SteeringError),
    /// An AF_PACKET socket could not be opened.
    #[error("no AF_PACKET socket: {0}; vtepd needs CAP_NET_RAW")]
    Socket(io::Error),
    /// A worker could not be started, or ended with an error.
    #[error("the worker: {0}")]
    Worker(io::Error),
}

impl Takeover {
    /// Sets everything up, in the calling thread's network namespace. Nothing is redirected before
    /// the first [`Self::apply`]. `cpus` are the CPUs of the workers. `confine` is called as soon as
    /// the remaining steps need few privileges. `stopped` is called when a worker ends.
    ///
    /// # Errors
    /// When a privilege or a kernel feature is missing. What was set up is removed again.
    pub(crate) fn prepare(
        SteeringOptions { hook, features, stall_limit, expedited_rcu }: SteeringOptions,
        (options, pins): (WorkerOptions, &Pins),
        cpus: &[usize],
        Access { claims, shares }: Access,
        requests: &mpsc::Sender<Request>,
        confine: impl FnOnce(),
        stopped: impl Fn() + Clone + Send + 'static,
    ) -> Result<Self, TakeoverError> {
        remove_stale_filters();
        let private = PrivateNamespace::create().map_err(TakeoverError::Namespace)?;
        // Access ports have no netdevs that the longest frame could follow from.
        let standalone = shares.iter().any(|share| !share.ports.is_empty());
        let longest = if standalone { RingSize::LONGEST } else { worker::longest_frame() };
        let create = |worker| PuntPairs::create(worker, &private, features, longest);
        let mut punts = (0..shares.len()).map(create).collect::<Result<Vec<_>, _>>()?;
        let near_ends: Vec<_> = punts.iter().map(PuntPairs::near_ends).collect();
        let splitter = PrivateLink::splitter(&private)?;
        let (split, udp) = (splitter.near().0, features.udp_super_frames);
        let mut steering = Steering::load(hook, &near_ends, split, stall_limit, udp, pins.most())?;
        if expedited_rcu {
            steering.allow_expedited_rcu();
        }
        for ends in &near_ends {
            steering.close(ends, &private)?;
        }
        steering.close_splitter(splitter.near().1, &private)?;
        for punts in &punts {
            punts.up(&private)?;
        }
        splitter.up(&private)?;
        // Everything later needs few privileges. Workers inherit the restrictions of the thread
        // that starts them, so this comes before them.
        confine();
        let taken = || TakeoverError::Socket(io::Error::other("the punt's socket is gone"));
        let (watchdogs, wakeups) = steering.take_watch().ok_or_else(taken)?;
        let super_frames = options.gso && features.udp_super_frames;
        let (mut workers, identifications) = (Vec::new(), Identifications::default());
        for (number, ((punts, watchdog), share)) in
            punts.iter_mut().zip(watchdogs).zip(shares).enumerate()
        {
            let sockets = Sockets {
                ports: Ports {
                    underlay: punts.underlay.take_socket().ok_or_else(taken)?,
                    bridge: punts.bridge.take_socket().ok_or_else(taken)?,
                    uplinks: PacketSocket::open_sender().map_err(TakeoverError::Socket)?,
                    hosts: PacketSocket::open_sender()
                        .map(PacketSocket::non_blocking)
                        .map_err(TakeoverError::Socket)?,
                },
                watchdog,
                cpu: cpus.get(number).copied(),
                is_grouping: super_frames,
                options,
                pins: pins.clone(),
                identifications: identifications.clone(),
            };
            for ifindex in share.ports.iter().filter_map(AccessPort::shared_interface) {
                steering.shut(ifindex)?;
            }
            share.vnis.iter().for_each(|vni| steering.serve(*vni, number));
            let worker = Worker::start(number, sockets, share, reports(requests), stopped.clone());
            workers.push(worker.map_err(TakeoverError::Worker)?);
        }
        let dropped = steering.take_drops().ok_or_else(taken)?;
        let wakers = workers.iter().map(Worker::waker).collect();
        let drops = wakeups::serve(wakeups, wakers, dropped).map_err(TakeoverError::Worker)?;
        Ok(Self {
            steering,
            workers,
            engaged: false,
            incomplete: false,
            drops,
            _claims: claims,
            splitter,
            punts,
            _private: private,
        })
    }

    /// Publishes the snapshot to the workers and applies what differs in the steering plan. VNIs
    /// that are no longer taken over are given back first. New ones are redirected once the workers
    /// have the snapshot. The first call fills the kill switch.
    ///
    /// # Errors
    /// The first error of steering. The rest is applied all the same, and the next call tries again.
    pub(crate) fn apply(
        &mut self,
        update: &Update,
        diff: &SteeringDiff,
    ) -> Result<(), TakeoverError> {
        let missing = self.incomplete.then(|| {
            let mac_locations = Arc::clone(&diff.mac_locations);
            self.steering.difference(&update.plan, mac_locations)
        });
        let diff = missing.as_ref().unwrap_or(diff);
        let removed = self.steering.remove(diff);
        if !diff.has_only_mac_locations() {
            self.open();
        }
        self.workers.iter().for_each(|worker| worker.publish(Arc::clone(&update.snapshot)));
        let offloaded = self.steering.offload(&update.snapshot);
        let added = self.steering.add(diff);
        self.open();
        let applied = removed.and(offloaded).and(added);
        self.incomplete = applied.is_err();
        if !self.engaged {
            self.steering.engage()?;
            self.engaged = true;
        }
        Ok(applied?)
    }

    /// Replaces the access port of this number with one that was opened again.
    ///
    /// # Errors
    /// When the kernel refuses to keep the port's frames from its own stack.
    pub(crate) fn replace_port(
        &mut self,
        number: u16,
        port: AccessPort,
    ) -> Result<(), SteeringError> {
        self.steering.forget_gone_ports();
        if let Some(ifindex) = port.shared_interface() {
            self.steering.shut(ifindex)?;
        }
        if let Some(worker) = self.workers.iter().find(|worker| worker.has_port(number)) {
            worker.replace_port(number, port);
        }
        Ok(())
    }

    /// Gives everything back to the kernel. First the flows leave the workers, for at most 100 ms,
    /// then the kill switch is emptied, then the workers forward the frames that they have, then
    /// hooks, punt pairs and the namespace are removed.
    ///
    /// # Errors
    /// When a worker ended with an error.
    pub(crate) fn stop(mut self, guarded: &Guarded) -> Result<(), TakeoverError> {
        if let Err(error) = self.steering.drain() {
            tracing::warn!("frames of some flows may be reordered: {error}");
        }
        self.steering.release()?;
        guarded.stopped();
        self.workers.iter().for_each(Worker::stop);
        let ended = self.workers.drain(..).map(Worker::join);
        ended.fold(Ok(()), Result::and).map_err(TakeoverError::Worker)
    }

    /// The names of vtepd's own interfaces in the leaf's namespace.
    #[must_use]
    pub(crate) fn own_links(&self) -> Vec<String> {
        self.own().map(|link| link.near().1.to_owned()).collect()
    }

    fn own(&self) -> impl Iterator<Item = &PrivateLink> {
        let punts =
            self.punts.iter().flat_map(|punts| [punts.underlay.link(), punts.bridge.link()]);
        punts.chain([&self.splitter])
    }

    /// Sets vtepd's own interfaces up again if they were set down. The kernel forwards everything
    /// meanwhile. Returns the names of the repaired interfaces.
    ///
    /// # Errors
    /// When an interface is gone or cannot be set up. The kernel forwards everything from then on.
    pub(crate) fn repair(&mut self) -> Result<Vec<String>, OwnLinkError> {
        let states: Vec<_> =
            self.own().map(|link| (link.near().1.to_owned(), link.is_up())).collect();
        if states.iter().all(|(_, up)| matches!(up, Ok(true))) {
            return Ok(Vec::new());
        }
        if let Err(error) = self.steering.release() {
            tracing::error!("{error}");
        }
        if let Some((name, _)) = states.iter().find(|(_, up)| up.is_err()) {
            return Err(OwnLinkError::Gone(name.clone()));
        }
        for link in self.own() {
            let name = || link.near().1.to_owned();
            link.set_up_again().map_err(|source| OwnLinkError::Down { name: name(), source })?;
        }
        let down =
            states.into_iter().filter(|(_, up)| matches!(up, Ok(false))).map(|(name, _)| name);
        let down: Vec<String> = down.collect();
        if self.engaged {
            let refused = |error| OwnLinkError::Down {
                name: down.first().cloned().unwrap_or_default(),
                source: io::Error::other(error),
            };
            self.steering.engage().map_err(refused)?;
        }
        Ok(down)
    }

    /// The steering programs, their maps and counters.
    #[must_use]
    pub(crate) const fn steering(&self) -> &Steering {
        &self.steering
    }

    /// As [`Self::steering`], to change what does not concern the workers.
    pub(crate) const fn steering_mut(&mut self) -> &mut Steering {
        &mut self.steering
    }

    fn open(&self) {
        let ports = self.steering.delivering_ports();
        self.workers.iter().for_each(|worker| worker.open(&ports));
    }

    /// Whether the kill switch is filled and not suspended by the guard.
    #[must_use]
    pub(crate) fn is_engaged(&self) -> bool {
        self.engaged && !self.steering.kill_switch().is_suspended()
    }

    /// Ports at these interfaces that may use the bypass. With `None`, a few of all such ports: the
    /// next ones with each call.
    pub(crate) fn bypass_ports(&mut self, interfaces: Option<&BTreeSet<u32>>) -> Vec<BypassPort> {
        match interfaces {
            Some(interfaces) => self.steering.bypass_ports_at(interfaces),
            None => self.steering.next_bypass_ports(),
        }
    }

    /// Applies the results of [`bpf::bypass_obstacle`]: a port with an obstacle does not use the
    /// bypass.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn review(
        &mut self,
        found: Vec<(BypassPort, Option<String>)>,
    ) -> Result<(), SteeringError> {
        let reviewed = self.steering.review(found);
        self.open();
        reviewed
    }

    /// The last frames that the programs dropped.
    #[must_use]
    pub(crate) fn program_drops(&self) -> Arc<ProgramDrops> {
        Arc::clone(&self.drops)
    }

    /// The counters of each worker.
    #[must_use]
    pub(crate) fn counters(&self) -> Vec<Arc<Counters>> {
        self.workers.iter().map(Worker::counters).collect()
    }

    /// Asks each worker.
    pub(crate) fn ask<T>(
        &self,
        query: impl Fn(&Worker, oneshot::Sender<T>),
    ) -> Vec<oneshot::Receiver<T>> {
        let ask = |worker: &Worker| {
            let (sender, answer) = oneshot::channel();
            query(worker, sender);
            answer
        };
        self.workers.iter().map(ask).collect()
    }
}

/// Removes the filters that a killed vtepd left behind.
fn remove_stale_filters() {
    match stale_filters::remove() {
        Ok(interfaces) if interfaces.is_empty() => {}
        Ok(interfaces) => {
            tracing::info!("removed what a killed vtepd had left on {}", interfaces.join(", "));
        }
        Err(error) => {
            tracing::warn!("what a killed vtepd may have left cannot be looked for: {error}")
        }
    }
}

/// Passes the reports of a worker to the control task. A report for which the queue has no room is
/// lost; a later frame makes it again.
fn reports(requests: &mpsc::Sender<Request>) -> Reports {
    let requests = requests.clone();
    Box::new(move |report| {
        let request = match report {
            Report::Unresolved((ifindex, address)) => {
                Request::Resolve(Adjacency { ifindex, address })
            }
            Report::Learned(learned) => Request::Learn(learned),
            Report::Stalled { waited, dropped } => Request::Stalled { waited, dropped },
        };
        requests.try_send(request).is_ok()
    })
}
