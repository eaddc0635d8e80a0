//! Sequence charts of the InfiniBand architecture, volume 1, section 9.7. Host 0 requests. Sequence
//! numbers are relative; `!` requests an acknowledgement.

use roce::{Settings, Status};

use crate::host::{Host, chart, hosts};

const TIMEOUT: u64 = 1000;

fn settings() -> Settings {
    Settings { mtu: 256, timeout: TIMEOUT, retries: 2, ..Settings::default() }
}

fn two() -> [Host; 2] {
    let mut hosts = hosts(&settings(), 1, 4096);
    hosts[0].memory.bytes.iter_mut().zip(0..).for_each(|(byte, at)| *byte = (at % 251) as u8);
    hosts
}

/// Sends what is due at `from`, and delivers it except for the frames in `lost`. Returns the chart.
fn pass(from: &mut Host, to: &mut Host, now: u64, lost: &[usize]) -> Vec<String> {
    let (frames, _) = from.transmit(now);
    for (at, frame) in frames.iter().enumerate() {
        if !lost.contains(&at) {
            to.receive(now, frame);
        }
    }
    chart(&frames, 0)
}

const NONE: &[usize] = &[];

#[test]
fn a_write_of_three_packets_needs_one_acknowledgement() {
    let [mut a, mut b] = two();
    a.write(1, 600);
    assert_eq!(pass(&mut a, &mut b, 0, NONE), ["first 0", "middle 1", "last 2!"]);
    assert_eq!(a.completed(), []);
    assert_eq!(pass(&mut b, &mut a, 7, NONE), ["ack 2"]);
    assert_eq!(a.completed(), [(1, Status::Success)]);
    assert_eq!(b.memory.bytes[..600], a.memory.bytes[..600]);
    assert!(b.memory.bytes[600..].iter().all(|byte| *byte == 0));
    assert_eq!(a.endpoint.latencies().max(), 7);
    // Nothing is left to do, and no timer runs.
    assert_eq!((a.transmit(8), b.transmit(8)), ((vec![], None), (vec![], None)));
}

#[test]
fn acknowledgements_of_a_batch_are_coalesced() {
    let [mut a, mut b] = two();
    (0..3).for_each(|id| a.write(id, 10));
    assert_eq!(pass(&mut a, &mut b, 0, NONE), ["only 0!", "only 1!", "only 2!"]);
    assert_eq!(pass(&mut b, &mut a, 0, NONE), ["ack 2"]);
    assert_eq!(a.completed().len(), 3);
}

#[test]
fn a_lost_request_is_naked_once_and_everything_after_it_is_sent_again() {
    let [mut a, mut b] = two();
    a.write(1, 1280);
    assert_eq!(pass(&mut a, &mut b, 0, &[1]).len(), 5);
    // One NAK for three packets after the gap (9.7.5.2.8).
    assert_eq!(pass(&mut b, &mut a, 0, NONE), ["nak0 1"]);
    assert_eq!(b.endpoint.counters().out_of_sequence, 3);
    assert_eq!(a.endpoint.counters().packet_seq_err, 1);
    let again = ["middle 1", "middle 2", "middle 3", "last 4!"];
    assert_eq!(pass(&mut a, &mut b, 0, NONE), again);
    assert_eq!(pass(&mut b, &mut a, 0, NONE), ["ack 4"]);
    assert_eq!(a.completed(), [(1, Status::Success)]);
    assert_eq!(a.endpoint.counters().retransmitted_packets, 4);
    assert_eq!(a.endpoint.counters().local_ack_timeout_err, 0);
    assert_eq!(b.memory.bytes[..1280], a.memory.bytes[..1280]);
}

