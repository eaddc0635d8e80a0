//! The takeover of one namespace: punt pairs, steering programs and the worker, put together and
//! taken apart in the right order.

use std::collections::BTreeSet;
use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use control::{Request, Update};
use netlink::Direction;
use pipeline::Counters;
use ports::{
    AccessPort, BypassState, Features, Hook, KillSwitch, PacketSocket, PrivateNamespace, PuntError,
    PuntPair, PuntPairs, RingSize, Steering, SteeringCounts, SteeringError, Wakeups, stale_filters,
};
use tables::BypassPort;
use tokio::sync::{mpsc, oneshot};

use crate::guard::Guarded;
use crate::own_links::OwnLinkError;
use crate::standalone::{Access, Stations};
use crate::worker::{BypassTargets, Sockets, Worker, WorkerOptions};

/// See the module's description.
#[derive(Debug)]
pub struct Takeover {
    steering: Steering,
    workers: Vec<Worker>,
    /// What workers are called by, until somebody has asked for it.
    calls: Option<Wakeups>,
    engaged: bool,
    /// Standalone: nobody else gets these UDP ports, until all workers have ended.
    _claims: Vec<UdpSocket>,
    /// Dropped last: with them go the far ends that workers read.
    punts: Vec<PuntPairs>,
    _private: PrivateNamespace,
}

