//! Probes and answers. All numbers are in network byte order.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |         magic 0x5650          |  version 4    | kind          |
//! |                     epoch of the prober                       |
//! |                     id, counted in the epoch                  |
//! |                     nonce                                     |
//! |                     uplink of the prober (interface index)    |
//! |      outer source port        | first TTL     | flags         |
//! |                     token of the last answer                  |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | only in an answer:  arrival uplink (interface index)          |
//! |                     token for the next probes                 |
//! |  TTL seen     | R addresses   |       L loads                 |
//! |                     gain                                      |
//! |  F queue pairs|  H handshakes |       0                       |
//! |                     R recorded addresses, 4 bytes each        |
//! |                     L times: address, load in kB/s            |
//! |                     F queue pairs and H handshakes            |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! Kind 1 is a probe, 2 an answer, 3 a report of arrivals ([`arrivals`]).
//!
//! A tag of 16 bytes follows ([`crate::Key`]). A recorded address belongs to the interface by which
//! a router sent the probe on (RFC 791 section 3.1, Record Route).

use std::net::Ipv4Addr;

pub mod arrivals;
pub mod connection;

use arrivals::ArrivalReport;
use connection::{FlowReport, Handshake, MOST_FLOWS, MOST_HANDSHAKES};

/// The first bytes of every message.
const MAGIC: u16 = 0x5650;
/// The version of the format.
pub const VERSION: u8 = 4;
const PROBE: u8 = 1;
const ANSWER: u8 = 2;
const ARRIVALS: u8 = 3;
const FLAG_RECORD: u8 = 1;
const FLAG_URGENT: u8 = 2;
/// Length of a probe without its tag in bytes.
pub const PROBE_LENGTH: usize = 28;
/// The most addresses that an IPv4 header can record.
pub const MOST_RECORDED: usize = 9;
/// The most loads in one answer.
pub const MOST_LOADS: usize = 64;

/// A probe: where does a packet with this outer source port go?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Probe {
    /// Number of the prober's run. A later run has a higher one.
    pub epoch: u32,
    /// Number of the probe within the epoch.
    pub id: u32,
    /// A number that the answer must repeat. It cannot be predicted.
    pub nonce: u32,
    /// The uplink by which it is sent, as the prober's interface index.
    pub uplink: u32,
    /// Its outer source port.
    pub port: u16,
    /// Its outer TTL when it is sent.
    pub ttl: u8,
    /// Whether its IP header has a Record Route option.
    pub records: bool,
    /// Whether earlier probes were not answered. The answer then returns over several paths.
    pub urgent: bool,
    /// The token of the last answer, which shows that the prober receives what is sent to its
    /// address. Before the first answer, and after [`crate::prober`] has heard nothing for a while, that
    /// of [`crate::Key::opening_token`]. Answers repeat it.
    pub token: u32,
}

/// The load of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLoad {
    /// Address of the interface that sends on the link.
    pub link: Ipv4Addr,
    /// What the sender of the answer sends over it, in 1000 bytes a second.
    pub kilobytes: u32,
}

/// What a VTEP tells others about the links that it may share with them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// How much its best move would gain, on a scale that only has an order. 0 if it wants none.
    pub gain: u32,
    /// The load that it puts on links. At most [`MOST_LOADS`].
    pub loads: Vec<LinkLoad>,
    /// Queue pairs that it sends to the receiver of the answer. At most [`MOST_FLOWS`].
    pub flows: Vec<FlowReport>,
    /// What its hosts sent to those of the receiver to begin connections. At most
    /// [`MOST_HANDSHAKES`].
    pub handshakes: Vec<Handshake>,
}

/// The answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The probe.
    pub probe: Probe,
    /// The uplink by which the probe arrived, as the responder's interface index.
    pub arrival: u32,
    /// What the prober is to repeat in its next probes ([`Probe::token`]).
    pub token: u32,
    /// The TTL with which it arrived.
    pub ttl_seen: u8,
    /// The addresses that it recorded, in their order. At most [`MOST_RECORDED`].
    pub recorded: Vec<Ipv4Addr>,
    /// What the responder sends over links.
    pub report: Report,
}

