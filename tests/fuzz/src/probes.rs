//! Probes and answers between VTEPs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use path::{Arrived, PathId};
use pathmap::load::PeerLoads;
use pathmap::message::arrivals::ArrivalReport;
use pathmap::message::connection::{FlowReport, Handshake};
use pathmap::message::{Answer, LinkLoad, Message, Probe, Report};
use pathmap::packet::{self, Headers, Received};
use pathmap::prober::Ids;
use pathmap::spraying::{self, Ledger};
use pathmap::{Key, Prober, Random, Responder, Settings, Tracer, Way, trace};
use wire::{MacAddr, QueuePair, Vni};

/// A message that is read can be written and read again. A packet contains its message. The messages
/// of the communication manager are read too.
pub fn probe_message(data: &[u8]) {
    let _ = pathmap::cm::Event::parse(data);
    if let Ok(message) = Message::parse(data) {
        assert_eq!(Message::parse(&message.bytes()), Ok(message));
    }
    if let Some(error) = trace::packet::parse(data) {
        let Ok(secret) = Key::new(&[1; 16]) else { return };
        let mut tracer = Tracer::new(secret, Random::new(1));
        tracer.set_paths([PathId { hop: 1, source_port: error.ports.0 }].into());
        tracer.tick(Duration::from_secs(1));
        tracer.expired(Duration::from_secs(2), &error);
    }
    if let Some(received) = packet::parse(data) {
        let bounds = data.as_ptr_range();
        let message = received.message.as_ptr_range();
        assert!(bounds.start <= message.start && message.end <= bounds.end);
        let _ = Message::parse(received.message);
    }
}

/// A probe, an answer and a report, alone and in packets: over IPv4 with and without recorded
/// addresses, and over IPv6.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let probe = Probe {
        epoch: 1,
        id: 2,
        nonce: 3,
        uplink: 4,
        port: 50_000,
        ttl: 64,
        records: true,
        urgent: false,
        token: 5,
    };
    let link = Ipv4Addr::new(10, 1, 0, 1);
    let hosts = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
    let queue_pair = QueuePair::from_be_bytes([0, 0, 17]);
    let recorded = Some([link, link].into());
    let flow = FlowReport {
        vni: 10,
        hosts,
        queue_pair,
        port: 0xc132,
        kilobytes: 8,
        way: Some(Way { uplink: 2, arrival: 3, routers: 2, recorded }),
    };
    let handshake = Handshake { vni: 10, hosts, queue_pair, id: 1, of: Some(2) };
    let answer = Answer {
        probe,
        arrival: 7,
        token: 8,
        ttl_seen: 62,
        recorded: vec![link],
        report: Report {
            gain: 7,
            loads: vec![LinkLoad { link, kilobytes: 9 }],
            flows: vec![flow],
            handshakes: vec![handshake],
        },
    };
    let arrived = |port| Arrived { port, received: 9, marked: 1 };
    let report = ArrivalReport {
        head: Probe { records: false, ..probe },
        vnis: Vni::try_from(10).into_iter().collect(),
        paths: [50_000, 50_001].map(arrived).into(),
    };
    let messages = [Message::Probe(probe), Message::Answer(answer), Message::Arrivals(report)];
    let messages = messages.map(|message| message.bytes());
    let headers = |records| Headers {
        macs: (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])),
        ends: ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
        ports: (50_000, 4789),
        label: 0,
        ttl: 64,
        records,
    };
    let ends = ([0xfd; 16].into(), [0xfe; 16].into());
    let over_ipv6 = Headers { ends, label: 1, ..headers(false) };
    let all = [headers(false), headers(true), over_ipv6];
    let families = [(headers(false), link.into()), (over_ipv6, Ipv6Addr::LOCALHOST.into())];
    let packets = messages
        .iter()
        .flat_map(|message| all.each_ref().map(|headers| packet::build(headers, message)));
    let packets: Vec<Vec<u8>> = packets.collect();
    let error = |(headers, router): &(Headers, IpAddr)| {
        trace::packet::error(*router, &trace::packet::build(headers, 7))
    };
    let errors: Vec<Vec<u8>> = families.iter().map(error).collect();
    [messages.to_vec(), packets, errors].concat()
}

/// What two leaves have that exchange probes.
struct Exchange {
    key: Key,
    responder: Responder,
    prober: Prober,
    peers: PeerLoads,
    now: Duration,
    /// The probes that were sent.
    sent: Vec<Probe>,
}

/// The leaf that is fuzzed, and the one that lies to it.
const ENDS: (IpAddr, IpAddr) =
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));

