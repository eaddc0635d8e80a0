//! AllReduce of real vectors: a host adds float32 numbers with others, over RoCE connections.
//!
//! Each host has a process of its own. All agree on queue pair and sequence numbers by a seed, so
//! that they exchange nothing before. A host sends to the rank before it, and receives from the rank
//! after it. Each message is split over all queue pairs, as with NCCL_IB_SPLIT_DATA_ON_QPS.

mod ring;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use experiment::random::Random;
use fabric::arp::{ArpError, announce, resolve};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use roce::{
    Address, Completion, Connection, End, EndpointError, Handle, LENGTH_MAX, Memory, Operation,
    Place, Receive, Region, Settings, SourcePort, Status, WorkRequest,
};
use wire::Psn;

use crate::endpoint::{Nic, NicError};
use crate::numbers::Numbers;

/// How long to wait for the ARP answer of a neighbour.
const RESOLVE_LIMIT: Duration = Duration::from_secs(10);
/// How often to look whether to stop.
const LOOK: Duration = Duration::from_millis(50);
/// The key of the vector.
const VECTOR: u32 = 0;
/// The key of what arrives and is added.
const ARRIVED: u32 = 1;

/// A sum could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum AllReduceError {
    /// A setting is out of range.
    #[error("{name} is {value}: use {range}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The values that are valid.
        range: String,
    },
    /// The endpoint failed.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A queue pair or request was refused.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A neighbour does not answer.
    #[error("cannot reach the neighbours in the ring: {0}")]
    Unreachable(#[from] ArpError),
    /// A connection failed.
    #[error(
        "a connection to {peer} failed: {status}. A longer retransmission timer or more retries \
         bridge longer failures"
    )]
    Connection {
        /// The neighbour.
        peer: Ipv4Addr,
        /// The failure.
        status: Status,
    },
    /// It took too long.
    #[error(
        "the sum was not complete after {} s: all hosts must ask for it, or the limit be raised",
        .0.as_secs_f64()
    )]
    TooLong(Duration),
    /// The user interrupted it.
    #[error("interrupted")]
    Interrupted,
}

/// A host, and how it reaches the others. All of them have the same values but `rank` and
/// `interface`.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its rank.
    pub rank: usize,
    /// The IPv4 address of each rank.
    pub addresses: Vec<Ipv4Addr>,
    /// The interface, in the calling thread's namespace.
    pub interface: String,
    /// Queue pairs between two neighbours.
    pub queue_pairs: u32,
    /// Settings of the queue pairs.
    pub settings: Settings,
    /// How the inner source port is chosen.
    pub source_port: SourcePort,
    /// Seed of queue pair numbers and sequence numbers.
    pub seed: u64,
    /// How long a sum may take.
    pub limit: Duration,
}

impl Member {
    /// The rank that this one sends to.
    const fn before(&self) -> usize {
        (self.rank + self.addresses.len() - 1) % self.addresses.len()
    }

    /// Its address; the unspecified one if there is no such rank.
    fn address(&self, rank: usize) -> Ipv4Addr {
        self.addresses.get(rank).copied().unwrap_or(Ipv4Addr::UNSPECIFIED)
    }

