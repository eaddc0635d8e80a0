//! Values that must never change, because a flow keeps its port and its path across releases and
//! restarts.
//!
//! They were computed with Python from the documentation of `hash`, not with the code under test.
#![cfg(test)]

mod common;

use common::{Frame, bth, roce, udp};
use path::hash::hash;
use path::{Bins, Entropy, Policy, Settings, path_hash};

const SEEDS: [u64; 3] = [0, 7, 0xdead_beef_cafe_f00d];

#[test]
fn hash_of_words() {
    let expected = [
        [0x606e_0a28_82b0_b519, 0x8582_9112_bc20_747e, 0x4b2d_b3e7_e735_61ea],
        [0xaf98_957b_f718_aaa0, 0x6abe_e465_afdc_bd1e, 0xb692_6fa6_1d43_a8d2],
        [0x05ce_39d0_c6f8_71ba, 0xc715_9fb7_c45c_4959, 0xdd44_fe4b_970f_100b],
    ];
    for (seed, expected) in SEEDS.into_iter().zip(expected) {
        assert_eq!([hash(seed, []), hash(seed, [0]), hash(seed, [1, 2, 3])], expected);
    }
}

#[test]
fn hash_of_every_kind_of_key() {
    let queue_pair = Frame::new(roce(0xc000, 4, 0x1234, 0));
    let mut queue_pair_v6 = queue_pair.clone();
    queue_pair_v6.ipv6 = true;
    (queue_pair_v6.source, queue_pair_v6.destination) = ([0, 0, 0, 1], [0, 0, 0, 2]);
    let five_tuple = Frame::new(udp(0xc000, 4791, &bth(4, 0x1234, 0)[..11]));
    let mut fragment = queue_pair.clone();
    fragment.fragment = 0x2000;
    let mut arp = queue_pair.bytes();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let frames = [
        queue_pair.dissect(),
        queue_pair_v6.dissect(),
        five_tuple.dissect(),
        fragment.dissect(),
        wire::dissect(&arp).unwrap(),
    ];
    let expected = [
        [
            0x6eb9_d26d_5870_83f1,
            0x7fbe_27c1_c051_104d,
            0x0ca7_070e_1a40_e25d,
            0x952c_0d03_1c44_f824,
            0x9294_6e62_0c86_028e,
        ],
        [
            0x763e_5035_c167_d561,
            0xcd3f_d60d_2a2e_b58e,
            0x59da_d300_15b6_c258,
            0xb11e_58d1_2b6d_a195,
            0x2656_2a40_50a1_1baa,
        ],
        [
            0x2f37_aa41_68e4_2e5c,
            0xc5c2_3a83_a9f7_bc5b,
            0xee7b_d434_22e6_c961,
            0xcc99_faf9_d6e5_5b91,
            0x2886_1c8c_22d6_2178,
        ],
    ];
    for (seed, expected) in SEEDS.into_iter().zip(expected) {
        let entropy = Entropy::new(Settings { seed, ..Settings::default() }).unwrap();
        assert_eq!(frames.map(|frame| entropy.decide(&frame).hash), expected, "seed {seed:#x}");
    }
}

#[test]
fn hash_of_a_path() {
    let expected = [
        [0x66ef_88bd_a6cf_f77a, 0xcb42_f4c8_05db_2137],
        [0xa0b5_ebff_34a8_2408, 0xc6ca_04bc_7324_c764],
        [0x04c6_3678_d2d6_81e8, 0x3536_c702_1586_1dd5],
    ];
    for (seed, [ipv4, ipv6]) in SEEDS.into_iter().zip(expected) {
        let of = |local: &str, remote: &str| {
            path_hash(seed, local.parse().unwrap(), remote.parse().unwrap(), 49152, 4789)
        };
        assert_eq!(of("10.0.0.1", "10.0.0.2"), ipv4);
        assert_eq!(of("2001:db8::1", "2001:db8::2"), ipv6);
    }
}

#[test]
fn port_of_one_frame_under_each_policy() {
    let frame = Frame::new(roce(0xc000, 4, 0x1234, 0)).dissect();
    let decide = |policy, bins: u16| {
        let bins = Bins::try_from(bins).unwrap();
        let decision = Entropy::new(Settings { policy, seed: 7, bins, ..Settings::default() })
            .unwrap()
            .decide(&frame);
        (decision.source_port, decision.bin)
    };
    // The queue pair's hash is 0x763e5035c167d561: 49152 + ⌊0x763e… · 16384 / 2⁶⁴⌋.
    assert_eq!(decide(Policy::QpHash, 4), (49152 + 7567, None));
    // Bin ⌊0x763e… · 4 / 2⁶⁴⌋ = 1, whose port is 49152 + ⌊1 · 16383 / 3⌋.
    assert_eq!(decide(Policy::QpBins, 4), (49152 + 5461, Some(1)));
    assert_eq!(decide(Policy::QpBins, 1), (49152, Some(0)));
    // The hash of the five-tuple is 0x59dad30015b6c258. The upper half is h = 0x59dad300, and h ^ h
    // << 16 = 0x8adad300 in 32 bits. It is scaled to 60999 − 32768 ports.
    assert_eq!(decide(Policy::FiveTuple, 4), (32768 + 15312, None));
}