impl Exchange {
    fn new() -> Option<Self> {
        let key = |byte: u8| Key::new(&[byte; 16]).ok();
        let settings = Settings { ports: 4, most_ports: 8, ..Settings::default() };
        let mut prober = Prober::new(settings, key(2)?, Ids::new((1, 0)), Random::new(1));
        prober.set_hops(Duration::ZERO, &[1, 2]);
        let responder = Responder::new(key(1)?, key(3)?, settings.rate);
        let (peers, now) = (PeerLoads::default(), Duration::from_secs(1));
        Some(Self { key: key(1)?, responder, prober, peers, now, sent: Vec::new() })
    }

    fn tick(&mut self, passed: Duration) {
        self.now += passed;
        let mut out = Vec::new();
        self.prober.tick(self.now, &mut out);
        self.sent.extend(out.iter().map(|transmit| transmit.probe));
        let old = self.sent.len().saturating_sub(64);
        self.sent.drain(..old);
        self.peers.expire(self.now);
        let _ = !self.peers.yields((1, ENDS.1), self.now);
    }

    /// The other leaf sends a message. It has the key, and has seen the probe with this number.
    fn receive(&mut self, number: u8, headers: [u8; 4], message: &[u8]) {
        let mut message = match (Message::parse(message), self.sent.get(usize::from(number))) {
            (Ok(Message::Answer(answer)), Some(probe)) => {
                Message::Answer(Answer { probe: *probe, ..answer }).bytes()
            }
            _ => message.to_vec(),
        };
        self.key.seal(ENDS, &mut message);
        let [ttl, records, port_high, port_low] = headers;
        let received = Received {
            ends: ENDS,
            ports: (u16::from_be_bytes([port_high, port_low]), 4789),
            ttl,
            recorded: (records & 1 == 1)
                .then(|| vec![Ipv4Addr::LOCALHOST; usize::from(records >> 1) % 10]),
            message: &message,
        };
        match self.responder.open(&received) {
            Some(Message::Probe(probe)) => {
                if let Some(answer) = self.responder.answer(self.now, probe, &received, 3) {
                    assert_eq!(answer.probe, probe);
                    let bytes = Message::Answer(answer.clone()).bytes();
                    assert_eq!(Message::parse(&bytes), Ok(Message::Answer(answer)));
                }
            }
            Some(Message::Answer(answer)) => {
                self.prober.answer(self.now, &answer);
                self.peers.report(ENDS.0, &answer.report, self.now);
            }
            Some(Message::Arrivals(report)) => {
                if let Some(pool) = spraying::pool(self.prober.known()) {
                    let slowest = Duration::from_millis(1);
                    Ledger::new(&pool, None).report(self.now, &pool, &report.paths, slowest);
                }
            }
            None => {}
        }
        assert!(self.responder.peers() <= 1 && self.peers.len() <= 4096);
    }
}

/// A leaf with the key may send any message at any time. `data` is a row of steps: one byte for the
/// milliseconds that pass, or 255 with the headers and the length of a message.
pub fn probe_exchange(data: &[u8]) {
    let Some(mut exchange) = Exchange::new() else { return };
    let mut rest = data;
    while let Some((step, after)) = rest.split_first() {
        rest = after;
        if *step != u8::MAX {
            exchange.tick(Duration::from_millis(u64::from(*step)));
            continue;
        }
        let Some(([number, ttl, records, high, low, length], after)) = rest.split_first_chunk()
        else {
            return;
        };
        let (message, after) = after.split_at(after.len().min(usize::from(*length)));
        exchange.receive(*number, [*ttl, *records, *high, *low], message);
        rest = after;
    }
    let paths = exchange.prober.paths().len();
    assert!(paths <= 2 * 8 + 8, "{paths} paths");
    assert!(exchange.prober.known().count() <= paths);
}

/// Messages between ticks.
pub(crate) fn exchanges() -> Vec<Vec<u8>> {
    let step = |message: &[u8], number: u8| {
        let head = [u8::MAX, number, 62, 5, 0xc3, 0x50, message.len().min(255) as u8];
        [&head[..], &message[..message.len().min(255)]].concat()
    };
    let messages = seeds();
    let row = |number: u8| {
        let steps =
            messages[..2].iter().map(|message| [vec![1, 20], step(message, number)].concat());
        [steps.collect::<Vec<_>>().concat(), vec![100; 5]].concat()
    };
    let alone = messages.iter().map(|message| [vec![0], step(message, 0), vec![50]].concat());
    alone.chain((0..4).map(row)).collect()
}
