//! The source port that the BPF program of the `kernel` datapath chooses is exactly that of
//! the crate `path`. Needs root.
//!
//! `VTEPD_FRAMES` sets how many frames are compared (1,000,000 if unset).

use aya::maps::Array;
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use bpf::PortChoiceEntry;
use path::{Bins, Entropy, Key, Policy, Settings, SourcePortRange};
use root_test::root_test;

use crate::random::Random;

/// Whether an IP header begins directly behind the Ethernet header and is truncated.
fn has_cut_ip_header(frame: &[u8]) -> bool {
    match frame[12..14] {
        [0x08, 0x00] => frame.len() < 14 + 20,
        [0x86, 0xdd] => frame.len() < 14 + 40,
        _ => false,
    }
}

fn load() -> Ebpf {
    let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/chosen_port_test.bpf.o"));
    let mut ebpf = EbpfLoader::new().load(object).unwrap();
    let program: &mut SchedClassifier = ebpf.program_mut("test_port").unwrap().try_into().unwrap();
    program.load().unwrap();
    ebpf
}

/// Policies with the port range of the netdev, which contains the range of the policy.
fn policies() -> Vec<(Entropy, (u16, u16))> {
    let range = |min, max| SourcePortRange::try_from((min, max)).unwrap();
    let new = |policy, seed, range, bins| {
        let bins = Bins::try_from(bins).unwrap();
        Entropy::new(Settings { policy, seed, range, bins, netdev_range: None }).unwrap()
    };
    vec![
        (new(Policy::QpHash, 0, range(32768, 60998), 4), (32768, 60999)),
        (new(Policy::QpHash, u64::MAX, range(1, 65534), 4), (0, 65535)),
        (new(Policy::QpHash, 7, range(7, 7), 1), (7, 8)),
        (new(Policy::QpBins, 3, range(49152, 65534), 4), (49152, 65535)),
        (new(Policy::QpBins, 0x0123_4567_89ab_cdef, range(32768, 60998), 1), (32768, 60999)),
        (new(Policy::QpBins, 9, range(40000, 40999), 1000), (32768, 60999)),
    ]
}

#[root_test]
fn chosen_ports_are_those_of_entropy() {
    let frames: u64 =
        std::env::var("VTEPD_FRAMES").map_or(1_000_000, |frames| frames.parse().unwrap());
    let mut ebpf = load();
    let mut random = Random(0x5eed);
    let policies = policies();
    let (mut ip, mut roce) = (0u64, 0u64);
    for (entropy, kernel_ports) in &policies {
        let choice = PortChoiceEntry::new(entropy, *kernel_ports);
        Array::try_from(ebpf.map_mut("tested_choice").unwrap()).unwrap().set(0, choice, 0).unwrap();
        let program: &mut SchedClassifier =
            ebpf.program_mut("test_port").unwrap().try_into().unwrap();
        for _ in 0..frames / policies.len() as u64 {
            let frame = random.frame();
            let options = TestRunOptions { data_in: Some(&frame), ..TestRunOptions::default() };
            let returned = match program.test_run(options) {
                Ok(result) => result.return_value,
                // The kernel refuses to run programs on these.
                Err(error) => {
                    assert!(has_cut_ip_header(&frame), "{error:?} {frame:02x?}");
                    continue;
                }
            };
            let explained = entropy.explain(&wire::dissect(&frame).unwrap());
            let expected = match explained.key {
                Key::Macs { .. } => 0,
                _ => u32::from(explained.decision.source_port),
            };
            assert_eq!(returned, expected << 16 | expected, "{explained:?} {frame:02x?}");
            ip += u64::from(expected != 0);
            roce += u64::from(matches!(explained.key, Key::QueuePair { .. }));
        }
    }
    // The generator produces enough frames of each kind.
    assert!(
        ip > frames / 3 && roce > frames / 50,
        "{ip} IP frames, {roce} of them RoCE, of {frames}"
    );
}
