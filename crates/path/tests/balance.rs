//! How evenly the policies spread queue pairs, compared with a perfect random hash.
#![cfg(test)]

mod common;

use std::net::{IpAddr, Ipv4Addr};

use common::{Frame, roce};
use path::{Bins, Entropy, Policy, Settings, SourcePortRange, choose, path_hash};
use wire::{Dissection, Network, QueuePair};

/// The seed of all draws in this file.
const SEED: u64 = 0x7674_6570_6420_7132;
/// Normal quantile of 0.9995: two-sided p = 0.001.
const Z: f64 = 3.29;
const DRAWS: usize = 200;

/// SplitMix64 by its published definition. It is independent of the hash under test.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A RoCE frame as a template. Its queue pair can be replaced, and its inner source port is
/// constant.
fn frame() -> Dissection {
    Frame::new(roce(0xc000, 4, 0, 0)).dissect()
}

fn with_queue_pair(mut frame: Dissection, number: u32) -> Dissection {
    frame.roce.as_mut().unwrap().destination =
        QueuePair::try_from(number & QueuePair::MAX).unwrap();
    frame
}

fn with_hosts(mut frame: Dissection, random: u64) -> Dissection {
    let Network::Ipv4(ip) = &mut frame.network else { panic!("an IPv4 frame") };
    ip.source = Ipv4Addr::from(0x0a00_0000 | (random as u32 & 0xff_ffff));
    ip.destination = Ipv4Addr::from(0x0a00_0000 | ((random >> 32) as u32 & 0xff_ffff));
    frame
}

fn chi_squared(counts: &[usize]) -> f64 {
    let expected = counts.iter().sum::<usize>() as f64 / counts.len() as f64;
    counts.iter().map(|count| (*count as f64 - expected).powi(2) / expected).sum()
}

/// Places consecutive queue pairs of a random host pair, as network adapters number them, in each
/// of many draws. It checks that all draws together favour no place. It also checks that a single
/// draw is as even as random placing. `place` returns the place of a frame. `sharing` is the
/// probability that two queue pairs share all inputs of `place`.
fn assert_random(
    queue_pairs: u32,
    places: usize,
    sharing: f64,
    mut place: impl FnMut(&Dissection, u64) -> usize,
) {
    let mut random = Random(SEED ^ u64::from(queue_pairs));
    let mut total = vec![0; places];
    let mut statistic = 0.0;
    for _ in 0..DRAWS {
        let hosts = with_hosts(frame(), random.next());
        let (first, seed) = (random.next() as u32 & QueuePair::MAX, random.next());
        let mut counts = vec![0; places];
        for queue_pair in 0..queue_pairs {
            let at = place(&with_queue_pair(hosts, first + queue_pair), seed);
            counts[at] += 1;
            total[at] += 1;
        }
        statistic += chi_squared(&counts);
    }
    let freedom = (places - 1) as f64;
    let n = f64::from(queue_pairs);
    let inflated = 1.0 + (n - 1.0) * sharing;
    // With equal probabilities, the statistic of one draw has mean k − 1 and variance 2 (k − 1) (n
    // − 1) / n.
    let draws = DRAWS as f64;
    let (mean, deviation) = (freedom * inflated, (2.0 * freedom * (n - 1.0) / n).sqrt() * inflated);
    let z = (statistic / draws - mean) / (deviation / draws.sqrt());
    assert!(
        z.abs() < Z,
        "{queue_pairs} queue pairs, {places} places: one draw off by {z:.2} deviations"
    );
    // Wilson and Hilferty's bound of the χ² distribution at p = 0.001.
    let a = 2.0 / (9.0 * freedom);
    let bound = freedom * (1.0 - a + 3.09 * a.sqrt()).powi(3) * inflated;
    let overall = chi_squared(&total);
    assert!(
        overall < bound,
        "{queue_pairs} queue pairs, {places} places: χ² of all draws {overall:.1}, bound {bound:.1}"
    );
}

const QUEUE_PAIRS: [u32; 10] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

#[test]
fn q2_ports_of_qp_hash_are_random_for_8_to_4096_queue_pairs() {
    for queue_pairs in QUEUE_PAIRS {
        for places in [2, 4, 16] {
            assert_random(queue_pairs, places, 0.0, |frame, seed| {
                let entropy = Entropy::new(Settings { seed, ..Settings::default() }).unwrap();
                usize::from(entropy.decide(frame).source_port - 49152) * places / 16384
            });
        }
    }
}

#[test]
fn q2_paths_of_qp_hash_are_random_for_8_to_4096_queue_pairs() {
    let [local, remote] = [1, 2].map(|host| IpAddr::from([192, 0, 2, host]));
    for queue_pairs in QUEUE_PAIRS {
        for paths in [2, 3, 4, 8] {
            // Both hashes use one seed, and must be independent of each other. Equal ports mean
            // equal paths.
            assert_random(queue_pairs, paths, 1.0 / 16384.0, |frame, seed| {
                let entropy = Entropy::new(Settings { seed, ..Settings::default() }).unwrap();
                let port = entropy.decide(frame).source_port;
                choose(path_hash(seed, local, remote, port, 4789), paths)
            });
        }
    }
}

