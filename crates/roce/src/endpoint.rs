//! An endpoint: the queue pairs of a host on one interface.

use std::collections::{HashMap, VecDeque};

use wire::QueuePair;

use crate::context::Context;
use crate::counters::Counters;
use crate::frames::Frames;
use crate::histogram::Histogram;
use crate::memory::Memory;
use crate::packet::{Seen, see};
use crate::queue_pair::{Connection, Pair};
use crate::settings::{SettingError, Settings};
use crate::work::{Completion, Handle, LENGTH_MAX, Receive, Status, WorkRequest};

/// How far sending may lag behind the rate and still catch up, in nanoseconds. A longer delay would
/// cause a burst that overflows queues.
const CATCH_UP: u64 = 2_000_000;

/// A queue pair or request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The number is in use.
    #[error("queue pair {0} exists already: choose another number")]
    Exists(QueuePair),
    /// There is no such queue pair.
    #[error("there is no queue pair with this handle")]
    NoQueuePair,
    /// The message is too long.
    #[error("a message has at most {LENGTH_MAX} bytes, not {0}: split it")]
    TooLong(u32),
}

/// The queue pairs of a host. Times are nanoseconds from any origin and must not decrease.
#[derive(Debug)]
pub struct Endpoint {
    settings: Settings,
    pairs: Vec<Pair>,
    by_number: HashMap<u32, usize>,
    counters: Counters,
    latencies: Histogram,
    completions: VecDeque<Completion>,
    /// The queue pair whose turn it is.
    turn: usize,
    /// When the rate of the endpoint allows the next frame.
    next_at: u64,
}