    fn check(&self) -> Result<(), AllReduceError> {
        let ranks = self.addresses.len();
        let wrong = |name, value, range| Err(AllReduceError::Setting { name, value, range });
        match self {
            _ if !(2..=1024).contains(&ranks) => {
                wrong("the number of addresses", ranks, "2 to 1024".to_owned())
            }
            _ if self.rank >= ranks => wrong("the rank", self.rank, format!("0 to {}", ranks - 1)),
            Self { queue_pairs: 0, .. } => {
                wrong("the number of queue pairs", 0, "at least 1".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The memory of a host.
#[derive(Debug)]
struct Vectors {
    vector: Region,
    arrived: Region,
}

impl Vectors {
    fn new(capacity: usize) -> Self {
        let region = |key| Region { key, base: 0, bytes: vec![0; capacity] };
        Self { vector: region(VECTOR), arrived: region(ARRIVED) }
    }

    /// Adds what has arrived to the own numbers.
    fn add(&mut self, part: Range<usize>) {
        let own = self.vector.bytes.get_mut(part.clone()).unwrap_or_default();
        ring::add(own, self.arrived.bytes.get(part).unwrap_or_default());
    }
}

impl Memory for Vectors {
    fn read(&self, key: u32, address: u64, into: &mut [u8]) -> bool {
        self.vector.read(key, address, into)
    }

    fn write(&mut self, key: u32, address: u64, from: &[u8]) -> bool {
        self.vector.write(key, address, from) || self.arrived.write(key, address, from)
    }
}

/// A host of an AllReduce.
pub struct AllReduce {
    member: Member,
    nic: Nic<Vectors>,
    /// The queue pairs to the rank before this one.
    pairs: Vec<Handle>,
    /// The number of the next sum.
    number: u32,
    /// Bytes that have arrived, by the immediate data of their messages.
    received: HashMap<u32, usize>,
    /// Requests that are not complete.
    pending: usize,
}

impl AllReduce {
    /// Opens the endpoint for vectors of at most `capacity` bytes, and connects it to its
    /// neighbours in the ring. They need not be there yet, but their hosts must answer ARP.
    ///
    /// # Errors
    /// [`AllReduceError`].
    pub fn open(member: Member, capacity: usize) -> Result<Self, AllReduceError> {
        member.check()?;
        let (memory, settings) = (Vectors::new(capacity), member.settings.clone());
        let mut nic = Nic::with_memory(&member.interface, settings, memory)?;
        announce(&member.interface)?;
        let (mut numbers, mut random) = (Numbers::default(), Random::new(member.seed));
        let (ranks, mut pairs) = (member.addresses.len(), Vec::new());
        // A ring of two has one link.
        let links = if ranks == 2 { 1 } else { ranks };
        for low in 0..links {
            let high = (low + 1) % ranks;
            let peer = match member.rank {
                rank if rank == low => Some(high),
                rank if rank == high => Some(low),
                _ => None,
            };
            let ip = peer.map(|peer| member.address(peer));
            let mac = ip.map(|ip| resolve(ip, RESOLVE_LIMIT)).transpose()?;
            for _ in 0..member.queue_pairs {
                // Every host draws the numbers of all.
                let mut draw = || (numbers.draw(&mut random), Psn::new(random.next() as u32));
                let (of_low, of_high) = (draw(), draw());
                let (Some(peer), Some(ip), Some(mac)) = (peer, ip, mac) else { continue };
                let (own, other) =
                    if member.rank == low { (of_low, of_high) } else { (of_high, of_low) };
                let end = |(number, first), address| End { number, first, address };
                let connection = Connection {
                    local: end(own, nic.address()),
                    remote: end(other, Address { mac, ip }),
                    source_port: member.source_port,
                };
                let handle = nic.endpoint.connect(&connection)?;
                let receive = Receive { id: 0, place: Place::default(), length: 0 };
                nic.endpoint.post_endless_receive(handle, receive)?;
                if peer == member.before() {
                    pairs.push(handle);
                }
            }
        }
        Ok(Self { member, nic, pairs, number: 0, received: HashMap::new(), pending: 0 })
    }

    /// Replaces a vector of float32 numbers, in the byte order of this machine, by the sum of those
    /// of all hosts. Each host must call it, for vectors of the same length.
    ///
    /// # Errors
    /// [`AllReduceError`].
    pub fn sum(&mut self, vector: &mut [u8], stop: &AtomicBool) -> Result<(), AllReduceError> {
        let capacity = self.nic.memory.vector.bytes.len();
        let own = self.nic.memory.vector.bytes.get_mut(..vector.len());
        let Some(own) = own.filter(|_| vector.len().is_multiple_of(ring::ELEMENT)) else {
            let range = format!("a multiple of {} up to {capacity}", ring::ELEMENT);
            let value = vector.len();
            return Err(AllReduceError::Setting { name: "the number of bytes", value, range });
        };
        own.copy_from_slice(vector);
        let until = Instant::now() + self.member.limit;
        let ranks = self.member.addresses.len();
        for (step, at) in ring::steps(self.member.rank, ranks, vector.len()).zip(0..) {
            let immediate = (self.number & 0xffff) << 16 | at;
            let target = if step.add { ARRIVED } else { VECTOR };
            self.post(step.send, target, immediate)?;
            let expected = step.receive.len();
            self.work_until(|own| own.has(immediate) >= expected, until, stop)?;
            self.received.remove(&immediate);
            if step.add {
                self.nic.memory.add(step.receive);
            }
        }
        self.work_until(|own| own.pending == 0, until, stop)?;
        self.number = self.number.wrapping_add(1);
        let sum = self.nic.memory.vector.bytes.get(..vector.len()).unwrap_or_default();
        vector.copy_from_slice(sum);
        Ok(())
    }

    /// Serves the neighbours until `input` is readable. Returns `false` if `stop` was set before.
    ///
    /// # Errors
    /// [`AllReduceError`].
    pub fn serve(
        &mut self,
        input: BorrowedFd<'_>,
        stop: &AtomicBool,
    ) -> Result<bool, AllReduceError> {
        while !stop.load(Ordering::Relaxed) {
            let mut descriptors = [PollFd::new(input, PollFlags::POLLIN)];
            if poll(&mut descriptors, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
                return Ok(true);
            }
            let wake = self.nic.work()?;
            self.collect()?;
            self.nic.wait(wake, LOOK, &[input])?;
        }
        Ok(false)
    }

    /// Posts the messages of a step: a part of the vector, in equal parts on all queue pairs.
    fn post(
        &mut self,
        part: Range<usize>,
        target: u32,
        immediate: u32,
    ) -> Result<(), AllReduceError> {
        let share = part.len().div_ceil(self.pairs.len().max(1));
        let share = share.next_multiple_of(ring::ELEMENT).min(LENGTH_MAX as usize).max(1);
        let starts = part.clone().step_by(share);
        for (start, pair) in starts.zip(self.pairs.iter().cycle()) {
            let length = share.min(part.end - start);
            let place = |key| Place { key, address: start as u64 };
            let immediate = Some(immediate);
            let work = WorkRequest {
                id: 0,
                operation: Operation::Write { remote: place(target), immediate },
                local: place(VECTOR),
                length: u32::try_from(length).unwrap_or(u32::MAX),
            };
            self.nic.endpoint.post(*pair, work, self.nic.now())?;
            self.pending += 1;
        }
        Ok(())
    }

    fn has(&self, immediate: u32) -> usize {
        self.received.get(&immediate).copied().unwrap_or_default()
    }

    /// Sends and receives until something is so.
    fn work_until(
        &mut self,
        is_so: impl Fn(&Self) -> bool,
        until: Instant,
        stop: &AtomicBool,
    ) -> Result<(), AllReduceError> {
        loop {
            self.collect()?;
            if is_so(self) {
                return Ok(());
            }
            if stop.load(Ordering::Relaxed) {
                return Err(AllReduceError::Interrupted);
            }
            if Instant::now() > until {
                return Err(AllReduceError::TooLong(self.member.limit));
            }
            let wake = self.nic.work()?;
            if !self.nic.endpoint.has_completions() {
                self.nic.wait(wake, LOOK, &[])?;
            }
        }
    }

    /// Handles completions.
    fn collect(&mut self) -> Result<(), AllReduceError> {
        while let Some(completion) = self.nic.endpoint.completion() {
            match completion {
                Completion::Request { status: Status::Success, .. } => self.pending -= 1,
                Completion::Request { status, .. } => {
                    let peer = self.member.address(self.member.before());
                    return Err(AllReduceError::Connection { peer, status });
                }
                // A neighbour may be ahead, in the next step or sum.
                Completion::Received { length, immediate, .. } => {
                    let place = self.received.entry(immediate.unwrap_or_default()).or_default();
                    *place += length as usize;
                }
            }
        }
        Ok(())
    }
}
