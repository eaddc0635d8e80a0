//! The thread that probes the paths to remote VTEPs and answers the probes of others.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bpf::{Offload, RouteLookup};
use path::{NextHop, PathId, Version};
use pathmap::message::Message;
use pathmap::message::arrivals::ArrivalReport;
use pathmap::packet::{self, Headers, Received};
use pathmap::placer::{Target, Tick};
use pathmap::prober::{TTL, Transmit};
use pathmap::spraying::Due;
use pathmap::trace::packet as trace_packet;
use pathmap::{Key, Placer, Random, Responder, trace};
use ports::Poller;
use ports::probe_socket::Underlay;
use tables::{Snapshot, SteeringPlan};
use worker::Scheduling;

use crate::handle::Handle;
use crate::pinning::Shared;

mod by_kernel;
mod choices;
mod entry;
mod sockets;
mod spraying;
mod targets;
mod ticks;
mod traced;
mod turn;

use by_kernel::ByKernel;
use choices::Lookups;
use configuration::Probing;
use sockets::Sockets;
use spraying::Sprays;
use targets::Targets;

/// How long nothing is probed after an error, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Packets that are read from each socket before probes are sent again.
const READ: usize = 512;

/// What is opened before privileges are given up.
#[derive(Debug)]
pub(crate) struct Opened {
    probing: Probing,
    sockets: Sockets,
    lookups: Lookups,
    /// Known to this process alone.
    secret: Key,
    random: Random,
    /// What the workers ask.
    pub shared: Arc<Shared>,
}

impl Opened {
    /// Opens the sockets of probes in the calling thread's network namespace.
    ///
    /// # Errors
    /// As [`ports::ProbeSocket::open`], and if the kernel has no random numbers.
    pub(crate) fn open(probing: &Probing) -> io::Result<Self> {
        let sockets = Sockets::open(probing.settings.rate)?;
        let program = RouteLookup::load().inspect_err(|error| tracing::info!("{error}")).ok();
        let lookups = Lookups::open(program).map_err(io::Error::other)?;
        let secret = secret(|bytes| Ok(getrandom::fill(bytes)?))?;
        let mut random = Random::new(seed(&secret));
        let shared = Shared::new(probing.options, random.next());
        let shared = Arc::new(match probing.spray {
            Some(options) => shared.with_spraying(options, random.next()),
            None => shared,
        });
        Ok(Self { probing: probing.clone(), sockets, lookups, secret, random, shared })
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When there is no thread.
    pub(crate) fn start(self, handle: Arc<Handle>, realtime: bool) -> io::Result<Running> {
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread = std::thread::Builder::new().name("probing".to_owned()).spawn(move || {
            let fair = |error| {
                tracing::info!("probes are sent by an ordinary thread, so on a busy machine dead paths are found later: {error}");
                Scheduling::fair()
            };
            let prompt = || Scheduling::prompt().unwrap_or_else(fair);
            let scheduling = if realtime { prompt() } else { Scheduling::fair() };
            let mut prober = match Thread::new(self, handle, scheduling) {
                Ok(prober) => prober,
                Err(error) => return tracing::error!("paths are not probed: {error}"),
            };
            run(&stop, || prober.turn(), std::thread::sleep);
        })?;
        Ok(Running { stopping, thread: Some(thread) })
    }
}

/// Takes turns until it has to stop. After an error it waits, longer each time: workers still send
/// by the paths, so they must be watched again as soon as that is possible.
fn run(
    stop: &AtomicBool,
    mut turn: impl FnMut() -> io::Result<()>,
    mut wait: impl FnMut(Duration),
) {
    let mut pause = FIRST_PAUSE;
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = turn() {
            tracing::error!("paths are not probed for {} ms: {error}", pause.as_millis());
            wait(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        } else {
            pause = FIRST_PAUSE;
        }
    }
}

/// The VTEP that sent a packet between these ends and ports, each source first.
const fn sender((from, to): (IpAddr, IpAddr), (_, port): (u16, u16)) -> Target {
    Target { local: to, address: from, port, by_kernel: false }
}

/// A key of this process alone, from random bytes. Tokens, nonces and the identifications of traces
/// follow from it, so there is no substitute if these fail.
fn secret(fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<Key> {
    let mut bytes = [0; 32];
    fill(&mut bytes).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("the kernel has no random numbers for probing: {error}"),
        )
    })?;
    Key::new(&bytes).map_err(io::Error::other)
}

/// A number for choices that differs between processes.
fn seed(secret: &Key) -> u64 {
    u64::from(secret.number([0])) << 32 | u64::from(secret.number([1]))
}

