//! Probes and answers between VTEPs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use pathmap::message::connection::{FlowReport, Handshake};
use pathmap::message::{Answer, LinkLoad, Message, Probe, Report};
use pathmap::packet::{self, Headers};
use pathmap::{Key, Pair, Random, Tracer, Way, trace};
use wire::{MacAddr, QueuePair};

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
        tracer.set_pairs([Pair { hop: 1, port: error.ports.0 }].into());
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

/// A probe and an answer, alone and in packets: over IPv4 with and without recorded addresses, and
/// over IPv6.
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
            wish: 7,
            loads: vec![LinkLoad { link, kilobytes: 9 }],
            flows: vec![flow],
            handshakes: vec![handshake],
        },
    };
    let messages = [Message::Probe(probe), Message::Answer(answer)].map(|message| message.bytes());
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
