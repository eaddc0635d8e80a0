//! Opens received messages, and answers probes.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::key::Key;
use crate::limit::Limit;
use crate::message::{Answer, Message, Probe, Report};
use crate::packet::Received;
use crate::replay::Window;

/// Messages whose tag is checked in a second. More are dropped before that.
const MESSAGES: u32 = 50_000;
/// Probes may arrive this part of a second closer together than they were sent.
const JITTER_PART: u32 = 4;
/// VTEPs whose probes are remembered.
const PEERS: usize = 1024;

/// What became of the received messages, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Messages that were opened.
    pub opened: u64,
    /// Messages without the tag of our key, and those that are malformed.
    pub refused: u64,
    /// Probes that were seen before.
    pub replayed: u64,
    /// Messages above a rate limit.
    pub limited: u64,
}

/// Opens messages and answers probes.
#[derive(Debug)]
pub struct Responder {
    key: Key,
    rate: u32,
    limit: Limit,
    peers: HashMap<Ipv4Addr, Peer>,
    /// What was received.
    pub counts: Counts,
}

#[derive(Debug)]
struct Peer {
    window: Window,
    limit: Limit,
    last: Duration,
}

impl Responder {
    /// A responder for the owners of `key`. It answers `rate` probes of each VTEP in a second: as
    /// many as [`crate::prober::Settings::rate`] lets a VTEP send.
    #[must_use]
    pub fn new(key: Key, rate: u32) -> Self {
        let limit = Limit::new(MESSAGES, MESSAGES);
        Self { key, rate, limit, peers: HashMap::new(), counts: Counts::default() }
    }

    /// The message in a packet. `None` if it is not from an owner of the key, is malformed, or
    /// contradicts its outer headers.
    pub fn open(&mut self, now: Duration, received: &Received<'_>) -> Option<Message> {
        if !self.limit.take(now) {
            self.counts.limited += 1;
            return None;
        }
        let ends = (IpAddr::V4(received.ends.0), IpAddr::V4(received.ends.1));
        let bytes = self.key.open(ends, received.message);
        let message = bytes.and_then(|bytes| Message::parse(bytes).ok());
        let message = message.filter(|message| match message {
            Message::Probe(probe) => {
                probe.port == received.ports.0
                    && received.ttl <= probe.ttl
                    && probe.records == received.recorded.is_some()
            }
            Message::Answer(_) => true,
        });
        if message.is_some() {
            self.counts.opened += 1;
        } else {
            self.counts.refused += 1;
        }
        message
    }

    /// The answer to a probe that arrived by the uplink `arrival`, with an empty report. `None` if it
    /// was seen before or its sender probes too often.
    pub fn answer(
        &mut self,
        now: Duration,
        probe: Probe,
        received: &Received<'_>,
        arrival: u32,
    ) -> Option<Answer> {
        let from = received.ends.0;
        let new = match self.peers.get_mut(&from) {
            Some(peer) => peer.window.accept(probe.epoch, probe.id, now),
            None => {
                self.make_room();
                let limit = Limit::new(self.rate, self.rate + self.rate / JITTER_PART);
                let window = Window::new(probe.epoch, probe.id, now);
                self.peers.insert(from, Peer { window, limit, last: now });
                true
            }
        };
        if !new {
            self.counts.replayed += 1;
            return None;
        }
        let peer = self.peers.get_mut(&from)?;
        peer.last = now;
        if !peer.limit.take(now) {
            self.counts.limited += 1;
            return None;
        }
        Some(Answer {
            probe,
            arrival,
            ttl_seen: received.ttl,
            recorded: received.recorded.clone().unwrap_or_default(),
            report: Report::default(),
        })
    }

    /// Forgets the VTEP that was silent for longest if there is no room for another one.
    fn make_room(&mut self) {
        if self.peers.len() < PEERS {
            return;
        }
        let oldest = self.peers.iter().min_by_key(|(_, peer)| peer.last).map(|(at, _)| *at);
        oldest.and_then(|oldest| self.peers.remove(&oldest));
    }

    /// The number of VTEPs whose probes are remembered.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.len()
    }
}