/// The running thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Thread {
    sockets: Sockets,
    key: Key,
    /// `SCHED_FIFO` while there is little to do.
    scheduling: Scheduling,
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    snapshot: Arc<Snapshot>,
    plan: Arc<SteeringPlan>,
    responder: Responder,
    targets: Targets,
    sprays: Sprays,
    by_kernel: ByKernel,
    poller: Poller,
    random: Random,
    answers: usize,
    ticked: Duration,
    published: Duration,
    /// The version of the offload's tables for which the programs have the placement, and whether
    /// they have yet to be told more of it.
    pinned: (Version<Offload>, bool),
    /// What is left to do of a tick of the placement.
    tick: Option<Tick>,
    /// The version of the placement whose paths are probed.
    watched: Version<Placer>,
    /// When the placement or the snapshot has changed.
    changed: Duration,
}

impl Thread {
    fn new(opened: Opened, handle: Arc<Handle>, scheduling: Scheduling) -> io::Result<Self> {
        let Opened { probing, sockets, lookups, secret, mut random, shared } = opened;
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let ports = handle.take_placed().map_err(io::Error::other)?;
        Ok(Self {
            sockets,
            key: probing.key.clone(),
            scheduling,
            sprays: Sprays::new(shared.spraying.clone()),
            shared,
            handle,
            snapshot: Arc::default(),
            plan: Arc::default(),
            targets: Targets::new(
                &probing,
                lookups,
                (secret.clone(), epoch as u32),
                Random::new(random.next()),
            ),
            by_kernel: ByKernel::new(ports),
            responder: Responder::new(probing.key, secret, probing.settings.rate),
            poller: Poller::default(),
            random,
            answers: 0,
            ticked: Duration::ZERO,
            published: Duration::ZERO,
            pinned: (Version::NONE, false),
            tick: None,
            watched: Version::NONE,
            changed: Duration::ZERO,
        })
    }