#[test]
fn a_lost_acknowledgement_is_covered_by_the_next_one() {
    let [mut a, mut b] = two();
    a.write(1, 10);
    pass(&mut a, &mut b, 0, NONE);
    pass(&mut b, &mut a, 0, &[0]);
    a.write(2, 10);
    assert_eq!(pass(&mut a, &mut b, 0, NONE), ["only 1!"]);
    assert_eq!(pass(&mut b, &mut a, 0, NONE), ["ack 1"]);
    assert_eq!(a.completed(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_lost_last_acknowledgement_is_asked_for_by_the_timer() {
    let [mut a, mut b] = two();
    a.write(1, 300);
    pass(&mut a, &mut b, 5, NONE);
    pass(&mut b, &mut a, 5, &[0]);
    assert_eq!(a.transmit(5 + TIMEOUT - 1), (vec![], Some(5 + TIMEOUT)));
    assert_eq!(pass(&mut a, &mut b, 5 + TIMEOUT, NONE), ["first 0", "last 1!"]);
    // Duplicates are not executed again, only acknowledged with the newest number (9.7.5.1.4).
    b.memory.bytes.fill(9);
    assert_eq!(pass(&mut b, &mut a, 5 + TIMEOUT, NONE), ["ack 1"]);
    assert!(b.memory.bytes.iter().all(|byte| *byte == 9));
    assert_eq!(b.endpoint.counters().duplicate_request, 2);
    assert_eq!(a.endpoint.counters().local_ack_timeout_err, 1);
    assert_eq!(a.completed(), [(1, Status::Success)]);
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_is_ignored() {
    let [mut a, mut b] = two();
    a.write(1, 10);
    pass(&mut a, &mut b, 0, NONE);
    let (mut frames, _) = b.transmit(0);
    // The last byte of the sequence number.
    frames[0][53] += 1;
    wire::icrc::fill(&mut frames[0][14..]).unwrap();
    assert_eq!(chart(&frames, 0), ["ack 1"]);
    a.receive(0, &frames[0]);
    assert_eq!(a.completed(), []);
    a.write(2, 10);
    assert_eq!(pass(&mut a, &mut b, 0, NONE), ["only 1!"]);
}

#[test]
fn a_peer_that_stays_silent_ends_the_connection_after_the_retries() {
    let [mut a, mut b] = two();
    a.write(1, 10);
    a.write(2, 10);
    for retry in 0..=2 {
        assert_eq!(pass(&mut a, &mut b, retry * TIMEOUT, &[0, 1]).len(), 2);
        assert_eq!(a.completed(), []);
    }
    assert_eq!(a.transmit(3 * TIMEOUT), (vec![], None));
    assert_eq!(a.completed(), [(1, Status::RetryExceeded), (2, Status::Flushed)]);
    a.write(3, 10);
    assert_eq!(a.completed(), [(3, Status::Flushed)]);
    let counters = a.endpoint.counters();
    assert_eq!((counters.local_ack_timeout_err, counters.req_transport_retries_exceeded), (3, 1));
}

#[test]
fn a_receiver_without_buffer_delays_the_sender() {
    let [mut a, mut b] = two();
    a.send(1, 300);
    assert_eq!(pass(&mut a, &mut b, 0, NONE), ["first 0", "last 1!"]);
    assert_eq!(pass(&mut b, &mut a, 0, NONE), ["rnr 0"]);
    assert_eq!(b.endpoint.counters().out_of_buffer, 1);
    assert_eq!(a.endpoint.counters().rnr_nak_received, 1);
    // Code 12 is 0.64 ms.
    assert_eq!(a.transmit(1), (vec![], Some(640_000)));
    b.receive_buffer(5, 1000, 300);
    assert_eq!(pass(&mut a, &mut b, 640_000, NONE), ["first 0", "last 1!"]);
    assert_eq!(pass(&mut b, &mut a, 640_000, NONE), ["ack 1"]);
    assert_eq!(a.completed(), [(1, Status::Success)]);
    assert_eq!(b.memory.bytes[1000..1300], a.memory.bytes[..300]);
}

#[test]
fn a_read_is_answered_in_order_with_an_acknowledgement_of_what_was_before() {
    let [mut a, mut b] = two();
    b.memory.bytes[..600].copy_from_slice(&a.memory.bytes[100..700]);
    a.write(1, 0);
    a.read(2, 600);
    a.write(3, 0);
    assert_eq!(pass(&mut a, &mut b, 0, NONE), ["only 0!", "read 1", "only 4!"]);
    let answers = ["ack 0", "response 1", "response 2", "response 3", "ack 4"];
    // The first acknowledgement is lost: the responses imply it (9.7.5.1.2).
    assert_eq!(pass(&mut b, &mut a, 0, &[0]), answers);
    let done = [1, 2, 3].map(|id| (id, Status::Success));
    assert_eq!(a.completed(), done);
    assert_eq!(a.memory.bytes[..600], b.memory.bytes[..600]);
}

/// As Soft-RoCE does (`rxe_requester()` in drivers/infiniband/sw/rxe/rxe_req.c).
#[test]
fn a_read_that_asks_for_an_acknowledgement_gets_its_response_only() {
    let [mut a, mut b] = two();
    a.read(1, 600);
    a.read(2, 0);
    for mut frame in a.transmit(0).0 {
        // The bit of the base transport header, and the ICRC over it.
        frame[42 + 8] |= 0x80;
        wire::icrc::fill(&mut frame[14..]).unwrap();
        b.receive(0, &frame);
    }
    let answers = ["response 0", "response 1", "response 2", "response 3"];
    assert_eq!(pass(&mut b, &mut a, 0, NONE), answers);
    assert_eq!(a.completed(), [1, 2].map(|id| (id, Status::Success)));
}

#[test]
fn a_lost_read_response_is_an_implied_nak() {
    let [mut a, mut b] = two();
    b.memory.bytes.iter_mut().for_each(|byte| *byte = 3);
    a.read(1, 1000);
    a.write(2, 0);
    assert_eq!(pass(&mut a, &mut b, 0, NONE), ["read 0", "only 4!"]);
    let answers = ["response 0", "response 1", "response 2", "response 3", "ack 4"];
    assert_eq!(pass(&mut b, &mut a, 0, &[1]), answers);
    assert_eq!(a.endpoint.counters().implied_nak_seq_err, 1);
    // The rest of the read is requested, from the missing response on.
    assert_eq!(pass(&mut a, &mut b, 0, NONE), ["read 1", "only 4!"]);
    let answers = ["response 1", "response 2", "response 3", "ack 4"];
    assert_eq!(pass(&mut b, &mut a, 0, NONE), answers);
    assert_eq!(a.completed(), [(1, Status::Success), (2, Status::Success)]);
    assert!(a.memory.bytes[..1000].iter().all(|byte| *byte == 3));
    assert_eq!(a.endpoint.counters().local_ack_timeout_err, 0);
}

#[test]
fn an_address_outside_the_memory_is_refused() {
    for (read, status) in [(false, Status::RemoteAccess), (true, Status::RemoteAccess)] {
        let [mut a, mut b] = two();
        b.memory.bytes.truncate(100);
        if read {
            a.read(1, 300)
        } else {
            a.write(1, 300)
        }
        pass(&mut a, &mut b, 0, NONE);
        assert_eq!(pass(&mut b, &mut a, 0, NONE), ["nak2 0"]);
        assert_eq!(a.completed(), [(1, status)]);
        assert_eq!(a.endpoint.failed(a.pairs[0]), Some(status));
    }
}

#[test]
fn the_window_limits_what_is_outstanding_and_asks_for_an_acknowledgement() {
    let settings = Settings { window: 1024, acknowledge_every: 3, ..settings() };
    let [mut a, mut b] = hosts(&settings, 1, 4096);
    a.write(1, 2048);
    let sent = ["first 0", "middle 1", "middle 2!", "middle 3!"];
    assert_eq!(pass(&mut a, &mut b, 0, NONE), sent);
    assert_eq!(pass(&mut a, &mut b, 0, NONE), [""; 0]);
    assert_eq!(pass(&mut b, &mut a, 0, NONE), ["ack 3"]);
    assert_eq!(pass(&mut a, &mut b, 0, NONE), ["middle 4", "middle 5", "middle 6!", "last 7!"]);
}

#[test]
fn queue_pairs_take_turns_and_the_rate_is_kept() {
    let long = 1 << 30;
    let settings =
        Settings { burst: 1, rate: 8_000_000_000, window: long, timeout: 1 << 40, ..settings() };
    let [mut a, _] = hosts(&settings, 2, 4 << 20);
    for pair in a.pairs.clone() {
        a.pairs[0] = pair;
        a.write(1, 4 << 20);
    }
    // One byte per nanosecond. After a pause, the endpoint catches up 2 ms.
    let start = 1_000_000_000;
    let (mut now, mut bytes, mut packets) = (start, 0, [0_i64; 2]);
    while now < start + 1_000_000 {
        let (frames, wake) = a.transmit(now);
        for frame in frames {
            assert!(bytes <= now + 2_000_000 - start, "{bytes} bytes at {now}");
            bytes += frame.len() as u64;
            packets[usize::from(frame[49])] += 1;
            assert!((packets[0] - packets[1]).abs() <= 1, "{packets:?}");
        }
        now = wake.unwrap();
    }
    assert!((3_000_000..3_000_400).contains(&bytes), "{bytes}");
}