/// A probe, an answer or a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A probe.
    Probe(Probe),
    /// An answer.
    Answer(Answer),
    /// A report of arrivals.
    Arrivals(ArrivalReport),
}

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The bytes end too early, or go on.
    #[error("{0} bytes are not the length of this message")]
    Length(usize),
    /// The first bytes are not those of a message.
    #[error("it does not begin with {MAGIC:#06x}")]
    Magic,
    /// Another version.
    #[error("version {0} is not known: run the same vtepd on all leaves")]
    Version(u8),
    /// An unknown kind.
    #[error("kind {0} is neither probe, answer nor report")]
    Kind(u8),
    /// A count exceeds its limit, a port or TTL is 0, or an unused field is not.
    #[error("a field is out of its range")]
    Range,
}

/// Reads numbers from the start of bytes.
struct Reader<'m>(&'m [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn half(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn address(&mut self) -> Option<Ipv4Addr> {
        self.take::<4>().map(Ipv4Addr::from)
    }

    fn probe(&mut self) -> Option<Probe> {
        let (epoch, id, nonce, uplink) = (self.word()?, self.word()?, self.word()?, self.word()?);
        let (port, ttl, flags, token) = (self.half()?, self.byte()?, self.byte()?, self.word()?);
        let (records, urgent) = (flags & FLAG_RECORD != 0, flags & FLAG_URGENT != 0);
        Some(Probe { epoch, id, nonce, uplink, port, ttl, records, urgent, token })
    }

    fn addresses<A: FromIterator<Ipv4Addr>>(&mut self, number: u8) -> Option<A> {
        (0..number).map(|_| self.address()).collect()
    }

    fn loads(&mut self, number: u16) -> Option<Vec<LinkLoad>> {
        let load = |_| Some(LinkLoad { link: self.address()?, kilobytes: self.word()? });
        (0..number).map(load).collect()
    }
}

impl Message {
    /// Reads a message without its tag.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let length = MessageError::Length(bytes.len());
        let mut reader = Reader(bytes);
        if reader.half().ok_or(length)? != MAGIC {
            return Err(MessageError::Magic);
        }
        let version = reader.byte().ok_or(length)?;
        if version != VERSION {
            return Err(MessageError::Version(version));
        }
        let kind = reader.byte().ok_or(length)?;
        if !matches!(kind, PROBE | ANSWER | ARRIVALS) {
            return Err(MessageError::Kind(kind));
        }
        let probe = reader.probe().ok_or(length)?;
        if probe.port == 0 || probe.ttl == 0 {
            return Err(MessageError::Range);
        }
        let message = if kind == PROBE {
            Self::Probe(probe)
        } else if kind == ARRIVALS {
            Self::Arrivals(reader.arrivals(probe, length)?)
        } else {
            let arrival = reader.word().ok_or(length)?;
            let token = reader.word().ok_or(length)?;
            let ttl_seen = reader.byte().ok_or(length)?;
            let addresses = reader.byte().ok_or(length)?;
            let loads = reader.half().ok_or(length)?;
            let gain = reader.word().ok_or(length)?;
            let [flows, handshakes, zeros @ ..] = reader.take::<4>().ok_or(length)?;
            if usize::from(addresses) > MOST_RECORDED
                || usize::from(loads) > MOST_LOADS
                || usize::from(flows) > MOST_FLOWS
                || usize::from(handshakes) > MOST_HANDSHAKES
                || zeros != [0; 2]
                || ttl_seen > probe.ttl
            {
                return Err(MessageError::Range);
            }
            let recorded = reader.addresses(addresses).ok_or(length)?;
            let loads = reader.loads(loads).ok_or(length)?;
            let flows = (0..flows).map(|_| reader.flow(length)).collect::<Result<_, _>>()?;
            let handshakes =
                (0..handshakes).map(|_| reader.handshake(length)).collect::<Result<_, _>>()?;
            let report = Report { gain, loads, flows, handshakes };
            Self::Answer(Answer { probe, arrival, token, ttl_seen, recorded, report })
        };
        if reader.0.is_empty() { Ok(message) } else { Err(length) }
    }

    /// The bytes of the message without its tag.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let (probe, kind) = match self {
            Self::Probe(probe) => (probe, PROBE),
            Self::Answer(answer) => (&answer.probe, ANSWER),
            Self::Arrivals(report) => (&report.head, ARRIVALS),
        };
        let mut bytes = Vec::with_capacity(PROBE_LENGTH + crate::key::TAG);
        bytes.extend_from_slice(&MAGIC.to_be_bytes());
        bytes.extend_from_slice(&[VERSION, kind]);
        for word in [probe.epoch, probe.id, probe.nonce, probe.uplink] {
            bytes.extend_from_slice(&word.to_be_bytes());
        }
        bytes.extend_from_slice(&probe.port.to_be_bytes());
        let flags = if probe.records { FLAG_RECORD } else { 0 };
        let flags = flags | if probe.urgent { FLAG_URGENT } else { 0 };
        bytes.extend_from_slice(&[probe.ttl, flags]);
        bytes.extend_from_slice(&probe.token.to_be_bytes());
        match self {
            Self::Probe(_) => {}
            Self::Answer(answer) => answer.append(&mut bytes),
            Self::Arrivals(report) => report.append(&mut bytes),
        }
        bytes
    }
}

