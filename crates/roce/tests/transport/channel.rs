//! Every message arrives once and intact through a channel that loses, doubles, delays and reorders.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;
use roce::{Completion, Operation, Order, Receive, Settings, Status, WorkRequest, nscc};
use wire::ecn::{self, Codepoint};

use crate::host::{Host, hosts, place};

/// What the channel does to frames, in per mille, and the largest delay in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Channel {
    lost: u64,
    doubled: u64,
    damaged: u64,
    marked: u64,
    delay: u64,
}

#[derive(Debug, Clone, Copy)]
struct Message {
    pair: usize,
    kind: u8,
    length: u32,
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A frame on its way: when it arrives, its number, the host, and its bytes.
type Flying = Reverse<(u64, u64, usize, Vec<u8>)>;

/// Runs both hosts until nothing is left to do. Returns when that was.
fn run(hosts: &mut [Host; 2], channel: Channel, seed: u64) -> u64 {
    let (mut random, mut order, mut now) = (seed, 0_u64, 0);
    let mut flying = BinaryHeap::<Flying>::new();
    for _ in 0..1_000_000 {
        let mut wake = u64::MAX;
        for (host, sender) in hosts.iter_mut().enumerate() {
            let (frames, again) = sender.transmit(now);
            wake = wake.min(again.unwrap_or(u64::MAX));
            for mut frame in frames {
                let copies = match next(&mut random) % 1000 {
                    draw if draw < channel.lost => 0,
                    draw if draw < channel.lost + channel.doubled => 2,
                    _ => 1,
                };
                if next(&mut random) % 1000 < channel.damaged {
                    let bit = next(&mut random) as usize % (frame.len() * 8);
                    frame[bit / 8] ^= 1 << (bit % 8);
                }
                if next(&mut random) % 1000 < channel.marked {
                    ecn::set(&mut frame[14..], Codepoint::Ce);
                }
                for _ in 0..copies {
                    let at = now + 1 + next(&mut random) % channel.delay;
                    order += 1;
                    flying.push(Reverse((at, order, 1 - host, frame.clone())));
                }
            }
        }
        now = match flying.peek() {
            Some(Reverse((at, ..))) => wake.min(*at).max(now),
            None if wake == u64::MAX => return now,
            None => wake.max(now),
        };
        while let Some(Reverse((at, ..))) = flying.peek()
            && *at <= now
        {
            let Some(Reverse((.., to, frame))) = flying.pop() else { break };
            hosts[to].receive(now, &frame);
        }
    }
    panic!("the transfer does not end");
}

const SLOT: u64 = 4096;

/// Each setting that an endpoint of the other order does not have.
fn settings() -> [Settings; 4] {
    let dropping = Settings {
        mtu: 256,
        timeout: 50_000,
        retries: u32::MAX,
        window: 4096,
        reads: 2,
        burst: 3,
        ..Settings::default()
    };
    let nscc = Some(nscc::Parameters { round_trip: 20_000 });
    let window = Settings { nscc, rate: 10_000_000_000, ..dropping.clone() };
    let placing = Settings {
        order: Order::Place,
        reordering: 20_000,
        window: 1 << 20,
        acknowledge_bytes: 1000,
        acknowledge_marked: true,
        ..dropping.clone()
    };
    let each = Settings { reth_in_each: true, nscc, rate: 10_000_000_000, ..placing.clone() };
    [dropping, window, placing, each]
}

fn check(messages: &[Message], channel: Channel, settings: &Settings, seed: u64) {
    let size = messages.len() * SLOT as usize;
    let mut hosts = hosts(settings, 3, 2 * size);
    // The first half of a memory is what the host has, the second half what it gets.
    let mut random = seed;
    for host in &mut hosts {
        host.memory.bytes[..size].iter_mut().for_each(|byte| *byte = next(&mut random) as u8);
    }
    let mut sends = Vec::new();
    for (message, id) in messages.iter().zip(0_u64..) {
        let (own, other) = (place(id * SLOT), place(size as u64 + id * SLOT));
        let pair = hosts[0].pairs[message.pair];
        let immediate = (message.kind >= 3).then_some(id as u32);
        let (operation, local) = match message.kind {
            0 => (Operation::Read { remote: own }, other),
            1 | 3 => (Operation::Write { remote: other, immediate }, own),
            _ => (Operation::Send { immediate }, own),
        };
        if message.kind >= 2 {
            let receive = Receive { id, place: other, length: SLOT as u32 };
            hosts[1].endpoint.post_receive(hosts[1].pairs[message.pair], receive).unwrap();
            sends.push((message.pair, id, message.length, immediate));
        }
        let work = WorkRequest { id, operation, local, length: message.length };
        hosts[0].endpoint.post(pair, work, 0).unwrap();
    }
    run(&mut hosts, channel, seed);

    let mut done: Vec<_> = hosts[0].completed();
    done.sort_by_key(|(id, _)| *id);
    let expected: Vec<_> = (0..messages.len() as u64).map(|id| (id, Status::Success)).collect();
    assert_eq!(done, expected, "every request completes once");
    let mut received = Vec::new();
    while let Some(completion) = hosts[1].endpoint.completion() {
        let Completion::Received { queue_pair, id, length, immediate } = completion else {
            panic!("{completion:?}")
        };
        let pair = hosts[1].pairs.iter().position(|pair| *pair == queue_pair).unwrap();
        received.push((pair, id, length, immediate));
    }
    for pair in 0..3 {
        let of = |list: &[(usize, u64, u32, Option<u32>)]| -> Vec<_> {
            list.iter().filter(|entry| entry.0 == pair).copied().collect()
        };
        assert_eq!(of(&received), of(&sends), "every message once and in order");
    }
    for (message, id) in messages.iter().zip(0..) {
        let (from, to) = if message.kind == 0 { (1, 0) } else { (0, 1) };
        let start = id * SLOT as usize;
        let own = &hosts[from].memory.bytes[start..start + SLOT as usize];
        let got = &hosts[to].memory.bytes[size + start..size + start + SLOT as usize];
        let length = message.length as usize;
        assert_eq!(got[..length], own[..length], "message {id}");
        assert!(got[length..].iter().all(|byte| *byte == 0), "message {id} is longer");
    }
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let length = prop_oneof![Just(0), Just(256), Just(512), 0..=SLOT as u32];
    let message = (0..3_usize, 0..=4_u8, length).prop_map(|(pair, kind, length)| Message {
        pair,
        kind,
        length,
    });
    prop::collection::vec(message, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_message_arrives_once_and_intact(
        messages in messages(),
        (lost, doubled, damaged) in (0..300_u64, 0..200_u64, 0..50_u64),
        delay in prop_oneof![Just(1), 1..100_000_u64],
        marked in 0..500_u64,
        settings in prop::sample::select(settings().to_vec()),
        seed in any::<u64>(),
    ) {
        let channel = Channel { lost, doubled, damaged, marked, delay };
        check(&messages, channel, &settings, seed);
    }
}

#[test]
fn a_long_transfer_passes_the_end_of_the_sequence_numbers() {
    let message =
        |at: usize| Message { pair: at % 3, kind: (at % 5) as u8, length: (at * 37 % 4097) as u32 };
    let messages: Vec<_> = (0..200_usize).map(message).collect();
    for settings in settings() {
        let channel = Channel { lost: 10, doubled: 5, damaged: 2, marked: 10, delay: 2000 };
        check(&messages, channel, &settings, 1);
    }
}