    fn receive(&mut self, underlay: Underlay) -> io::Result<()> {
        let mut buffer = [0; 2048];
        let mut packets = 0;
        for _ in 0..READ {
            let (length, arrival) = match self.sockets.of(underlay).receive(&mut buffer) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                // An interface was set down. The others still receive.
                Err(error) if error.raw_os_error() == Some(nix::libc::ENETDOWN) => continue,
                Err(error) => return Err(error),
            };
            packets += 1;
            let Some(bytes) = buffer.get(..length) else { continue };
            if let Some(received) = packet::parse(bytes) {
                self.take(&received, arrival);
            } else if let Some(error) = trace_packet::parse(bytes) {
                self.targets.expired(&error, self.shared.now());
            }
        }
        self.scheduling.work(Instant::now(), packets);
        Ok(())
    }

    /// Takes a packet if it is from a known VTEP.
    fn take(&mut self, received: &Received<'_>, arrival: u32) {
        let target = sender(received.ends, received.ports);
        if !is_known(&self.snapshot, &target) {
            return;
        }
        let now = self.shared.now();
        let Some(message) = self.responder.open(received) else { return };
        match message {
            Message::Answer(answer) => {
                let accepted = self.targets.answer(now, target, &answer);
                if accepted {
                    self.shared.change(|placer| placer.report(target, &answer.report, now));
                    self.sockets.take_token(received.ends, answer.token);
                }
            }
            Message::Probe(probe) => {
                self.answers = self.answers.wrapping_add(1);
                let part = self.answers;
                let answer = self.responder.answer(now, probe, received, arrival);
                let Some(mut answer) = answer else { return };
                self.sockets.give_token(received.ends, answer.token);
                answer.report = self.shared.change(|placer| placer.to_report(target, part, now));
                let copies = if probe.urgent { 2 } else { 1 };
                self.send_answer(received, &Message::Answer(answer), copies);
            }
            Message::Arrivals(report) => {
                if self.responder.takes(now, &report.head, received) {
                    self.sprays.take(now, &target, report);
                }
            }
        }
    }

    /// Sends an answer over one or two living paths, others each time: the way back may be dead
    /// while the way there is alive.
    fn send_answer(&mut self, received: &Received<'_>, message: &Message, copies: usize) {
        let target = sender(received.ends, received.ports);
        let mut bytes = message.bytes();
        self.key.seal((target.local, target.address), &mut bytes);
        let hops: Vec<u64> = self.hops(target.address).iter().map(|hop| hop.identity).collect();
        let start = self.random.index(hops.len());
        for hop in hops.iter().cycle().skip(start).take(copies.min(hops.len())) {
            let path = self.targets.living(target, *hop, &mut self.random);
            let port = path.map_or(received.ports.0, |path| path.source_port);
            self.send(PathId { hop: *hop, source_port: port }, target, false, &bytes);
        }
    }

    fn hops(&self, address: IpAddr) -> &[NextHop] {
        let vtep = self.snapshot.find_vtep(address);
        let vtep = vtep.and_then(|index| self.snapshot.vtep(index));
        vtep.map_or(&[], |vtep| vtep.paths.next_hops())
    }

    fn probe(&self, target: Target, transmit: Transmit) {
        let Transmit { path, mut probe } = transmit;
        let hop = self.hops(target.address).iter().find(|hop| hop.identity == path.hop);
        probe.uplink = hop.map_or(0, |hop| hop.ifindex);
        let mut bytes = Message::Probe(probe).bytes();
        self.key.seal((target.local, target.address), &mut bytes);
        self.send(path, target, probe.records, &bytes);
    }

    /// Sends a report of arrivals by the quickest living path, and every eighth regular one by any:
    /// the quickest one may be dead in this direction.
    fn report_arrivals(&mut self, now: Duration, target: Target, due: Due, report: ArrivalReport) {
        let path = match self.random.below(8) {
            0 if due == Due::Regular => self.targets.any_living(target, &mut self.random),
            _ => self.targets.quickest(target),
        };
        let Some(path) = path else { return };
        let Some(mut head) = self.targets.head(now, target, path) else { return };
        let hop = self.hops(target.address).iter().find(|hop| hop.identity == path.hop);
        head.uplink = hop.map_or(0, |hop| hop.ifindex);
        let mut bytes = Message::Arrivals(ArrivalReport { head, ..report }).bytes();
        self.key.seal((target.local, target.address), &mut bytes);
        self.send(path, target, false, &bytes);
    }

    fn send(&self, path: PathId, target: Target, records: bool, message: &[u8]) {
        if let Some((ifindex, headers)) = self.headers(path, target, records) {
            // A probe that is not sent is one that is not answered.
            self.sockets.send(target.address, ifindex, &packet::build(&headers, message));
        }
    }

    fn send_trace(&self, target: Target, transmit: trace::Transmit) {
        let trace::Transmit { path, ttl, id } = transmit;
        if let Some((ifindex, headers)) = self.headers(path, target, false) {
            let packet = trace_packet::build(&Headers { ttl, ..headers }, id);
            self.sockets.send(target.address, ifindex, &packet);
        }
    }

    /// The interface and the outer headers of a packet by this path. `None` without its next hop.
    fn headers(&self, path: PathId, target: Target, records: bool) -> Option<(u32, Headers)> {
        let hop = self.hops(target.address).iter().find(|hop| hop.identity == path.hop)?;
        let headers = Headers {
            macs: (hop.source_mac, hop.destination_mac?),
            ends: (target.local, target.address),
            ports: (path.source_port, target.port),
            label: self.targets.label(target, path.source_port),
            ttl: TTL,
            records,
        };
        Some((hop.ifindex, headers))
    }
}

/// Whether both ends are VTEPs of the tables.
fn is_known(snapshot: &Snapshot, target: &Target) -> bool {
    snapshot.find_vtep(target.address).is_some()
        && (snapshot.vnis().any(|table| table.tunnel.local == target.local)
            || snapshot.kernel_vnis().values().any(|vni| vni.tunnel.local == target.local))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No secret that can be guessed: vtepd does not start.
    #[test]
    fn without_random_numbers_there_is_no_secret() {
        let error = secret(|_| Err(io::ErrorKind::Unsupported.into())).unwrap_err();
        assert!(error.to_string().contains("no random numbers"), "{error}");
        let fill = |byte| secret(|bytes| io::Read::read_exact(&mut io::repeat(byte), bytes));
        let of = |byte| seed(&fill(byte).unwrap());
        assert!(of(1) != of(2) && of(1) == of(1));
    }

    #[test]
    fn after_errors_probing_goes_on() {
        let stop = AtomicBool::new(false);
        let (mut turns, mut pauses) = (0, Vec::new());
        let turn = || {
            turns += 1;
            stop.store(turns == 10, Ordering::Relaxed);
            if turns == 8 { Ok(()) } else { Err(io::ErrorKind::NetworkDown.into()) }
        };
        run(&stop, turn, |pause| pauses.push(pause.as_millis()));
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000, 50, 100]);
    }
}
