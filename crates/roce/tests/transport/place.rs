//! Packets that arrive out of order are kept, and only missing ones are sent again.

use roce::{Operation, Order, Settings, Status, nscc};
use wire::ecn::{self, Codepoint};

use crate::host::{Host, chart, hosts, place};

fn settings() -> Settings {
    Settings { mtu: 256, order: Order::Place, reordering: 10_000, ..Settings::default() }
}

/// Hosts of which the first has bytes that differ.
fn filled(settings: &Settings) -> [Host; 2] {
    let mut hosts = hosts(settings, 1, 8192);
    hosts[0].memory.bytes.iter_mut().zip(0_u32..).for_each(|(byte, at)| *byte = (at / 7) as u8);
    hosts
}

fn hand_over(frames: &[Vec<u8>], to: &mut Host, now: u64) {
    frames.iter().for_each(|frame| to.receive(now, frame));
}

#[test]
fn only_the_lost_packet_is_sent_again() {
    let [mut a, mut b] = filled(&settings());
    a.write(1, 2048);
    let (frames, _) = a.transmit(0);
    assert_eq!(chart(&frames, 0)[5..], ["middle 5", "middle 6", "last 7!"]);
    // Packet 2 is lost. The last packet asks for an acknowledgement.
    hand_over(&[&frames[..2], &frames[3..]].concat(), &mut b, 5000);
    let (answers, _) = b.transmit(5000);
    assert_eq!(chart(&answers, 0), ["sack 1"]);
    hand_over(&answers, &mut a, 10_000);
    // 10 µs for the round trip and 10 µs for paths that differ.
    let (none, wake) = a.transmit(10_000);
    assert_eq!((none.len(), wake), (0, Some(20_000)));
    let (again, _) = a.transmit(20_000);
    assert_eq!(chart(&again, 0), ["middle 2!"]);
    hand_over(&again, &mut b, 25_000);
    let (answers, _) = b.transmit(25_000);
    // It closes the gap: the acknowledgement names the packet that caused it.
    assert_eq!(chart(&answers, 0), ["sack 7"]);
    hand_over(&answers, &mut a, 30_000);
    assert_eq!(a.completed(), [(1, Status::Success)]);
    assert_eq!(b.memory.bytes[..2048], a.memory.bytes[..2048]);
    let (sender, receiver) = (a.endpoint.counters(), b.endpoint.counters());
    assert_eq!((sender.retransmitted_packets, sender.packet_seq_err), (1, 0));
    assert_eq!((sender.selective_acks_received, sender.local_ack_timeout_err), (2, 0));
    assert_eq!((receiver.out_of_sequence, receiver.kept_out_of_order), (5, 5));
    assert_eq!(receiver.duplicate_request, 0);
    assert_eq!(a.transmit(1_000_000_000).1, None);
}

#[test]
fn reordered_and_doubled_packets_cause_no_retransmission() {
    let [mut a, mut b] = filled(&settings());
    a.write(1, 2048);
    let (mut frames, _) = a.transmit(0);
    frames.reverse();
    frames.push(frames[0].clone());
    frames.insert(3, frames[2].clone());
    hand_over(&frames, &mut b, 5000);
    let (answers, _) = b.transmit(5000);
    hand_over(&answers, &mut a, 10_000);
    assert_eq!(a.completed(), [(1, Status::Success)]);
    assert_eq!(b.memory.bytes[..2048], a.memory.bytes[..2048]);
    assert_eq!(a.endpoint.counters().retransmitted_packets, 0);
    let receiver = b.endpoint.counters();
    assert_eq!((receiver.out_of_sequence, receiver.kept_out_of_order), (8, 7));
    assert_eq!(receiver.duplicate_request, 2);
}

#[test]
fn with_a_reth_in_each_packet_bytes_are_placed_when_they_arrive() {
    for each in [false, true] {
        let [mut a, mut b] = filled(&Settings { reth_in_each: each, ..settings() });
        a.write(1, 1024);
        let (frames, _) = a.transmit(0);
        hand_over(&frames[2..3], &mut b, 5000);
        assert_eq!(b.memory.bytes[512..768] == a.memory.bytes[512..768], each);
        // The other three, the first of them last.
        hand_over(&frames[3..], &mut b, 5000);
        hand_over(&frames[1..2], &mut b, 5000);
        hand_over(&frames[..1], &mut b, 5000);
        assert_eq!(b.memory.bytes[..1024], a.memory.bytes[..1024]);
        let length = frames[1].len() - 256 - 58;
        assert_eq!(length, if each { 16 } else { 0 });
    }
}

#[test]
fn an_address_that_does_not_continue_the_message_is_refused() {
    let [mut a, mut b] = filled(&Settings { reth_in_each: true, ..settings() });
    let [mut c, _] = filled(&Settings { reth_in_each: true, ..settings() });
    let operation = Operation::Write { remote: place(4096), immediate: None };
    c.post(1, operation, 0, 512);
    a.write(1, 512);
    let (own, foreign) = (a.transmit(0).0, c.transmit(0).0);
    hand_over(&[own[0].clone(), foreign[1].clone()], &mut b, 0);
    assert_eq!(chart(&b.transmit(0).0, 0), ["nak1 1"]);
}

