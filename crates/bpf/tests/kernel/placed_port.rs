//! Queue pairs that `qp-pin` has placed get their ports in kernel VXLAN, and move after a gap.

use std::collections::BTreeSet;
use std::time::Duration;

use aya::maps::HashMap;
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use bpf::{Place, PlacedPorts, PortChoiceEntry};
use path::{Bins, Entropy, Policy, Settings, SourcePortRange};
use root_test::root_test;
use test_frames::{IPV4, Ipv4, ROCE, UDP, bth, ethernet, ipv4, udp};

/// Test runs are on the loopback interface.
const LOOPBACK: u32 = 1;
const KERNEL_PORTS: (u16, u16) = (32768, 60999);
const FOREVER: Duration = Duration::from_secs(3600);
const GAP: Duration = Duration::from_millis(20);

fn entropy() -> Entropy {
    let range = SourcePortRange::try_from((32768, 60998)).unwrap();
    let (policy, bins) = (Policy::QpPin, Bins::try_from(4).unwrap());
    Entropy::new(Settings { policy, seed: 7, range, bins, netdev_range: None }).unwrap()
}

/// A frame of a queue pair. It is longer than what the programs tell of it.
fn frame(queue_pair: u32, sequence: u32) -> Vec<u8> {
    let datagram = udp((0xc000, ROCE), &bth(4, queue_pair, sequence, &[0; 200]));
    let packet = ipv4(([10, 1, 0, 1], [10, 1, 0, 2]), UDP, &datagram, Ipv4::default());
    ethernet([2; 6], [2, 0, 0, 0, 0, 9], IPV4, &packet)
}

struct Netdev {
    ebpf: Ebpf,
    placed: PlacedPorts,
}

impl Netdev {
    fn new() -> Self {
        let object =
            aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/chosen_port_test.bpf.o"));
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("offload_usage", 8)
            .map_max_entries("placed_ports", 8)
            .load(object)
            .unwrap();
        let program: &mut SchedClassifier =
            ebpf.program_mut("test_placed").unwrap().try_into().unwrap();
        program.load().unwrap();
        let mut choices: HashMap<_, [u32; 2], PortChoiceEntry> =
            HashMap::try_from(ebpf.map_mut("port_choices").unwrap()).unwrap();
        let choice = PortChoiceEntry::new(&entropy(), KERNEL_PORTS).with_placed_ports();
        choices.insert([LOOPBACK, 0], choice, 0).unwrap();
        let placed = PlacedPorts::take(&mut ebpf).unwrap();
        Self { ebpf, placed }
    }

    /// The source port that kernel VXLAN computes for a frame.
    fn port(&mut self, frame: &[u8]) -> u16 {
        let program: &mut SchedClassifier =
            self.ebpf.program_mut("test_placed").unwrap().try_into().unwrap();
        let options = TestRunOptions { data_in: Some(frame), ..TestRunOptions::default() };
        u16::try_from(program.test_run(options).unwrap().return_value).unwrap()
    }
}

/// As many as fill the ring while nobody reads. They are told of again with their next frames.
#[root_test]
fn queue_pairs_that_find_no_room_are_told_of_again() {
    const NUMBER: u32 = 4000;
    let mut netdev = Netdev::new();
    let mut told = BTreeSet::new();
    let mut rounds = 0;
    while told.len() < NUMBER as usize {
        (0..NUMBER).for_each(|number| _ = netdev.port(&frame(0x100 + number, 1)));
        let before = told.len();
        while let Some(new) = netdev.placed.next_new() {
            assert!(told.insert(new.key.hash()), "told of twice");
        }
        assert!(told.len() > before, "{before}");
        rounds += 1;
    }
    assert!(rounds > 1, "the ring has room for all");
}

#[root_test]
fn a_queue_pair_has_its_placed_port_and_moves_after_a_gap() {
    let mut netdev = Netdev::new();
    let (first, other) = (frame(0x51, 1), frame(0x52, 1));
    let hashed = |frame: &[u8]| entropy().decide(&wire::dissect(frame).unwrap()).source_port;
    // The first frame has the port of the hash, and is told of once.
    assert_eq!([&first, &first].map(|frame| netdev.port(frame)), [hashed(&first); 2]);
    let new = netdev.placed.next_new().unwrap();
    assert_eq!((new.key.ifindex(), netdev.placed.next_new()), (LOOPBACK, None));
    assert_eq!(new.frame.len(), first.len());
    let told = wire::dissect(&new.frame).unwrap();
    assert_eq!(told, wire::dissect(&first).unwrap());
    assert_eq!(new.key.hash(), entropy().explain(&told).key.hash(7));

    let place = |port, next| Place { port, next };
    let still = place(40_001, Some((40_002, FOREVER)));
    assert!(netdev.placed.enter(new.key, 3, still).unwrap());
    assert!(!netdev.placed.enter(new.key, 8, still).unwrap(), "there is no such index");
    assert_eq!([&first, &first].map(|frame| netdev.port(frame)), [40_001; 2]);
    assert_eq!(netdev.port(&other), hashed(&other), "another queue pair");
    // It moves with the first frame after the gap, and stays.
    assert!(netdev.placed.change(3, still, place(40_001, Some((40_002, GAP)))));
    assert!(!netdev.placed.change(3, still, place(1, None)), "it is another place now");
    std::thread::sleep(GAP * 2);
    assert_eq!([&first, &first].map(|frame| netdev.port(frame)), [40_002; 2]);
    assert_eq!(netdev.placed.place(3), place(40_002, None));
    // At once from a dead path. A port that the kernel cannot have is not used.
    assert!(netdev.placed.change(3, place(40_002, None), place(60_998, None)));
    assert_eq!(netdev.port(&first), 60_998);
    assert!(netdev.placed.change(3, place(60_998, None), place(60_999, None)));
    assert_eq!(netdev.port(&first), hashed(&first));
    // Once it is forgotten, its next frame is a first one.
    while netdev.placed.next_new().is_some() {}
    netdev.placed.remove(new.key).unwrap();
    netdev.port(&first);
    assert_eq!(netdev.placed.next_new().map(|again| again.key), Some(new.key));
}
