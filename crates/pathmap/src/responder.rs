//! Opens received messages, and answers probes.
//!
//! Every owner of the key can send probes in the name of another VTEP. Each answer therefore has a
//! token, which only the owner of that address receives, and which it repeats in its probes. Probes
//! with the token have a limit and a window of ids of their own, so that others cannot use them up.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use wire::as_ipv6;

use crate::key::Key;
use crate::limit::Limit;
use crate::message::arrivals::ArrivalReport;
use crate::message::{Answer, Message, Probe, Report};
use crate::packet::Received;
use crate::replay::Window;

/// Probes may arrive this part of a second closer together than they were sent.
const JITTER_PART: u32 = 4;
/// Most answers in a second, and at once, to a VTEP whose probes do not have the token. Two ports on
/// each of 64 next hops are probed, in two ways, before the first answer.
const UNCONFIRMED: u32 = 256;
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
    /// Probes above the limit of their sender.
    pub limited: u64,
}

/// Opens messages and answers probes.
#[derive(Debug)]
pub struct Responder {
    key: Key,
    /// Makes tokens.
    secret: Key,
    rate: u32,
    peers: HashMap<IpAddr, Peer>,
    /// What was received.
    pub counts: Counts,
}

#[derive(Debug)]
struct Peer {
    /// The ids of probes with the token. `None` before the first one.
    window: Option<Window>,
    /// What it repeats, and how many it has got before. It gets another one when it may have started
    /// again with an older epoch: what was recorded has the token before.
    token: u32,
    tokens: u32,
    limit: Limit,
    /// The nonces of the last probes without the token that were answered.
    unconfirmed: VecDeque<u32>,
    unconfirmed_limit: Limit,
    last: Duration,
}

impl Peer {
    fn new(rate: u32, token: u32) -> Self {
        let unconfirmed = UNCONFIRMED.min(rate);
        Self {
            window: None,
            token,
            tokens: 0,
            limit: Limit::new(rate, rate + rate / JITTER_PART),
            unconfirmed: VecDeque::new(),
            unconfirmed_limit: Limit::new(unconfirmed, unconfirmed),
            last: Duration::ZERO,
        }
    }

    /// Whether the sender may have started again with an older epoch, or the probe was recorded.
    fn may_be_set_back(&self, probe: &Probe, now: Duration) -> bool {
        self.window.as_ref().is_some_and(|window| window.may_be_set_back(probe.epoch, now))
    }

    /// Whether a probe was not seen before. One without the token changes nothing for those with it.
    fn is_new(&mut self, probe: &Probe, is_confirmed: bool, now: Duration) -> bool {
        let (epoch, id) = (probe.epoch, probe.id);
        match &mut self.window {
            Some(window) if is_confirmed => window.accept(epoch, id, now),
            window if is_confirmed => {
                *window = Some(Window::new(epoch, id, now));
                true
            }
            Some(window) if !window.is_new(epoch, id) && !window.may_be_set_back(epoch, now) => {
                false
            }
            _ => !self.unconfirmed.contains(&probe.nonce),
        }
    }

    /// Whether one more probe may be answered. If so, it is counted.
    fn take(&mut self, probe: &Probe, is_confirmed: bool, now: Duration) -> bool {
        if is_confirmed {
            return self.limit.take(now);
        }
        let is_allowed = self.unconfirmed_limit.take(now);
        if is_allowed {
            if self.unconfirmed.len() >= UNCONFIRMED as usize {
                self.unconfirmed.pop_front();
            }
            self.unconfirmed.push_back(probe.nonce);
        }
        is_allowed
    }
}

/// What a VTEP repeats in its probes to show that it receives answers: the number-th one. Not 0.
fn token(secret: &Key, of: IpAddr, number: u32) -> u32 {
    let bits = as_ipv6(of).to_bits();
    let [a, b, c, d] = [96, 64, 32, 0].map(|shift| (bits >> shift) as u32);
    secret.number([a, b, c, d, number]).max(1)
}

impl Responder {
    /// A responder for the owners of `key`. `secret` is a key of this process alone. It answers
    /// `rate` probes of each VTEP in a second: as many as [`crate::prober::Settings::rate`] lets a
    /// VTEP send.
    #[must_use]
    pub fn new(key: Key, secret: Key, rate: u32) -> Self {
        Self { key, secret, rate, peers: HashMap::new(), counts: Counts::default() }
    }

    /// The message in a packet. `None` if it is not from an owner of the key, is malformed, or
    /// contradicts its outer headers.
    ///
    /// The check of the tag takes about as long as reading the packet. A limit that applies before it
    /// must not be one that packets without the key use up: answers would be missing that tell a dead
    /// path from a silent VTEP. Packets with the token have their own.
    pub fn open(&mut self, received: &Received<'_>) -> Option<Message> {
        let bytes = self.key.open(received.ends, received.message);
        let message = bytes.and_then(|bytes| Message::parse(bytes).ok());
        let message = message.filter(|message| match message {
            Message::Probe(probe) | Message::Arrivals(ArrivalReport { head: probe, .. }) => {
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
        let (token, _) = self.admit(now, &probe, received.ends.0)?;
        Some(Answer {
            probe,
            arrival,
            token,
            ttl_seen: received.ttl,
            recorded: received.recorded.clone().unwrap_or_default(),
            report: Report::default(),
        })
    }

    /// Whether to take a report with this head. It must have the token: nobody else can report in the
    /// name of its sender.
    pub fn takes(&mut self, now: Duration, head: &Probe, received: &Received<'_>) -> bool {
        self.admit(now, head, received.ends.0).is_some_and(|(_, is_confirmed)| is_confirmed)
    }

    /// The token of the sender of a probe, and whether the probe has it. `None` if it was seen before or
    /// is one too many.
    fn admit(&mut self, now: Duration, probe: &Probe, from: IpAddr) -> Option<(u32, bool)> {
        if !self.peers.contains_key(&from) {
            self.make_room();
        }
        let peer = self.peers.entry(from);
        let peer = peer.or_insert_with(|| Peer::new(self.rate, token(&self.secret, from, 0)));
        let has_token = probe.token == peer.token;
        let is_confirmed = has_token && !peer.may_be_set_back(probe, now);
        if has_token && !is_confirmed {
            peer.window = None;
            peer.tokens = peer.tokens.wrapping_add(1);
            peer.token = token(&self.secret, from, peer.tokens);
        }
        if !peer.is_new(probe, is_confirmed, now) {
            self.counts.replayed += 1;
            return None;
        }
        peer.last = now;
        if !peer.take(probe, is_confirmed, now) {
            self.counts.limited += 1;
            return None;
        }
        Some((peer.token, is_confirmed))
    }

    /// Forgets the VTEP that was silent for longest if there is no room for another one; first one
    /// that never had the token.
    fn make_room(&mut self) {
        if self.peers.len() < PEERS {
            return;
        }
        let oldest = self
            .peers
            .iter()
            .min_by_key(|(_, peer)| (peer.window.is_some(), peer.last))
            .map(|(at, _)| *at);
        oldest.and_then(|oldest| self.peers.remove(&oldest));
    }

    /// The number of VTEPs whose probes are remembered.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.len()
    }
}