#[test]
fn a_responder_acknowledges_after_so_many_bytes_and_marks_at_once() {
    let nscc = Some(nscc::Parameters { round_trip: 10_000 });
    let settings = Settings {
        acknowledge_bytes: 1024,
        acknowledge_marked: true,
        nscc,
        rate: 10_000_000_000,
        ..settings()
    };
    let [mut a, mut b] = filled(&settings);
    assert_eq!(a.endpoint.rate(a.pairs[0]), None);
    a.write(1, 8192);
    // 1.5 times 12,500 bytes are allowed; the message has 32 packets.
    let mut frames = Vec::new();
    let mut now = 0;
    while frames.len() < 32 {
        let (more, wake) = a.transmit(now);
        frames.extend(more);
        now = wake.unwrap();
    }
    let mut found = Vec::new();
    for (at, frame) in frames.iter_mut().enumerate() {
        assert_eq!(Codepoint::of(frame[15]), Codepoint::Ect0);
        if at == 5 {
            assert!(ecn::set(&mut frame[14..], Codepoint::Ce));
        }
        b.receive(now, frame);
        let (answers, _) = b.transmit(now);
        // The bit for backward congestion echoes the mark.
        let echoed = answers.iter().map(|answer| answer[46] & 0x40 != 0);
        found.extend(chart(&answers, 0).into_iter().zip(echoed));
    }
    let expected = [
        ("ack 3", false),
        ("ack 5", true),
        ("ack 9", false),
        ("ack 13", false),
        ("ack 15", false),
        ("ack 19", false),
        ("ack 23", false),
        ("ack 27", false),
        ("ack 31", false),
    ];
    assert_eq!(found, expected.map(|(text, mark)| (text.to_owned(), mark)));
    assert_eq!(b.endpoint.counters().np_cnp_sent, 0);
}

#[test]
fn a_window_of_congestion_control_limits_what_is_under_way() {
    // 1.5 times 1 Gbit/s in 10 µs: 1875 bytes, seven packets.
    let nscc = Some(nscc::Parameters { round_trip: 10_000 });
    for order in [Order::Drop, Order::Place] {
        let settings = Settings { nscc, order, rate: 1_000_000_000, ..settings() };
        let [mut a, mut b] = filled(&settings);
        a.write(1, 8192);
        let (mut sent, mut now) = (Vec::new(), 0);
        while now < 1_000_000 {
            let (frames, wake) = a.transmit(now);
            sent.extend(frames);
            now = wake.unwrap();
        }
        now = 100_000;
        // The last of them asks for an acknowledgement.
        assert_eq!(chart(&sent, 0)[5..], ["middle 5", "middle 6!"], "{order:?}");
        hand_over(&sent, &mut b, now);
        hand_over(&b.transmit(now).0, &mut a, now);
        assert!(!a.transmit(now).0.is_empty());
    }
}

#[test]
fn a_receiver_without_buffer_gets_a_kept_message_once_more() {
    let [mut a, mut b] = filled(&settings());
    a.send(1, 100);
    a.send(2, 100);
    b.receive_buffer(7, 4096, 100);
    let (frames, _) = a.transmit(0);
    hand_over(&[frames[1].clone(), frames[0].clone()], &mut b, 1000);
    let (answers, _) = b.transmit(1000);
    assert_eq!(chart(&answers, 0), ["sack -1", "rnr 1"]);
    hand_over(&answers, &mut a, 2000);
    b.receive_buffer(8, 4196, 100);
    let (none, wake) = a.transmit(12_000);
    assert_eq!((none.len(), wake), (0, Some(642_000)));
    let (again, _) = a.transmit(642_000);
    assert_eq!(chart(&again, 0), ["only 1!"]);
    hand_over(&again, &mut b, 643_000);
    hand_over(&b.transmit(643_000).0, &mut a, 644_000);
    assert_eq!(a.completed(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_requester_that_places_goes_back_if_the_responder_drops() {
    let [mut a, _] = filled(&settings());
    let [_, mut b] = filled(&Settings { order: Order::Drop, ..settings() });
    a.write(1, 1024);
    let (frames, _) = a.transmit(0);
    hand_over(&[&frames[..1], &frames[2..]].concat(), &mut b, 1000);
    let (answers, _) = b.transmit(1000);
    assert_eq!(chart(&answers, 0), ["nak0 1"]);
    hand_over(&answers, &mut a, 2000);
    let (again, _) = a.transmit(2000);
    assert_eq!(chart(&again, 0), ["middle 1!", "middle 2!", "last 3!"]);
    hand_over(&again, &mut b, 3000);
    hand_over(&b.transmit(3000).0, &mut a, 4000);
    assert_eq!(a.completed(), [(1, Status::Success)]);
}
