use proptest::prelude::*;

use super::*;

const PSN: u32 = 0x00ff_ffff;
const HALF: u32 = 1 << 23;

const SEND: u8 = opcode::RC_SEND_ONLY;
const READ: u8 = opcode::RC_READ_REQUEST;
const ACKNOWLEDGE: u8 = opcode::RC_ACKNOWLEDGE;

const fn packet(opcode: u8, sequence: u32) -> Packet {
    Packet { opcode, sequence, syndrome: 0, is_marked: false }
}

fn counts_of(packets: impl IntoIterator<Item = Packet>) -> Counts {
    let record = Record::default();
    packets.into_iter().for_each(|packet| update(&record, packet));
    read(&record).0
}

fn gaps_and_repeats(packets: &[(u8, u32)]) -> (u64, u64) {
    let counts = counts_of(packets.iter().map(|(opcode, sequence)| packet(*opcode, *sequence)));
    assert_eq!((counts.naks, counts.cnps, counts.marks), (0, 0, 0));
    (counts.gaps, counts.repeats)
}

#[test]
fn gaps_and_repeats_are_those_of_requests() {
    let sends = |numbers: &[u32]| numbers.iter().map(|psn| (SEND, *psn)).collect::<Vec<_>>();
    for (numbers, expected) in [
        (&[7, 8, 9][..], (0, 0)),
        (&[7, 9, 8, 10], (1, 1)),
        (&[7, 12, 12, 13], (4, 1)),
        (&[7, 8, 9, 7, 8, 9, 10], (0, 3)),
        (&[PSN - 1, PSN, 0, 1], (0, 0)),
        (&[PSN, 2, PSN], (2, 1)),
        (&[0, HALF - 1], (u64::from(HALF) - 2, 0)),
        (&[0, HALF], (0, 1)),
    ] {
        assert_eq!(gaps_and_repeats(&sends(numbers)), expected, "{numbers:?}");
    }
    let others = [(SEND, 5), (ACKNOWLEDGE, 90), (0x0d, 91), (0x10, 3), (0x12, 9), (SEND, 6)];
    assert_eq!(gaps_and_repeats(&others), (0, 0));
    for request in [0x13, 0x14, 0x16, 0x17] {
        assert_eq!(gaps_and_repeats(&[(SEND, 5), (request, 7)]), (1, 0), "{request:#x}");
    }
}

#[test]
fn a_read_request_leaves_the_next_number_open() {
    assert_eq!(gaps_and_repeats(&[(SEND, 1), (READ, 2), (SEND, 40), (SEND, 42)]), (1, 0));
    assert_eq!(gaps_and_repeats(&[(SEND, 1), (READ, 4), (READ, 9), (SEND, 9)]), (2, 1));
}

#[test]
fn naks_notifications_and_marks_are_counted() {
    let of = |syndrome| Packet { syndrome, ..packet(ACKNOWLEDGE, 1) };
    // ACK, RNR NAK, reserved, NAK; the low bits are details.
    let counts = counts_of([0x1f, 0x20, 0x40, 0x60, 0x62].map(of));
    assert_eq!(counts, Counts { naks: 2, ..Counts::default() });
    let notification = packet(opcode::CONGESTION_NOTIFICATION, 77);
    let counts = counts_of([packet(SEND, 1), notification, packet(SEND, 2)]);
    assert_eq!(counts, Counts { cnps: 1, ..Counts::default() });
    let marked = Packet { is_marked: true, ..packet(SEND, 1) };
    assert_eq!(counts_of([marked, marked]).marks, 2);
}

#[test]
fn fields_are_read_from_the_headers() {
    let bth = |payload: &[u8]| {
        let header = [ACKNOWLEDGE, 0x40, 0xff, 0xff, 0, 0, 0, 9, 0x80, 1, 2, 3];
        [&header[..], payload].concat()
    };
    let expected = |syndrome, is_marked| {
        Some(Packet { opcode: ACKNOWLEDGE, sequence: 0x01_0203, syndrome, is_marked })
    };
    assert_eq!(Packet::of(3, &bth(&[0x61, 0])), expected(0x61, true));
    assert_eq!(Packet::of(0x1e, &bth(&[])), expected(0, false));
    assert_eq!(Packet::of(0, &bth(&[])[..11]), None);
}

#[test]
fn a_restarted_record_keeps_its_counts_but_knows_no_number() {
    let record = Record::default();
    [5, 7].into_iter().for_each(|psn| update(&record, packet(SEND, psn)));
    restart(&record);
    update(&record, packet(SEND, 1000));
    assert_eq!(read(&record), (Counts { gaps: 1, ..Counts::default() }, 3));
}

/// A simple model: the distance to the highest number, counted without wrapping.
fn model(packets: &[Packet], start: i64) -> Counts {
    let (mut counts, mut highest, mut is_open) = (Counts::default(), None::<i64>, false);
    // The number of each request is unwrapped next to the highest so far.
    for packet in packets {
        counts.marks += u64::from(packet.is_marked);
        match packet.opcode {
            0x11 => counts.naks += u64::from(packet.syndrome >> 5 & 3 == 3),
            0x81 => counts.cnps += 1,
            0..=0x0c | 0x13 | 0x14 | 0x16 | 0x17 => {
                let near = highest.unwrap_or(start);
                let unwrapped = (-1..=1)
                    .map(|turn| {
                        let base = near.div_euclid(1 << 24) + turn;
                        (base << 24) + i64::from(packet.sequence)
                    })
                    .find(|number| (-(1 << 23)..1 << 23).contains(&(number - near)))
                    .unwrap();
                match highest {
                    Some(highest) if unwrapped <= highest => {
                        counts.repeats += 1;
                        continue;
                    }
                    Some(highest) if !is_open => counts.gaps += (unwrapped - highest - 1) as u64,
                    _ => {}
                }
                highest = Some(unwrapped);
                is_open = packet.opcode == READ;
            }
            _ => {}
        }
    }
    counts
}

proptest! {
    #[test]
    fn records_agree_with_the_model(
        start in 0..1_u32 << 24,
        steps in prop::collection::vec(
            (any::<u8>(), prop_oneof![Just(1), -3..5_i32, any::<i32>()], any::<u8>(), any::<bool>()),
            0..200,
        ),
        is_sending in any::<bool>(),
    ) {
        let mut sequence = start;
        let packets: Vec<Packet> = steps
            .into_iter()
            .map(|(opcode, step, syndrome, is_marked)| {
                sequence = sequence.wrapping_add_signed(step) & PSN;
                let opcode = if is_sending { opcode % 0x18 } else { opcode };
                Packet { opcode, sequence, syndrome, is_marked }
            })
            .collect();
        prop_assert_eq!(counts_of(packets.iter().copied()), model(&packets, start.into()));
    }
}
