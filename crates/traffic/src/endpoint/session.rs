//! One connection between two hosts: a passive side that serves requests, and an active side that
//! sends them. Both speak perftest's exchange, so that the other side may be perftest.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use roce::{
    Completion, Connection, Counters, End, EndpointError, Handle, LENGTH_MAX, Operation, Place,
    Receive, Settings, SourcePort, Status, WorkRequest,
};
use serde::Serialize;
use wire::{Psn, QueuePair};

use super::perftest::{Control, ControlError, KEYS, Keys, NUMBER, VERSION, mtu_code, mtu_of};
use super::{Nic, NicError};
use crate::workload::Latencies;
use experiment::random::Random;
use fabric::arp::{ArpError, resolve};

/// How long to wait for an ARP answer.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);
/// How long to wait between attempts to accept a connection.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(10);
/// How often to look whether to stop.
const LOOK: Duration = Duration::from_millis(50);
/// The seed of the content that both sides know.
const PATTERN: u64 = 0;
/// The remote key of the memory. Every address is valid.
const KEY: u32 = 1;

/// A session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The exchange over TCP failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The endpoint failed.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A queue pair or request was refused.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The peer cannot be reached.
    #[error(transparent)]
    Arp(#[from] ArpError),
    /// The peer sent something else than perftest does.
    #[error("the peer's {0} is not understood: it must run perftest or lab")]
    Peer(&'static str),
    /// A request failed.
    #[error("a request failed: {0}")]
    Failed(Status),
}

impl From<io::Error> for SessionError {
    fn from(error: io::Error) -> Self {
        Self::Control(error.into())
    }
}

/// What both sides need.
#[derive(Debug, Clone)]
pub struct Side {
    /// The interface, in the calling thread's namespace.
    pub interface: String,
    /// Settings of the queue pairs. The smaller path MTU of both sides counts.
    pub settings: Settings,
    /// How the inner source port is chosen.
    pub source_port: SourcePort,
    /// Seed of queue pair numbers and sequence numbers.
    pub seed: u64,
}

/// What the active side requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// RDMA writes.
    Write,
    /// Sends.
    Send,
    /// RDMA reads.
    Read,
}

/// The requests of the active side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requests {
    /// The kind of the requests.
    pub kind: Kind,
    /// Bytes of a message.
    pub message: u32,
    /// Messages of each queue pair.
    pub count: u64,
    /// Messages of a queue pair that are posted and not complete.
    pub depth: u64,
    /// Number of queue pairs.
    pub queue_pairs: u32,
}

/// The result of one side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Session {
    /// The peer's address.
    pub peer: Ipv4Addr,
    /// The path MTU that both sides use, in bytes.
    pub mtu: u32,
    /// Number of queue pairs.
    pub queue_pairs: u32,
    /// Messages that completed (active side), or that consumed a receive buffer (passive side).
    pub messages: u64,
    /// Bytes of those messages.
    pub bytes: u64,
    /// Seconds from the first request to the last completion.
    pub seconds: f64,
    /// Payload in bits per second.
    pub goodput: f64,
    /// Completion times of requests.
    pub latencies: Latencies,
    /// Messages whose bytes are not those that lab sends. Those of perftest never are.
    pub mismatches: u64,
    /// Counters of this side.
    pub counters: Counters,
}

/// Queue pairs of this side, and what it tells about them.
struct Pairs<'a> {
    side: &'a Side,
    random: Random,
    /// The keys of this side and of the peer.
    keys: Vec<(Keys, Option<Keys>, Option<Handle>)>,
}

impl<'a> Pairs<'a> {
    fn new(side: &'a Side) -> Self {
        Self { side, random: Random::new(side.seed), keys: Vec::new() }
    }

    /// Draws the keys of another queue pair.
    fn draw(&mut self, nic: &Nic) -> Keys {
        let number = 2 + self.random.below(u64::from(QueuePair::MAX) - 1);
        let [.., high, middle, low] = number.to_be_bytes();
        let keys = Keys {
            reads: self.side.settings.reads.min(16),
            number: QueuePair::from_be_bytes([high, middle, low]),
            first: Psn::new(self.random.next() as u32),
            key: KEY,
            address: 0,
            ip: nic.address().ip,
        };
        self.keys.push((keys, None, None));
        keys
    }

