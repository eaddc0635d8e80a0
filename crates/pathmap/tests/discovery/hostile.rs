//! Peers that forge, replay, flood and lie.

use std::net::{IpAddr, Ipv4Addr};

use pathmap::message::{Answer, LinkLoad, Message, Probe, Report};
use pathmap::packet;
use pathmap::prober::{Change, Settings};
use pathmap::{Key, Responder};

use crate::fabric::{A, B, Fabric, RATE, headers, key};
use crate::{ms, use_all, wrong};

fn settled(seed: u64) -> Fabric {
    let settings = Settings { interval: ms(10), ..Settings::default() };
    let mut fabric = Fabric::new(4, 4, seed, settings);
    fabric.run(ms(1000));
    fabric
}

fn probe(id: u32) -> Probe {
    Probe {
        epoch: 1,
        id,
        nonce: 9,
        uplink: 1,
        port: 50_000,
        ttl: 64,
        records: false,
        urgent: false,
        time: 0,
    }
}

fn sealed(key: &Key, ends: (Ipv4Addr, Ipv4Addr), message: &Message) -> Vec<u8> {
    let mut bytes = message.bytes();
    key.seal((IpAddr::V4(ends.0), IpAddr::V4(ends.1)), &mut bytes);
    packet::build(&headers(ends, 50_000, 64, false), &bytes)
}

#[test]
fn a_replayed_answer_is_refused() {
    let mut fabric = settled(1);
    let again = fabric.last_answer.clone();
    assert!(!again.is_empty() && !fabric.take(&again));
    assert_eq!(wrong(&fabric), 0);
}

#[test]
fn another_vteps_answers_are_refused() {
    let mut fabric = settled(2);
    let other = Ipv4Addr::new(10, 0, 0, 3);
    let mut received = fabric.last_answer.clone();
    // The outer source address is another one.
    received[26..30].copy_from_slice(&other.octets());
    received[24..26].fill(0);
    let sum = wire::checksum::Sum::new().bytes(&received[14..34]).checksum();
    received[24..26].copy_from_slice(&sum.to_be_bytes());
    assert!(packet::parse(&received).is_some() && !fabric.take(&received));
}

#[test]
fn a_liar_cannot_answer_what_it_did_not_receive() {
    let mut fabric = settled(3);
    let used = use_all(&mut fabric);
    fabric.run(ms(100));
    fabric.dead.insert((1, 1));
    let mut lost_after = None;
    for after in 0..200 {
        // The owner of the key claims every probe that it can imagine: the next ids of each pair.
        for pair in &used {
            for id in 0..4 {
                let id = fabric.prober.counts[0] as u32 - id;
                let probe = Probe { port: pair.port, epoch: 7, ..probe(id) };
                let answer = Answer {
                    probe,
                    arrival: 1,
                    ttl_seen: 62,
                    recorded: vec![],
                    report: Report::default(),
                };
                let packet = sealed(&key(), (B, A), &Message::Answer(answer));
                assert!(!fabric.take(&packet), "a guessed nonce");
            }
        }
        fabric.run(ms(1));
        if fabric.prober.changes().iter().any(|change| matches!(change, Change::Lost(_))) {
            lost_after = lost_after.or(Some(after));
        }
    }
    assert!(lost_after.is_some_and(|after| after <= 30), "{lost_after:?}");
}

#[test]
fn probes_without_the_key_and_replayed_ones_get_no_answer() {
    let mut fabric = settled(4);
    let before = fabric.responder.counts;
    let forged = Key::new(b"0123456789abcdeX").unwrap();
    let packet = sealed(&forged, (A, B), &Message::Probe(probe(1)));
    assert_eq!(fabric.deliver(&packet, 1), None);
    assert_eq!(fabric.responder.counts.refused, before.refused + 1);
    let other = Ipv4Addr::new(10, 0, 0, 9);
    let packet = sealed(&key(), (other, B), &Message::Probe(probe(1)));
    assert!(fabric.deliver(&packet, 1).is_some() && fabric.deliver(&packet, 1).is_none());
    assert_eq!(fabric.responder.counts.replayed, before.replayed + 1);
}

#[test]
fn a_flood_is_capped_and_fills_no_memory() {
    let mut responder = Responder::new(key(), RATE);
    let mut answered = 0;
    // Every prober has the key and sends 20 probes, within one second.
    for from in 0..5000u32 {
        let source = Ipv4Addr::from_bits(0x0a63_0000 + from);
        for id in 0..20 {
            let packet = sealed(&key(), (source, B), &Message::Probe(probe(id)));
            let received = packet::parse(&packet).unwrap();
            let now = ms(u64::from(from) / 5);
            let Some(Message::Probe(probe)) = responder.open(now, &received) else { continue };
            answered += u32::from(responder.answer(now, probe, &received, 1).is_some());
        }
    }
    assert!(responder.peers() <= 1024);
    assert!(answered <= 100_000 && responder.counts.limited > 0, "{answered}");
    // One prober alone.
    let mut responder = Responder::new(key(), RATE);
    let answers = (0..20_000).filter(|id| {
        let packet = sealed(&key(), (A, B), &Message::Probe(probe(*id)));
        let received = packet::parse(&packet).unwrap();
        let Some(Message::Probe(probe)) = responder.open(ms(1000), &received) else { return false };
        responder.answer(ms(1000), probe, &received, 1).is_some()
    });
    assert_eq!(answers.count(), RATE as usize * 5 / 4);
}

#[test]
fn an_answer_that_claims_an_impossible_way_is_malformed() {
    let answer = Answer {
        probe: probe(1),
        arrival: 1,
        ttl_seen: 65,
        recorded: vec![],
        report: Report { loads: vec![LinkLoad { link: A, kilobytes: 1 }], ..Report::default() },
    };
    assert!(Message::parse(&Message::Answer(answer).bytes()).is_err());
}
