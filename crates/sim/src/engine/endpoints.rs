//! Hosts that are endpoints of the crate `roce`: frames with bytes, over the same fabric.
//!
//! The paths of frames are chosen as for other hosts. A RoCE acknowledgement does not name paths. So
//! the far end notes path and mark of each frame, as a VTEP would, and its next answer carries the
//! notes back.

use roce::{
    Address, Completion, Connection, Counters, End, Endpoint, Frames, Handle, LENGTH_MAX,
    Operation, Pattern, Place, SettingError, Settings, SourcePort, WorkRequest,
};
use spray::{Entropy, Signal, Spray as _};
use wire::roce::{Bth, opcode};
use wire::{MacAddr, Psn, QueuePair, ecn};

use super::Engine;
use crate::calendar::What;
use crate::packet::{Kind, Packet, flag};
use crate::table::Table;
use crate::time::Picos;

/// Bytes of the headers before the base transport header.
const BTH: usize = 42;

/// A host.
#[derive(Debug, Default)]
struct Station {
    endpoint: Option<Endpoint>,
    memory: Pattern,
    /// When the timer is set to.
    wakes_at: Picos,
}

/// A flow.
#[derive(Debug, Default)]
struct Pair {
    source: Option<Handle>,
    /// Messages that are not complete.
    messages: u64,
    /// Path and mark of frames that the target has and the source does not know of.
    notes: Vec<(u16, bool)>,
    /// The path of the last frame that arrived, which answers take.
    entropy: u16,
}

/// A frame on its way.
#[derive(Debug, Default)]
struct Carried {
    bytes: Vec<u8>,
    notes: Vec<(u16, bool)>,
}

/// All endpoints.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    hosts: Table<Station>,
    pairs: Table<Pair>,
    carried: Table<Carried>,
    buffer: Frames,
}

/// What all endpoints counted, and the messages whose bytes were wrong.
pub(super) struct Sums {
    pub(super) counters: Counters,
    pub(super) mismatches: u64,
}

impl Endpoints {
    pub(super) fn new(settings: &Settings, hosts: u32, flows: usize) -> Result<Self, SettingError> {
        let station = |_| {
            Ok(Station { endpoint: Some(Endpoint::new(settings.clone())?), ..Station::default() })
        };
        Ok(Self {
            hosts: (0..hosts).map(station).collect::<Result<Vec<_>, _>>()?.into_iter().collect(),
            pairs: (0..flows).map(|_| Pair::default()).collect(),
            ..Self::default()
        })
    }

    /// One end of a flow's connection. Its number tells the flow.
    fn end(host: u32, flow: u32, side: u32) -> Option<End> {
        let [_, a, b, c] = host.to_be_bytes();
        let address = Address { mac: MacAddr([2, 0, 0, a, b, c]), ip: [10, a, b, c].into() };
        let number = QueuePair::try_from(flow * 2 + 2 + side).ok()?;
        Some(End { number, first: Psn::new(0), address })
    }

    /// Connects a flow's hosts, and posts its bytes as writes.
    fn connect(
        &mut self,
        flow: u32,
        (source, target): (u32, u32),
        bytes: u64,
        now: u64,
    ) -> Option<()> {
        let ends = [Self::end(source, flow, 0)?, Self::end(target, flow, 1)?];
        let mut handles = [None; 2];
        for (side, host) in [source, target].into_iter().enumerate() {
            let (local, remote) = (*ends.get(side)?, *ends.get(1 - side)?);
            let connection = Connection { local, remote, source_port: SourcePort::PerQueuePair };
            let station = &mut self.hosts[host];
            *handles.get_mut(side)? = station.endpoint.as_mut()?.connect(&connection).ok();
        }
        let [source_handle, _] = handles;
        let handle = source_handle?;
        let pair = &mut self.pairs[flow];
        pair.source = Some(handle);
        let mut at = 0;
        while at < bytes || at == 0 {
            let length = (bytes - at).min(LENGTH_MAX.into());
            let place = Place { key: 0, address: u64::from(flow) << 40 | at };
            let operation = Operation::Write { remote: place, immediate: None };
            let work = WorkRequest { id: at, operation, local: place, length: length as u32 };
            self.hosts[source].endpoint.as_mut()?.post(handle, work, now).ok()?;
            pair.messages += 1;
            at += length.max(1);
        }
        Some(())
    }

    /// Forgets the bytes of a frame that has arrived or was lost.
    pub(super) fn remove(&mut self, packet: &Packet) {
        *self.carried.release(packet.number) = Carried::default();
    }

    /// What a flow that did not finish waits for.
    pub(super) fn waits_for(&self, flow: u32, source: u32) -> String {
        let pair = &self.pairs[flow];
        let endpoint = self.hosts[source].endpoint.as_ref();
        let status = endpoint.zip(pair.source).and_then(|(endpoint, at)| endpoint.failed(at));
        match status {
            Some(status) => format!("its connection failed: {status}"),
            None => format!("{} of its messages are not acknowledged", pair.messages),
        }
    }