impl Endpoint {
    /// An endpoint without queue pairs.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn new(settings: Settings) -> Result<Self, SettingError> {
        settings.check()?;
        Ok(Self {
            settings,
            pairs: Vec::new(),
            by_number: HashMap::new(),
            counters: Counters::default(),
            latencies: Histogram::default(),
            completions: VecDeque::new(),
            turn: 0,
            next_at: 0,
        })
    }

    /// Adds a queue pair that is ready to send and to receive.
    ///
    /// # Errors
    /// [`EndpointError::Exists`] if the local number is in use.
    pub fn connect(&mut self, connection: &Connection) -> Result<Handle, EndpointError> {
        let number = connection.local.number;
        if self.by_number.contains_key(&number.get()) {
            return Err(EndpointError::Exists(number));
        }
        let handle = Handle(self.pairs.len());
        self.by_number.insert(number.get(), handle.0);
        self.pairs.push(Pair::new(connection, &self.settings));
        Ok(handle)
    }

    /// Posts a request at time `now`. Requests of a queue pair are executed in order. If the queue
    /// pair has failed, the request completes with [`Status::Flushed`].
    ///
    /// # Errors
    /// [`EndpointError::NoQueuePair`] or [`EndpointError::TooLong`].
    pub fn post(&mut self, at: Handle, work: WorkRequest, now: u64) -> Result<(), EndpointError> {
        if work.length > LENGTH_MAX {
            return Err(EndpointError::TooLong(work.length));
        }
        let (pair, mut context) = self.context(at, now).ok_or(EndpointError::NoQueuePair)?;
        pair.requester.post(work, &mut context);
        Ok(())
    }

    /// Posts a receive buffer.
    ///
    /// # Errors
    /// [`EndpointError::NoQueuePair`].
    pub fn post_receive(&mut self, at: Handle, receive: Receive) -> Result<(), EndpointError> {
        let pair = self.pairs.get_mut(at.0).ok_or(EndpointError::NoQueuePair)?;
        pair.responder.post(receive);
        Ok(())
    }

    /// Uses a receive buffer for any number of messages, after those that are posted.
    ///
    /// # Errors
    /// [`EndpointError::NoQueuePair`].
    pub fn post_endless_receive(
        &mut self,
        at: Handle,
        receive: Receive,
    ) -> Result<(), EndpointError> {
        let pair = self.pairs.get_mut(at.0).ok_or(EndpointError::NoQueuePair)?;
        pair.responder.post_endless(receive);
        Ok(())
    }

    fn context(&mut self, at: Handle, now: u64) -> Option<(&mut Pair, Context<'_>)> {
        let pair = self.pairs.get_mut(at.0)?;
        let context = Context {
            now,
            queue_pair: at,
            settings: &self.settings,
            counters: &mut self.counters,
            latencies: &mut self.latencies,
            completions: &mut self.completions,
        };
        Some((pair, context))
    }

    /// Handles a received frame, from its Ethernet header on. Frames for others are ignored.
    pub fn receive(&mut self, now: u64, frame: &[u8], memory: &mut impl Memory) {
        let packet = match see(frame, self.settings.reth_in_each) {
            Seen::Packet(packet) => packet,
            Seen::Damaged => {
                self.counters.rx_icrc_errors += 1;
                return;
            }
            Seen::Foreign => return,
        };
        let number = packet.header.destination.get();
        let Some(at) = self.by_number.get(&number).copied() else { return };
        let Some((pair, mut context)) = self.context(Handle(at), now) else { return };
        if pair.remote.address.ip != packet.source {
            return;
        }
        context.counters.rx_packets += 1;
        context.counters.rx_bytes += frame.len() as u64;
        pair.receive(&packet, memory, &mut context);
    }

    /// Appends the frames that are due, until there are `limit`. Queue pairs take turns. Returns
    /// when to call again if nothing arrives before; `None` if only input can cause more frames.
    pub fn transmit(
        &mut self,
        now: u64,
        frames: &mut Frames,
        limit: usize,
        memory: &impl Memory,
    ) -> Option<u64> {
        for at in 0..self.pairs.len() {
            if let Some((pair, mut context)) = self.context(Handle(at), now) {
                pair.expire(&mut context);
            }
        }
        let mut idle = 0;
        while idle < self.pairs.len() {
            if frames.len() >= limit {
                return Some(now);
            }
            if self.next_at > now {
                break;
            }
            let sent = self.burst(now, frames, limit, memory);
            idle = if sent { 0 } else { idle + 1 };
            self.turn = (self.turn + 1) % self.pairs.len().max(1);
        }
        let wakes = self.pairs.iter().filter_map(|pair| pair.wake(now, &self.settings));
        let wake = wakes.min()?;
        Some(if wake <= now { self.next_at.max(now) } else { wake })
    }

    /// Sends the frames of one turn. Returns whether there was one.
    fn burst(&mut self, now: u64, frames: &mut Frames, limit: usize, memory: &impl Memory) -> bool {
        let (rate, burst) = (self.settings.rate, self.settings.burst);
        let mut next_at = self.next_at;
        let at = Handle(self.turn);
        let Some((pair, mut context)) = self.context(at, now) else { return false };
        let mut count = 0;
        while count < burst && frames.len() < limit && next_at <= now {
            let Some(bytes) = pair.emit(frames, memory, &mut context) else { break };
            context.counters.tx_packets += 1;
            context.counters.tx_bytes += bytes as u64;
            if rate > 0 {
                let time = (bytes as u64 * 8_000_000_000).div_ceil(rate);
                next_at = next_at.max(now.saturating_sub(CATCH_UP)) + time;
            }
            count += 1;
        }
        self.next_at = next_at;
        count > 0
    }

    /// The next completion, oldest first.
    pub fn completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Whether a completion waits to be taken.
    #[must_use]
    pub fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// The number of requests of a queue pair that are not complete.
    #[must_use]
    pub fn pending(&self, at: Handle) -> usize {
        self.pairs.get(at.0).map_or(0, |pair| pair.requester.pending())
    }

    /// Why a queue pair failed, if it did.
    #[must_use]
    pub fn failed(&self, at: Handle) -> Option<Status> {
        self.pairs.get(at.0)?.requester.failed()
    }

    /// The rate of a queue pair in bits per second, if congestion control limits it.
    #[must_use]
    pub fn rate(&self, at: Handle) -> Option<f64> {
        self.pairs.get(at.0)?.rate()
    }

    /// The settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The counters of all queue pairs.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Completion times of requests: from posting to the last acknowledgement.
    pub const fn latencies(&mut self) -> &mut Histogram {
        &mut self.latencies
    }
}
