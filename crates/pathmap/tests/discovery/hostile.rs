//! Peers that forge, replay, flood and lie.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use path::PathId;
use pathmap::message::{Answer, LinkLoad, Message, Probe, Report};
use pathmap::packet;
use pathmap::prober::{Change, Ids, Settings};
use pathmap::{Key, Prober, Random, Responder};

use crate::fabric::{A, B, Fabric, RATE, headers, key, responder};
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
        token: 0,
    }
}

fn sealed(key: &Key, ends: (IpAddr, IpAddr), message: &Message) -> Vec<u8> {
    let mut bytes = message.bytes();
    key.seal(ends, &mut bytes);
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

/// Another owner of the key has captured answers, and sends them again with its own content.
#[test]
fn answers_in_the_name_of_another_vtep_are_refused_whatever_they_claim() {
    let mut fabric = settled(8);
    use_all(&mut fabric);
    for _ in 0..50 {
        fabric.run(ms(10));
        let received = packet::parse(&fabric.last_answer).unwrap();
        let opened = fabric.opener.open(&received);
        let Some(Message::Answer(captured)) = opened else { panic!("{opened:?}") };
        let last = fabric.prober.counts[0] as u32;
        let report = Report { gain: u32::MAX, ..Report::default() };
        // The probe that was answered, and those that may wait for their answers.
        for id in [captured.probe.id].into_iter().chain(last - 16..=last) {
            let probe = Probe { id, ..captured.probe };
            let lie = Answer { arrival: 9, probe, report: report.clone(), ..captured.clone() };
            let packet = sealed(&key(), (B, A), &Message::Answer(lie));
            assert!(!fabric.take(&packet), "{probe:?}");
        }
        assert!(fabric.reports.iter().all(|report| report.gain == 0));
    }
    assert_eq!((wrong(&fabric), fabric.prober.changes().len()), (0, 0));
}

#[test]
fn a_liar_cannot_answer_what_it_did_not_receive() {
    let mut fabric = settled(3);
    let used = use_all(&mut fabric);
    fabric.run(ms(100));
    fabric.dead.insert((1, 1));
    let mut lost_after = None;
    for after in 0..200 {
        // The owner of the key claims every probe that it can imagine: the next ids of each path.
        for path in &used {
            for id in 0..4 {
                let id = fabric.prober.counts[0] as u32 - id;
                let probe = Probe { port: path.source_port, epoch: 7, ..probe(id) };
                let answer = Answer {
                    probe,
                    arrival: 1,
                    token: 0,
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
fn a_flood_without_the_key_delays_no_finding_of_a_dead_path() {
    let forged = Key::new(b"0123456789abcdeX").unwrap();
    let message = Message::Probe(probe(1));
    let found_after = |times: usize| {
        let mut fabric = settled(5);
        let used = use_all(&mut fabric);
        fabric.run(ms(100));
        // More than any limit in one millisecond, and then 60,000 in each second.
        let packet = sealed(&forged, (B, A), &message);
        fabric.flood = Some((packet.clone(), times * 1000));
        fabric.run(ms(1));
        fabric.flood = Some((packet, times));
        fabric.dead.insert((1, 1));
        let is_lost = |change: &Change| matches!(change, Change::Lost(at) if used.contains(at));
        (1..200).find(|_| {
            fabric.run(ms(1));
            fabric.prober.changes().iter().any(is_lost)
        })
    };
    let without = found_after(0);
    assert!(without.is_some_and(|after| after <= 30), "{without:?}");
    assert_eq!(found_after(60), without);
}

#[test]
fn probes_without_the_key_and_replayed_ones_get_no_answer() {
    let mut fabric = settled(4);
    let before = fabric.responder.counts;
    let forged = Key::new(b"0123456789abcdeX").unwrap();
    let packet = sealed(&forged, (A, B), &Message::Probe(probe(1)));
    assert_eq!(fabric.deliver(&packet, 1), None);
    assert_eq!(fabric.responder.counts.refused, before.refused + 1);
    let other = IpAddr::from([10, 0, 0, 9]);
    let packet = sealed(&key(), (other, B), &Message::Probe(probe(1)));
    assert!(fabric.deliver(&packet, 1).is_some() && fabric.deliver(&packet, 1).is_none());
    assert_eq!(fabric.responder.counts.replayed, before.replayed + 1);
}

/// Whoever has the key can send probes in the name of a leaf, with any epoch and any id.
#[test]
fn forged_probes_do_not_keep_a_leaf_from_its_answers() {
    let (mut id, mut random) = (0, Random::new(1));
    let mut forge = |fabric: &mut Fabric| {
        for epoch in [u32::MAX, 7, 8, random.next() as u32] {
            for at in [u32::MAX - id, id, random.next() as u32] {
                let token = random.next() as u32;
                let probe = Probe { epoch, nonce: id, token, ..probe(at) };
                let packet = sealed(&key(), (A, B), &Message::Probe(probe));
                fabric.deliver(&packet, 1);
                id += 1;
            }
        }
        fabric.run(ms(1));
    };
    let mut fabric = settled(6);
    let used = use_all(&mut fabric);
    for _ in 0..500 {
        forge(&mut fabric);
        assert_eq!(fabric.prober.changes(), []);
    }
    let [sent, answered, unexpected] = fabric.prober.counts;
    assert!(sent - answered < 20 && unexpected == 0, "{:?}", fabric.prober.counts);
    fabric.dead.insert((1, 1));
    let is_lost = |change: &Change| matches!(change, Change::Lost(at) if used.contains(at));
    let found = (1..200).find(|_| {
        forge(&mut fabric);
        fabric.prober.changes().iter().any(is_lost)
    });
    assert!(found.is_some_and(|after| after <= 30), "{found:?}");
    // It starts again.
    fabric.dead.clear();
    let settings = Settings { interval: ms(10), ..Settings::default() };
    fabric.prober = Prober::new(settings, key(), Ids::new((9, 0)), Random::new(9));
    fabric.prober.set_hops(fabric.now, &[0, 1, 2, 3]);
    for after in 0.. {
        forge(&mut fabric);
        if fabric.prober.known().count() == fabric.prober.paths().len() {
            break;
        }
        assert!(after < 20_000, "{}", fabric.prober.known().count());
    }
    assert_eq!(wrong(&fabric), 0);
}

#[test]
fn captured_probes_are_not_answered_again() {
    let mut fabric = settled(7);
    use_all(&mut fabric);
    fabric.run(ms(500));
    let captured: Vec<_> = fabric.probes.iter().cloned().collect();
    assert!(captured.len() > 500);
    assert!(captured.iter().all(|packet| fabric.deliver(packet, 1).is_none()));
}

/// They have the token of that time. While their sender is away for longer than its ids are
/// remembered, they say nothing about where it is now.
#[test]
fn captured_probes_of_an_older_run_are_answered_as_those_without_a_token() {
    let mut fabric = settled(9);
    let settings = Settings { interval: ms(10), ..Settings::default() };
    let start_again = |fabric: &mut Fabric, epoch| {
        // No answer is on its way to the run before.
        fabric.answers = false;
        fabric.run(ms(10));
        fabric.answers = true;
        fabric.prober = Prober::new(settings, key(), Ids::new((epoch, 0)), Random::new(9));
        fabric.prober.set_hops(fabric.now, &[0, 1, 2, 3]);
        fabric.run(ms(5000));
        use_all(fabric);
        fabric.run(ms(1000));
        assert_eq!(
            (fabric.prober.known().count(), wrong(fabric)),
            (fabric.prober.paths().len(), 0)
        );
        fabric.probes.iter().cloned().collect::<Vec<_>>()
    };
    let captured = start_again(&mut fabric, 8);
    assert!(captured.len() > 500);
    start_again(&mut fabric, 9);
    fabric.now += ms(11_000);
    let answered = captured.iter().filter(|packet| fabric.deliver(packet, 1).is_some()).count();
    assert!(answered <= 256, "{answered} of {}", captured.len());
    // The sender itself starts again, with a clock that was set back. It has a token after two
    // answers, and all its probes are answered.
    for epoch in [7, 6] {
        fabric.now += ms(11_000);
        let limited = fabric.responder.counts.limited;
        start_again(&mut fabric, epoch);
        assert_eq!(fabric.responder.counts.limited, limited, "{epoch}");
    }
}

#[test]
fn probes_have_the_opening_token_until_there_is_an_answer_and_after_silence() {
    const OPENING: u32 = 7;
    let mut fabric = Fabric::new(2, 2, 12, Settings::default());
    let prober = Prober::new(Settings::default(), key(), Ids::new((8, 0)), Random::new(9));
    fabric.prober = prober.with_opening_token(OPENING);
    fabric.prober.set_hops(fabric.now, &[0, 1]);
    fabric.run(ms(1));
    assert!(fabric.tokens.iter().eq(&[OPENING]), "{:?}", fabric.tokens);
    fabric.run(ms(2000));
    fabric.run(ms(2000));
    assert!(fabric.tokens.len() == 1 && !fabric.tokens.contains(&OPENING), "{:?}", fabric.tokens);
    // Whether it has started again is not known.
    fabric.answers = false;
    fabric.run(ms(2900));
    assert!(!fabric.tokens.contains(&OPENING));
    fabric.run(ms(200));
    fabric.run(ms(5000));
    assert!(fabric.tokens.iter().eq(&[OPENING]), "{:?}", fabric.tokens);
    fabric.answers = true;
    fabric.run(ms(5000));
    fabric.run(ms(2000));
    assert!(fabric.tokens.len() == 1 && !fabric.tokens.contains(&OPENING), "{:?}", fabric.tokens);
}

/// Without the token of its new run it answers few probes. Others are on their way meanwhile.
#[test]
fn no_path_is_taken_for_dead_while_a_vtep_that_started_again_refuses_the_token_before() {
    let settings = Settings { interval: ms(10), ..Settings::default() };
    let mut fabric = Fabric::new(4, 4, 11, settings);
    fabric.delay = ms(45);
    fabric.run(ms(3000));
    let used: BTreeSet<PathId> = fabric.prober.known().map(|(path, _)| path).take(32).collect();
    fabric.prober.set_used(fabric.now, used);
    fabric.run(ms(1000));
    fabric.prober.changes();
    fabric.responder = Responder::new(key(), Key::new(b"a-secret-of-later").unwrap(), RATE);
    for id in 0..300 {
        let probe = Probe { nonce: id, ..probe(id) };
        fabric.deliver(&sealed(&key(), (A, B), &Message::Probe(probe)), 1);
    }
    let limited = fabric.responder.counts.limited;
    fabric.run(ms(1000));
    assert!(fabric.responder.counts.limited > limited + 100);
    assert_eq!((fabric.prober.lost().count(), fabric.prober.changes()), (0, Vec::new()));
    // Dead ones are found afterwards.
    fabric.dead.extend((0..4).map(|router| (0, router)));
    fabric.run(ms(1000));
    assert!(fabric.prober.lost().count() > 0);
}

/// What is refused over IPv4 is refused over IPv6, and probes that ask for Record Route too.
#[test]
fn forged_and_replayed_messages_are_refused_over_ipv6() {
    let mut fabric = Fabric::over_ipv6(4, 4, 5, Settings::default());
    fabric.run(ms(1000));
    let again = fabric.last_answer.clone();
    assert!(!again.is_empty() && !fabric.take(&again));
    let (a, b) = fabric.ends;
    let other = IpAddr::from([0xfd; 16]);
    let before = fabric.responder.counts;
    let forged = Key::new(b"0123456789abcdeX").unwrap();
    for (key, records) in [(forged, false), (key(), true)] {
        let packet = sealed(&key, (a, b), &Message::Probe(Probe { records, ..probe(1) }));
        assert_eq!(fabric.deliver(&packet, 1), None);
    }
    // The tag covers the outer addresses.
    let mut bytes = Message::Probe(probe(1)).bytes();
    key().seal((a, b), &mut bytes);
    let packet = packet::build(&headers((other, b), 50_000, 64, false), &bytes);
    assert_eq!(fabric.deliver(&packet, 1), None);
    assert_eq!(fabric.responder.counts.refused, before.refused + 3);
    let packet = sealed(&key(), (other, b), &Message::Probe(probe(1)));
    assert!(fabric.deliver(&packet, 1).is_some() && fabric.deliver(&packet, 1).is_none());
    assert_eq!(fabric.responder.counts.replayed, before.replayed + 1);
}

#[test]
fn a_flood_is_capped_and_fills_no_memory() {
    let mut many = responder();
    let mut answered = 0;
    // Every prober has the key and sends 20 probes, within one second.
    for from in 0..5000u32 {
        let source = Ipv4Addr::from_bits(0x0a63_0000 + from).into();
        for id in 0..20 {
            let probe = Probe { nonce: id, ..probe(id) };
            let packet = sealed(&key(), (source, B), &Message::Probe(probe));
            let received = packet::parse(&packet).unwrap();
            let now = ms(u64::from(from) / 5);
            let Some(Message::Probe(probe)) = many.open(&received) else { continue };
            answered += u32::from(many.answer(now, probe, &received, 1).is_some());
        }
    }
    assert!(many.peers() <= 1024);
    assert_eq!(answered, 100_000, "each sender has a limit of its own");
    // One prober alone: few probes are answered until it shows that it receives answers.
    let mut alone = responder();
    let mut answers = |token, ids: std::ops::Range<u32>| {
        let answer = |id| {
            let probe = Probe { nonce: id, token, ..probe(id) };
            let packet = sealed(&key(), (A, B), &Message::Probe(probe));
            let received = packet::parse(&packet).unwrap();
            let Some(Message::Probe(probe)) = alone.open(&received) else { return None };
            alone.answer(ms(1000), probe, &received, 1)
        };
        ids.filter_map(answer).map(|answer| answer.token).collect::<Vec<u32>>()
    };
    let tokens = answers(0, 0..1000);
    assert_eq!(tokens.len(), 256);
    assert_eq!(answers(tokens[0], 1000..20_000).len(), RATE as usize * 5 / 4);
}

#[test]
fn an_answer_that_claims_an_impossible_way_is_malformed() {
    let answer = Answer {
        probe: probe(1),
        arrival: 1,
        token: 0,
        ttl_seen: 65,
        recorded: vec![],
        report: Report {
            loads: vec![LinkLoad { link: Ipv4Addr::LOCALHOST, kilobytes: 1 }],
            ..Report::default()
        },
    };
    assert!(Message::parse(&Message::Answer(answer).bytes()).is_err());
}