impl Answer {
    fn append(&self, bytes: &mut Vec<u8>) {
        let (recorded, loads) =
            (self.recorded.len().min(MOST_RECORDED), self.report.loads.len().min(MOST_LOADS));
        let flows = self.report.flows.len().min(MOST_FLOWS);
        let handshakes = self.report.handshakes.len().min(MOST_HANDSHAKES);
        bytes.extend_from_slice(&self.arrival.to_be_bytes());
        bytes.extend_from_slice(&self.token.to_be_bytes());
        bytes.extend_from_slice(&[self.ttl_seen, recorded as u8]);
        bytes.extend_from_slice(&(loads as u16).to_be_bytes());
        bytes.extend_from_slice(&self.report.gain.to_be_bytes());
        bytes.extend_from_slice(&[flows as u8, handshakes as u8, 0, 0]);
        for address in self.recorded.iter().take(recorded) {
            bytes.extend_from_slice(&address.octets());
        }
        for load in self.report.loads.iter().take(loads) {
            bytes.extend_from_slice(&load.link.octets());
            bytes.extend_from_slice(&load.kilobytes.to_be_bytes());
        }
        self.report.flows.iter().take(flows).for_each(|flow| flow.append(bytes));
        let handshakes = self.report.handshakes.iter().take(handshakes);
        handshakes.for_each(|handshake| handshake.append(bytes));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn probe() -> impl Strategy<Value = Probe> {
        let numbers = any::<[u32; 5]>();
        (numbers, 1..=u16::MAX, 1..=u8::MAX, any::<[bool; 2]>()).prop_map(
            |([epoch, id, nonce, uplink, token], port, ttl, [records, urgent])| Probe {
                epoch,
                id,
                nonce,
                uplink,
                port,
                ttl,
                records,
                urgent,
                token,
            },
        )
    }

    prop_compose! {
        fn answer()(
            probe in probe(),
            arrival: u32,
            token: u32,
            seen: u8,
            gain: u32,
            recorded in prop::collection::vec(any::<u32>(), 0..=MOST_RECORDED),
            loads in prop::collection::vec(any::<(u32, u32)>(), 0..=MOST_LOADS),
            flows in prop::collection::vec(connection::tests::flow(), 0..=MOST_FLOWS),
            handshakes in
                prop::collection::vec(connection::tests::handshake(), 0..=MOST_HANDSHAKES),
        ) -> Answer {
            let load = |(link, kilobytes)| LinkLoad { link: Ipv4Addr::from_bits(link), kilobytes };
            Answer {
                ttl_seen: seen.min(probe.ttl),
                probe,
                arrival,
                token,
                recorded: recorded.into_iter().map(Ipv4Addr::from_bits).collect(),
                report: Report {
                    gain,
                    loads: loads.into_iter().map(load).collect(),
                    flows,
                    handshakes,
                },
            }
        }
    }

    proptest! {
        #[test]
        fn messages_round_trip_and_no_other_length_is_one(probe in probe(), answer in answer()) {
            for message in [Message::Probe(probe), Message::Answer(answer)] {
                let bytes = message.bytes();
                prop_assert_eq!(Message::parse(&bytes), Ok(message));
                for length in 0..bytes.len() {
                    prop_assert_eq!(Message::parse(&bytes[..length]), Err(MessageError::Length(length)));
                }
                let longer = [&bytes[..], &[0]].concat();
                prop_assert_eq!(Message::parse(&longer), Err(MessageError::Length(longer.len())));
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
            if let Ok(message) = Message::parse(&bytes) {
                prop_assert_eq!(Message::parse(&message.bytes()), Ok(message));
            }
        }
    }

    /// Whatever it contains, an answer fits an IP packet of 1500 bytes.
    #[test]
    fn the_longest_answer_fits_an_ethernet_frame() {
        let link = Ipv4Addr::BROADCAST;
        let hosts = (std::net::Ipv6Addr::LOCALHOST.into(), std::net::Ipv6Addr::LOCALHOST.into());
        let (vni, queue_pair) = (1, wire::QueuePair::from_be_bytes([1; 3]));
        let recorded = Some([link; MOST_RECORDED].into());
        let way = Some(crate::Way { uplink: 1, arrival: 1, routers: 9, recorded });
        let flow = FlowReport { vni, hosts, queue_pair, port: 1, kilobytes: 1, way };
        let probe = Probe {
            epoch: 1,
            id: 1,
            nonce: 1,
            uplink: 1,
            port: 1,
            ttl: 1,
            records: true,
            urgent: true,
            token: 1,
        };
        let answer = Answer {
            probe,
            arrival: 1,
            token: 1,
            ttl_seen: 1,
            recorded: vec![link; MOST_RECORDED + 1],
            report: Report {
                gain: 1,
                loads: vec![LinkLoad { link, kilobytes: 1 }; MOST_LOADS + 1],
                flows: vec![flow; MOST_FLOWS + 1],
                handshakes: vec![
                    Handshake { vni, hosts, queue_pair, id: 1, of: Some(1) };
                    MOST_HANDSHAKES + 1
                ],
            },
        };
        let bytes = Message::Answer(answer).bytes();
        assert!(Message::parse(&bytes).is_ok());
        // Outer IPv6, UDP and VXLAN, and the inner Ethernet header.
        let packet = 40 + 8 + 8 + 14 + bytes.len() + crate::key::TAG;
        assert!(packet <= 1500, "{packet}");
    }

    #[test]
    fn a_probe_as_bytes() {
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
        let bytes = Message::Probe(probe).bytes();
        let expected = [
            0x56, 0x50, 4, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0xc3, 0x50, 64, 1, 0,
            0, 0, 5,
        ];
        assert_eq!(bytes, expected);
        let with = |at: usize, value: u8| {
            let mut changed = bytes.clone();
            changed[at] = value;
            Message::parse(&changed)
        };
        assert_eq!(with(0, 0), Err(MessageError::Magic));
        assert_eq!(with(2, 1), Err(MessageError::Version(1)));
        assert_eq!(with(3, 4), Err(MessageError::Kind(4)));
        assert_eq!(with(22, 0), Err(MessageError::Range));
    }
}
