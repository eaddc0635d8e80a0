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

/// A random number generator with the same sequence in every run (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }

    /// A frame that is well-formed, or nearly so.
    fn frame(&mut self) -> Vec<u8> {
        let mut frame = self.bytes(12);
        for _ in 0..self.one_of(&[0, 0, 0, 1, 2, 3, 4, 5]) {
            frame.extend(self.one_of(&[[0x81, 0x00], [0x88, 0xa8], [0x91, 0x00]]));
            frame.extend(self.bytes(2));
        }
        match self.below(8) {
            0 => frame.extend([0x08, 0x06]),
            1..=4 => self.ipv4(&mut frame),
            _ => self.ipv6(&mut frame),
        }
        let padding = self.one_of(&[0, 0, 0, 1, 18]);
        frame.extend(vec![0; padding]);
        if self.below(4) == 0 {
            let changed = self.below(frame.len() as u64) as usize;
            frame[changed] = self.next() as u8;
        }
        if self.below(6) == 0 {
            frame.truncate(14 + self.below(frame.len() as u64 - 13) as usize);
        }
        frame.resize(frame.len().max(14), 0);
        frame
    }

    fn ipv4(&mut self, frame: &mut Vec<u8>) {
        let (protocol, transport) = self.transport();
        let options = self.one_of(&[0, 0, 0, 4, 40]);
        let fragment: u16 = self.one_of(&[0, 0, 0x4000, 0x2000, 0x2001, 0x0001, 0x8000]);
        let total = (20 + options + transport.len()) as u16;
        frame.extend([0x08, 0x00, 0x45 + (options / 4) as u8, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0, 1]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0]);
        frame.extend(self.bytes(8 + options));
        frame.extend(transport);
    }

    fn ipv6(&mut self, frame: &mut Vec<u8>) {
        let (protocol, mut payload) = self.transport();
        let mut next = protocol;
        for _ in 0..self.one_of(&[0, 0, 0, 1, 2, 3, 8, 9]) {
            let kind = self.one_of(&[0u8, 43, 44, 51, 60]);
            let units = if kind == 44 { 0 } else { self.one_of(&[0u8, 0, 1, 2]) };
            let length = match kind {
                44 => 8,
                51 => (usize::from(units) + 2) * 4,
                _ => (usize::from(units) + 1) * 8,
            };
            let mut header = self.bytes(length);
            (header[0], header[1]) = (next, units);
            if kind == 44 {
                [header[2], header[3]] = self.one_of(&[[0, 0], [0, 1], [0, 8], [0, 9]]);
            }
            header.extend(payload);
            (next, payload) = (kind, header);
        }
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((payload.len() as u16).to_be_bytes());
        frame.extend([next, 64]);
        frame.extend(self.bytes(32));
        frame.extend(payload);
    }

    fn transport(&mut self) -> (u8, Vec<u8>) {
        let protocol = self.one_of(&[17u8, 17, 17, 6, 132, 33, 136, 1, 58, 59, 253]);
        if protocol != 17 {
            let length = self.one_of(&[0, 3, 4, 20, 40]);
            return (protocol, self.bytes(length));
        }
        let payload = self.one_of(&[0, 4, 11, 12, 13, 64]);
        let mut datagram = self.bytes(2);
        let port: u16 = self.one_of(&[4791, 4791, 4791, 4790, 53]);
        datagram.extend(port.to_be_bytes());
        datagram.extend((8 + payload as u16).to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(self.bytes(payload));
        (protocol, datagram)
    }
}

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