/// The takeover could not begin, go on or end.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// No private namespace.
    #[error("a private network namespace could not be made: {0}; vtepd needs CAP_SYS_ADMIN")]
    Namespace(io::Error),
    /// No punt pair.
    #[error(transparent)]
    PuntPair(#[from] PuntError),
    /// No steering.
    #[error(transparent)]
    Steering(#[from] SteeringError),
    /// No socket to send with.
    #[error("no AF_PACKET socket: {0}; vtepd needs CAP_NET_RAW")]
    Socket(io::Error),
    /// No worker, or it ended.
    #[error("the worker: {0}")]
    Worker(io::Error),
}

impl Takeover {
    /// Sets everything up, in the calling thread's namespace. Nothing is redirected before the
    /// first [`Self::apply`]. `confine` is called when everything that needs many privileges is
    /// done, `stopped` when a worker ends.
    ///
    /// # Errors
    /// When a privilege or a kernel feature is missing; what was made is taken away again.
    pub fn prepare(
        (hook, features): (Hook, Features),
        stall_limit: Duration,
        options: WorkerOptions,
        Access { claims, shares }: Access,
        requests: &mpsc::Sender<Request>,
        confine: impl FnOnce(),
        stopped: impl Fn() + Clone + Send + 'static,
    ) -> Result<Self, TakeoverError> {
        match stale_filters::remove() {
            Ok(interfaces) if interfaces.is_empty() => {}
            Ok(interfaces) => {
                tracing::info!("removed what a killed vtepd had left on {}", interfaces.join(", "));
            }
            Err(error) => {
                tracing::warn!("what a killed vtepd may have left cannot be looked for: {error}")
            }
        }
        let private = PrivateNamespace::create().map_err(TakeoverError::Namespace)?;
        // Access ports have no netdevs.
        let standalone = shares.iter().any(|share| !share.ports.is_empty());
        let longest = if standalone { RingSize::LONGEST } else { ports::longest_frame() };
        let create = |worker| PuntPairs::create(worker, &private, features, longest);
        let mut punts = (0..shares.len()).map(create).collect::<Result<Vec<_>, _>>()?;
        let mut steering = Steering::load(hook, &punts, stall_limit, features)?;
        for punts in &punts {
            steering.close(punts, &private)?;
        }
        for punts in &punts {
            punts.up(&private)?;
        }
        // What follows needs less, as does everything later. Workers have no more than the thread
        // that starts them.
        confine();
        let taken = || TakeoverError::Socket(io::Error::other("the punt's socket is gone"));
        let (patience, calls) = steering.take_watch().ok_or_else(taken)?;
        let super_frames = options.gso && features.udp_super_frames;
        let mut workers = Vec::new();
        for (number, ((punts, patience), share)) in
            punts.iter_mut().zip(patience).zip(shares).enumerate()
        {
            let mut to_bridge = punts.bridge.take_socket().ok_or_else(taken)?;
            to_bridge.set_bundles(super_frames);
            let sockets = Sockets {
                underlay: punts.underlay.take_socket().ok_or_else(taken)?,
                bridge: to_bridge,
                uplinks: PacketSocket::open_sender(super_frames).map_err(TakeoverError::Socket)?,
                hosts: PacketSocket::open_sender(options.gso)
                    .map(PacketSocket::without_patience)
                    .map_err(TakeoverError::Socket)?,
                patience,
                options,
            };
            for ifindex in share.ports.iter().filter_map(AccessPort::shared_interface) {
                steering.shut(ifindex)?;
            }
            share.vnis.iter().for_each(|vni| steering.serve(*vni, number));
            let worker = Worker::start(number, sockets, share, requests.clone(), stopped.clone());
            workers.push(worker.map_err(TakeoverError::Worker)?);
        }
        Ok(Self {
            steering,
            workers,
            calls: Some(calls),
            engaged: false,
            _claims: claims,
            punts,
            _private: private,
        })
    }

    /// Forwards by this snapshot and redirects what the plan has: what is no longer wanted is given
    /// back first, what is new is redirected once the worker knows it. The kill switch is filled
    /// when this is called for the first time.
    ///
    /// # Errors
    /// The first thing that steering could not do; the rest is done all the same.
    pub fn apply(&mut self, update: &Update) -> Result<(), TakeoverError> {
        let Update { snapshot, plan, places, .. } = update;
        let shrunk = self.steering.shrink(plan).and(self.steering.forget(places));
        self.open();
        self.workers.iter().for_each(|worker| worker.publish(Arc::clone(snapshot)));
        let grown = self.steering.grow(plan).and(self.steering.remember(places));
        self.open();
        if !self.engaged {
            self.steering.engage()?;
            self.engaged = true;
        }
        Ok(shrunk.and(grown)?)
    }

    /// Forwards by this snapshot, which goes with the plan that was applied last.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn publish(&mut self, update: &Update) -> Result<(), TakeoverError> {
        let Update { snapshot, places, .. } = update;
        let forgotten = self.steering.forget(places);
        self.workers.iter().for_each(|worker| worker.publish(Arc::clone(snapshot)));
        let remembered = self.steering.remember(places);
        self.open();
        Ok(forgotten.and(remembered)?)
    }

    /// Uses an access port that was opened anew instead of the one of that number.
    ///
    /// # Errors
    /// When the kernel refuses to keep the port's frames from its stack.
    pub fn replace_port(&mut self, number: u16, port: AccessPort) -> Result<(), SteeringError> {
        if let Some(ifindex) = port.shared_interface() {
            self.steering.shut(ifindex)?;
        }
        if let Some(worker) = self.workers.iter().find(|worker| worker.has_port(number)) {
            worker.replace_port(number, port);
        }
        Ok(())
    }

    /// Gives everything back to the kernel: first no more is redirected, then what the workers have
    /// is forwarded, then the hooks, the punt pairs and the namespace go.
    ///
    /// # Errors
    /// When a worker ended with an error.
    pub fn stop(mut self, guarded: &Guarded) -> Result<(), TakeoverError> {
        self.steering.release()?;
        guarded.stopped();
        self.workers.iter().for_each(Worker::stop);
        let ended = self.workers.drain(..).map(Worker::join);
        ended.fold(Ok(()), Result::and).map_err(TakeoverError::Worker)
    }

    /// The names of vtepd's own interfaces in the leaf's namespace.
    #[must_use]
    pub fn own_links(&self) -> Vec<String> {
        self.own().map(|punt| punt.near().1.to_owned()).collect()
    }

    fn own(&self) -> impl Iterator<Item = &PuntPair> {
        self.punts.iter().flat_map(|punts| [&punts.underlay, &punts.bridge])
    }

    /// Sets those up again that somebody has set down, while the kernel forwards everything.
    /// Returns their names.
    ///
    /// # Errors
    /// When one is gone or cannot be set up: the kernel forwards everything from now on.
    pub fn repair(&mut self) -> Result<Vec<String>, OwnLinkError> {
        let states: Vec<_> =
            self.own().map(|punt| (punt.near().1.to_owned(), punt.is_up())).collect();
        if states.iter().all(|(_, up)| matches!(up, Ok(true))) {
            return Ok(Vec::new());
        }
        if let Err(error) = self.steering.release() {
            tracing::error!("{error}");
        }
        if let Some((name, _)) = states.iter().find(|(_, up)| up.is_err()) {
            return Err(OwnLinkError::Gone(name.clone()));
        }
        for punt in self.own() {
            let name = || punt.near().1.to_owned();
            punt.set_up_again().map_err(|source| OwnLinkError::Down { name: name(), source })?;
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

    fn open(&self) {
        let (ports, uplinks) = (self.steering.delivering_ports(), self.steering.tunnel_uplinks());
        let bypass_targets = BypassTargets { ports, uplinks };
        self.workers.iter().for_each(|worker| worker.open(&bypass_targets));
    }

    /// Whether the kill switch is filled.
    #[must_use]
    pub fn is_engaged(&self) -> bool {
        self.engaged && !self.steering.kill_switch().is_suspended()
    }

    /// As [`Steering::kill_switch`].
    #[must_use]
    pub fn kill_switch(&self) -> KillSwitch {
        self.steering.kill_switch()
    }

    /// The ports that may have the bypass at these interfaces; without any, some, and others each
    /// time.
    pub fn bypass_ports(&mut self, interfaces: Option<&BTreeSet<u32>>) -> Vec<BypassPort> {
        match interfaces {
            Some(interfaces) => self.steering.bypass_ports_at(interfaces),
            None => self.steering.next_bypass_ports(),
        }
    }

    /// Goes by what [`ports::bypass_obstacle`] has said of ports.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn review(
        &mut self,
        found: Vec<(BypassPort, Option<String>)>,
    ) -> Result<(), SteeringError> {
        let reviewed = self.steering.review(found);
        self.open();
        reviewed
    }

    /// How the bypass is used.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn bypass(&self) -> Result<BypassState, SteeringError> {
        self.steering.bypass()
    }

    /// What each worker counts.
    #[must_use]
    pub fn counters(&self) -> Vec<Arc<Counters>> {
        self.workers.iter().map(Worker::counters).collect()
    }

    /// As [`Worker::stations`], of each worker.
    pub fn stations(&self) -> Vec<oneshot::Receiver<Stations>> {
        self.workers.iter().map(Worker::stations).collect()
    }

    /// What workers are called by, for whoever passes that on to [`Self::wake`].
    pub const fn take_calls(&mut self) -> Option<Wakeups> {
        self.calls.take()
    }

    /// Has the worker with this number look for frames.
    pub fn wake(&self, worker: usize) {
        if let Some(worker) = self.workers.get(worker) {
            worker.wake();
        }
    }

    /// See [`Steering::placed_at`].
    pub fn placed_at(&self, interfaces: &BTreeSet<u32>) -> Vec<(u32, Direction)> {
        self.steering.placed_at(interfaces)
    }

    /// See [`Steering::place_behind`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn place_behind(
        &mut self,
        found: Vec<(u32, Direction, Hook)>,
    ) -> Result<(), SteeringError> {
        self.steering.place_behind(found)
    }

    /// What the steering programs decided.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn steering_counts(&self) -> Result<SteeringCounts, SteeringError> {
        self.steering.counts()
    }
}