#[test]
fn q2_bins_of_qp_bins_are_random_for_8_to_4096_queue_pairs() {
    for queue_pairs in QUEUE_PAIRS {
        for bins in [2u16, 4, 7] {
            assert_random(queue_pairs, bins.into(), 0.0, |frame, seed| {
                let bins = Bins::try_from(bins).unwrap();
                let settings =
                    Settings { policy: Policy::QpBins, seed, bins, ..Settings::default() };
                Entropy::new(settings).unwrap().decide(frame).bin.unwrap().into()
            });
        }
    }
}

#[test]
fn q2_mean_of_max_over_mean_load_is_that_of_a_random_hash() {
    // Expected values of a perfect random hash, for (paths, queue pairs).
    for (paths, queue_pairs, expected) in [
        (2, 8, 1.28),
        (2, 32, 1.14),
        (4, 4, 2.14),
        (4, 8, 1.75),
        (4, 16, 1.52),
        (4, 32, 1.38),
        (8, 8, 2.61),
        (8, 32, 1.77),
        (16, 4, 5.36),
        (16, 32, 2.41),
    ] {
        let mut random = Random(SEED);
        let draws = 4000;
        let mut sum = 0.0;
        for _ in 0..draws {
            let hosts = with_hosts(frame(), random.next());
            let entropy =
                Entropy::new(Settings { seed: random.next(), ..Settings::default() }).unwrap();
            let first = random.next() as u32 & QueuePair::MAX;
            let mut counts = vec![0; paths];
            for queue_pair in 0..queue_pairs {
                let port = entropy.decide(&with_queue_pair(hosts, first + queue_pair)).source_port;
                counts[usize::from(port - 49152) * paths / 16384] += 1;
            }
            let max = *counts.iter().max().unwrap();
            sum += f64::from(max) * paths as f64 / f64::from(queue_pairs);
        }
        let mean = sum / f64::from(draws);
        // The tolerance covers the rounding of the table and the deviation of the mean of 4000
        // draws.
        assert!(
            (mean - expected).abs() < 0.05,
            "{queue_pairs} on {paths} paths: {mean:.3}, not {expected}"
        );
    }
}

#[test]
fn q2_kernels_way_puts_all_queue_pairs_of_one_inner_port_on_one_port() {
    let settings = Settings { policy: Policy::FiveTuple, ..Settings::default() };
    let entropy = Entropy::new(settings).unwrap();
    let port = entropy.decide(&frame()).source_port;
    assert!(
        (0..4096)
            .all(|number| entropy.decide(&with_queue_pair(frame(), number)).source_port == port)
    );
}

#[test]
fn q6_port_is_inside_its_range_for_all_queue_pairs_and_every_port_is_used_evenly() {
    let range = SourcePortRange::DEFAULT;
    let entropy = Entropy::new(Settings { seed: SEED, ..Settings::default() }).unwrap();
    let mut counts = vec![0usize; range.ports().into()];
    let mut frame = frame();
    for number in 0..=QueuePair::MAX {
        frame.roce.as_mut().unwrap().destination = QueuePair::try_from(number).unwrap();
        let port = entropy.decide(&frame).source_port;
        assert!(range.contains(port), "queue pair {number:#x}: port {port}");
        counts[usize::from(port - range.min())] += 1;
    }
    assert!(counts.iter().all(|count| *count > 0));
    let freedom = (counts.len() - 1) as f64;
    let z = (chi_squared(&counts) - freedom) / (2.0 * freedom).sqrt();
    assert!(z.abs() < Z, "χ² off by {z:.2} deviations");
}

#[test]
fn q6_every_port_of_a_small_range_is_reached_and_no_other() {
    for (min, max) in [(1, 1), (1, 2), (65535, 65535), (65533, 65535), (4789, 4799), (50000, 50063)]
    {
        let range = SourcePortRange::try_from((min, max)).unwrap();
        for policy in [Policy::QpHash, Policy::QpBins] {
            let bins = Bins::try_from(range.ports()).unwrap();
            let entropy =
                Entropy::new(Settings { policy, range, bins, ..Settings::default() }).unwrap();
            let mut reached = vec![false; 65536];
            for number in 0..4096 {
                let port = entropy.decide(&with_queue_pair(frame(), number)).source_port;
                assert!(range.contains(port), "{policy} {range}: {port}");
                reached[usize::from(port)] = true;
            }
            let count = reached.iter().filter(|reached| **reached).count();
            assert_eq!(count, range.ports().into(), "{policy} {range}");
        }
    }
}