    /// Connects the last queue pair that was drawn.
    fn connect(&mut self, nic: &mut Nic, remote: Keys) -> Result<(), SessionError> {
        let Some((own, peer, handle)) = self.keys.last_mut() else { return Ok(()) };
        let address = roce::Address { mac: resolve(remote.ip, RESOLVE_LIMIT)?, ip: remote.ip };
        let connection = Connection {
            local: End { number: own.number, first: own.first, address: nic.address() },
            remote: End { number: remote.number, first: remote.first, address },
            source_port: self.side.source_port,
        };
        let connected = nic.endpoint.connect(&connection)?;
        let receive = Receive { id: 0, place: Place::default(), length: LENGTH_MAX };
        nic.endpoint.post_endless_receive(connected, receive)?;
        (*peer, *handle) = (Some(remote), Some(connected));
        Ok(())
    }
}

/// Waits for a peer, and serves its requests until it closes the control connection. `None` if
/// `stop` was set before one came.
///
/// # Errors
/// [`SessionError`].
pub fn serve(
    listener: &TcpListener,
    side: &Side,
    stop: &AtomicBool,
) -> Result<Option<Session>, SessionError> {
    listener.set_nonblocking(true)?;
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        std::thread::sleep(ACCEPT_INTERVAL);
    };
    let mut control = Control::new(stream, stop)?;
    let mut settings = side.settings.clone();
    for own in [&VERSION[..], &4096_u32.to_be_bytes(), &64_u32.to_be_bytes()] {
        let mut theirs = [0; 16];
        let place = theirs.get_mut(..own.len()).unwrap_or_default();
        if !control.receive(place, None)? {
            return Err(SessionError::Peer("version"));
        }
        control.send(own)?;
    }
    let mut code = [0; 2];
    control.receive(&mut code, None)?;
    control.send(&[mtu_code(settings.mtu), 0])?;
    settings.mtu = settings.mtu.min(mtu_of(code[0]).ok_or(SessionError::Peer("MTU"))?);
    let mut nic = Nic::open(&side.interface, settings, PATTERN)?;
    let mut pairs = Pairs::new(side);
    let (mut first, start) = ([0], Instant::now());
    // Keys begin with the text "0000". A number of the report cannot begin so. At the end, perftest
    // says "done".
    while control.receive(&mut first, Some(&mut nic))? && first != [b'd'] {
        let keys = first[0] == b'0';
        let mut message = vec![first[0]; if keys { KEYS } else { NUMBER }];
        control.receive(message.get_mut(1..).unwrap_or_default(), Some(&mut nic))?;
        if let (true, Ok(message)) = (keys, <&[u8; KEYS]>::try_from(message.as_slice())) {
            let theirs = Keys::decode(message).ok_or(SessionError::Peer("queue pair"))?;
            let known = pairs
                .keys
                .iter()
                .find(|(_, peer, _)| peer.is_some_and(|peer| peer.number == theirs.number));
            let own = match known {
                Some((own, ..)) => *own,
                None => {
                    let own = pairs.draw(&nic);
                    pairs.connect(&mut nic, theirs)?;
                    own
                }
            };
            control.send(&own.encode())?;
        } else {
            control.send(&message)?;
        }
    }
    let (mut messages, mut bytes) = (0, 0);
    while let Some(completion) = nic.endpoint.completion() {
        if let Completion::Received { length, .. } = completion {
            messages += 1;
            bytes += u64::from(length);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let peer = pairs.keys.first().and_then(|(_, peer, _)| *peer);
    let peer = peer.ok_or(SessionError::Peer("queue pair"))?.ip;
    let count = u32::try_from(pairs.keys.len()).unwrap_or(u32::MAX);
    Ok(Some(session(&mut nic, (peer, count), (messages, bytes), seconds)))
}

fn session(
    nic: &mut Nic,
    (peer, queue_pairs): (Ipv4Addr, u32),
    (messages, bytes): (u64, u64),
    seconds: f64,
) -> Session {
    Session {
        peer,
        mtu: nic.endpoint.settings().mtu,
        queue_pairs,
        messages,
        bytes,
        seconds,
        goodput: bytes as f64 * 8.0 / seconds.max(1e-9),
        latencies: Latencies::from(&*nic.endpoint.latencies()),
        mismatches: nic.memory.mismatches,
        counters: nic.endpoint.counters(),
    }
}

/// Connects to a passive side, lab's or perftest's, and sends requests.
///
/// # Errors
/// [`SessionError`], for example if nobody listens.
pub fn connect(
    (server, port): (Ipv4Addr, u16),
    side: &Side,
    requests: Requests,
    stop: &AtomicBool,
) -> Result<Session, SessionError> {
    let mut control = Control::new(TcpStream::connect((server, port))?, stop)?;
    let mut settings = side.settings.clone();
    for own in [&VERSION[..], &4096_u32.to_be_bytes(), &64_u32.to_be_bytes()] {
        control.ask(&mut own.to_vec(), None)?;
    }
    let mut code = [mtu_code(settings.mtu), 0];
    control.ask(&mut code, None)?;
    settings.mtu = settings.mtu.min(mtu_of(code[0]).ok_or(SessionError::Peer("MTU"))?);
    let mut nic = Nic::open(&side.interface, settings, PATTERN)?;
    let mut pairs = Pairs::new(side);
    for _ in 0..requests.queue_pairs {
        let mut message = pairs.draw(&nic).encode();
        control.ask(&mut message, None)?;
        let theirs = Keys::decode(&message).ok_or(SessionError::Peer("queue pair"))?;
        pairs.connect(&mut nic, theirs)?;
    }
    let all: Vec<Keys> = pairs.keys.iter().map(|(own, ..)| *own).collect();
    // perftest waits for each other after connecting, then prints the keys of all, and a sender
    // waits once more for the receive buffers.
    let one = all.get(..1).unwrap_or_default();
    let waits = match requests.kind {
        Kind::Send => [one, &all, one].concat(),
        Kind::Write | Kind::Read => [&all, one].concat(),
    };
    for keys in waits {
        control.ask(&mut keys.encode(), Some(&mut nic))?;
    }
    let start = Instant::now();
    transfer(&mut nic, &pairs, requests, stop)?;
    let seconds = start.elapsed().as_secs_f64();
    let messages = requests.count * u64::from(requests.queue_pairs);
    let bytes = messages * u64::from(requests.message);
    let result = session(&mut nic, (server, requests.queue_pairs), (messages, bytes), seconds);
    finish(&mut control, &mut nic, one, (requests, &result))?;
    Ok(result)
}

/// Tells the passive side that the requests are complete, and the result.
fn finish(
    control: &mut Control<'_>,
    nic: &mut Nic,
    one: &[Keys],
    (requests, result): (Requests, &Session),
) -> Result<(), SessionError> {
    if requests.kind != Kind::Send {
        for keys in one {
            control.ask(&mut keys.encode(), Some(&mut *nic))?;
        }
        // perftest's units: MiB/s, and millions of messages per second.
        let average = result.goodput / 8.0 / f64::from(1 << 20);
        let rate = result.messages as f64 / result.seconds.max(1e-9) / 1e6;
        for number in [
            u64::from(requests.message).to_be_bytes(),
            requests.count.to_be_bytes(),
            0_f64.to_be_bytes(),
            average.to_be_bytes(),
            rate.to_be_bytes(),
        ] {
            control.ask(&mut number.to_vec(), Some(&mut *nic))?;
        }
    }
    for keys in one {
        control.ask(&mut keys.encode(), Some(&mut *nic))?;
    }
    Ok(control.send(b"done\0")?)
}

/// Sends all requests and waits for their completions.
fn transfer(
    nic: &mut Nic,
    pairs: &Pairs<'_>,
    requests: Requests,
    stop: &AtomicBool,
) -> Result<(), SessionError> {
    let mut left: Vec<(Handle, WorkRequest, u64)> = Vec::new();
    for (_, remote, handle) in &pairs.keys {
        let (Some(remote), Some(handle)) = (remote, handle) else { continue };
        let remote = Place { key: remote.key, address: remote.address };
        let (operation, local) = match requests.kind {
            Kind::Write => (Operation::Write { remote, immediate: None }, remote),
            Kind::Send => (Operation::Send { immediate: None }, Place::default()),
            Kind::Read => (Operation::Read { remote }, remote),
        };
        let work = WorkRequest { id: 0, operation, local, length: requests.message };
        left.push((*handle, work, requests.count));
    }
    let mut pending = 0_u64;
    for (handle, work, left) in &mut left {
        for _ in 0..requests.depth.min(*left) {
            nic.endpoint.post(*handle, *work, nic.now())?;
            (*left, pending) = (*left - 1, pending + 1);
        }
    }
    while pending > 0 {
        if stop.load(Ordering::Relaxed) {
            return Err(ControlError::Interrupted.into());
        }
        let wake = nic.work()?;
        let mut idle = true;
        while let Some(completion) = nic.endpoint.completion() {
            let Completion::Request { queue_pair, status, .. } = completion else { continue };
            if status != Status::Success {
                return Err(SessionError::Failed(status));
            }
            (idle, pending) = (false, pending - 1);
            let next = left.iter_mut().find(|(handle, _, left)| *handle == queue_pair && *left > 0);
            if let Some((handle, work, left)) = next {
                nic.endpoint.post(*handle, *work, nic.now())?;
                (*left, pending) = (*left - 1, pending + 1);
            }
        }
        if idle {
            nic.wait(wake, LOOK, &[])?;
        }
    }
    Ok(())
}
