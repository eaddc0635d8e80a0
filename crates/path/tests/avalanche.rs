//! A change of one input bit changes each bit of the hash with probability one half.
#![cfg(test)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use path::{Key, path_hash};
use wire::{MacAddr, QueuePair};

/// Trials for each pair of input and output bit. The tolerance is five standard deviations of a
/// fair coin, because some 25,000 pairs are tested.
const TRIALS: u32 = 2048;
const TOLERANCE: f64 = 5.0 * 0.5 / 45.25;

/// Input bits are two addresses, 24 further bits and the seed. The inputs are either consecutive
/// numbers, as in a network, or scattered.
fn assert_avalanche(name: &str, bits: usize, hash: impl Fn(&[u128; 4]) -> u64) {
    for scattered in [false, true] {
        let base = |trial: u32| {
            let trial = u128::from(trial);
            let factor = if scattered { 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835 } else { 1 };
            [1, 2, 3, 4].map(|field: u128| (trial * 4 + field).wrapping_mul(factor))
        };
        for (field, width) in [bits, bits, 24, 64].into_iter().enumerate() {
            for bit in 0..width {
                let mut changes = [0u32; 64];
                for trial in 0..TRIALS {
                    let input = base(trial);
                    let mut changed = input;
                    changed[field] ^= 1 << bit;
                    let difference = hash(&input) ^ hash(&changed);
                    for (output, count) in changes.iter_mut().enumerate() {
                        *count += (difference >> output) as u32 & 1;
                    }
                }
                for (output, count) in changes.into_iter().enumerate() {
                    let share = f64::from(count) / f64::from(TRIALS);
                    assert!(
                        (share - 0.5).abs() < TOLERANCE,
                        "{name}, scattered {scattered}: bit {bit} of field {field} changes bit {output} in {share}"
                    );
                }
            }
        }
    }
}

#[test]
fn queue_pair_keys_of_ipv4() {
    assert_avalanche("IPv4", 32, |&[source, destination, number, seed]| {
        let [source, destination] =
            [source, destination].map(|bits| IpAddr::from(Ipv4Addr::from(bits as u32)));
        let queue_pair = QueuePair::try_from(number as u32 & QueuePair::MAX).unwrap();
        Key::QueuePair { source, destination, queue_pair }.hash(seed as u64)
    });
}

#[test]
fn queue_pair_keys_of_ipv6() {
    assert_avalanche("IPv6", 128, |&[source, destination, number, seed]| {
        let [source, destination] =
            [source, destination].map(|bits| IpAddr::from(Ipv6Addr::from(bits)));
        let queue_pair = QueuePair::try_from(number as u32 & QueuePair::MAX).unwrap();
        Key::QueuePair { source, destination, queue_pair }.hash(seed as u64)
    });
}

#[test]
fn five_tuple_keys() {
    assert_avalanche("five-tuple", 16, |&[source_port, destination_port, addresses, seed]| {
        let [source, destination] =
            [addresses, addresses >> 12].map(|bits| IpAddr::from(Ipv4Addr::from(bits as u32)));
        let (source_port, destination_port) = (source_port as u16, destination_port as u16);
        Key::FiveTuple { source, destination, protocol: 17, source_port, destination_port }
            .hash(seed as u64)
    });
}

#[test]
fn mac_keys() {
    assert_avalanche("MAC", 48, |&[source, destination, ethertype, seed]| {
        let mac = |bits: u128| {
            let [.., a, b, c, d, e, f] = bits.to_be_bytes();
            MacAddr([a, b, c, d, e, f])
        };
        let ethertype = (ethertype ^ (ethertype >> 16)) as u16;
        Key::Macs { source: mac(source), destination: mac(destination), ethertype }
            .hash(seed as u64)
    });
}

#[test]
fn paths() {
    assert_avalanche("path", 32, |&[local, remote, port, seed]| {
        let [local, remote] = [local, remote].map(|bits| IpAddr::from(Ipv4Addr::from(bits as u32)));
        path_hash(seed as u64, local, remote, (port ^ (port >> 16)) as u16, 4789)
    });
}