    pub(super) fn sums(&self) -> Sums {
        let mut sums = Sums { counters: Counters::default(), mismatches: 0 };
        for station in self.hosts.iter() {
            sums.mismatches += station.memory.mismatches;
            sums.counters += station.endpoint.as_ref().map(Endpoint::counters).unwrap_or_default();
        }
        sums
    }
}

/// Endpoints have nanoseconds.
const fn nanoseconds(time: Picos) -> u64 {
    time / 1000
}

impl Engine<'_> {
    /// A flow starts.
    pub(super) fn connect(&mut self, flow: u32) {
        let Some(own) = self.scenario.flows.get(flow as usize) else { return };
        let now = nanoseconds(self.now);
        self.advance(2 * own.source);
        if let Some(endpoints) = &mut self.endpoints {
            endpoints.connect(flow, (own.source, own.target), own.bytes, now);
        }
        self.wake(2 * own.source);
    }

    /// The next frame of a host whose line is free at `at`.
    pub(super) fn pull_frame(&mut self, host: u32, at: Picos) -> Option<u32> {
        let endpoints = self.endpoints.as_deref_mut()?;
        let station = &mut endpoints.hosts[host];
        endpoints.buffer.clear();
        let endpoint = station.endpoint.as_mut()?;
        let wakes = endpoint.transmit(nanoseconds(at), &mut endpoints.buffer, 1, &station.memory);
        let Some(bytes) = endpoints.buffer.iter().next().map(<[u8]>::to_vec) else {
            let at = wakes?.saturating_mul(1000).max(at + 1000);
            if station.wakes_at <= self.now || at < station.wakes_at {
                station.wakes_at = at.max(self.now);
                self.calendar.push(at.max(self.now), What::Timer(host));
            }
            return None;
        };
        let (bth, _) = Bth::parse(bytes.get(BTH..)?).ok()?;
        let flow = bth.destination().get().saturating_sub(2) / 2;
        let is_answer =
            matches!(bth.opcode(), opcode::RC_ACKNOWLEDGE | opcode::CONGESTION_NOTIFICATION);
        let size = bytes.len() as u16;
        let pair = &mut endpoints.pairs[flow];
        let (kind, notes, entropy) = if is_answer {
            (Kind::Ack, std::mem::take(&mut pair.notes), pair.entropy)
        } else {
            let running = &mut self.flows[flow];
            let sprayer = self.sprayers[running.sprayer].as_mut()?;
            self.counts.packets += 1;
            let entropy = sprayer.next(nanoseconds(at), running.random.as_mut()?).0;
            (Kind::Data, Vec::new(), entropy)
        };
        let number = endpoints.carried.add(Carried { bytes, notes });
        let packet = Packet { size, entropy, ..Packet::new(kind, 0, flow, number) };
        self.ports[2 * host].count_in(&packet);
        Some(self.packets.add(packet))
    }

    /// A frame has arrived at its host.
    pub(super) fn receive_frame(&mut self, packet: &Packet) {
        let flow = packet.flow();
        let (source, target) = (self.flows[flow].source, self.flows[flow].target);
        let host = if packet.is_answer() { source } else { target };
        self.advance(2 * host);
        let Some(endpoints) = self.endpoints.as_deref_mut() else { return };
        let mut carried = std::mem::take(endpoints.carried.release(packet.number));
        let now = nanoseconds(self.now);
        let marked = packet.has(flag::MARKED);
        if packet.is_answer() {
            self.counts.acks += 1;
            let sprayer = self.sprayers[self.flows[flow].sprayer].as_mut();
            if let Some(sprayer) = sprayer {
                for &(entropy, marked) in &carried.notes {
                    let signal = if marked { Signal::Marked(1) } else { Signal::Good(1) };
                    sprayer.feedback(now, Entropy(entropy), signal);
                }
            }
        } else {
            let pair = &mut endpoints.pairs[flow];
            pair.notes.push((packet.entropy, marked));
            pair.entropy = packet.entropy;
            if let Some(packet) = carried.bytes.get_mut(14..).filter(|_| marked) {
                ecn::set(packet, ecn::Codepoint::Ce);
            }
        }
        let station = &mut endpoints.hosts[host];
        let Some(endpoint) = &mut station.endpoint else { return };
        endpoint.receive(now, &carried.bytes, &mut station.memory);
        let mut ended = Vec::new();
        while let Some(completion) = endpoint.completion() {
            if let Completion::Request { status: roce::Status::Success, .. } = completion {
                let pair = &mut endpoints.pairs[flow];
                pair.messages -= 1;
                ended.extend((pair.messages == 0).then_some(flow));
            }
        }
        ended.into_iter().for_each(|flow| self.end(flow));
        self.wake(2 * host);
    }

    /// A host's line is free, or its endpoint has something to do.
    pub(super) fn wake_host(&mut self, host: u32) {
        self.advance(2 * host);
        self.wake(2 * host);
    }
}
