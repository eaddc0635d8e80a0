//! Runs the BPF programs with `BPF_PROG_TEST_RUN` and compares them with the Rust code that has the
//! same rules.

use std::sync::{LazyLock, Mutex};
use std::time::Instant;

use aya::maps::{Array, HashMap};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use bpf::{PortChoiceEntry, TakenNetdev, TakenTunnel, TunnelEnd};
use path::{Bins, Entropy, Key, Policy, Settings, SourcePortRange};
use pipeline::explain_received::{Fate, explain_received};
use pipeline::{DropReason, Frame, Offload};
use tables::{TakenVni, VniIndex, VniSource};

use crate::frames::{THERE, run, underlay_frame};
use crate::model;

/// Number of workers that flows are distributed over.
const WORKERS: u32 = 5;
/// Longest frame that fits the underlay, in bytes.
const FRAME_LIMIT: u32 = 600;
/// Interface index of the loopback interface, on which test runs happen.
const LOOPBACK: u32 = 1;
/// Longest frame that a test run accepts on every kernel, in bytes.
const LONGEST: usize = 3000;
/// `TC_ACT_REDIRECT` and `TC_ACT_UNSPEC` (`include/uapi/linux/pkt_cls.h`).
const REDIRECT: u32 = 7;
const PASS: u32 = u32::MAX;
/// Number of words in `waiting_since` for each worker. The first is for the underlay, the second
/// for bridges.
const WORDS_PER_WORKER: u32 = 8;

static STEERING: LazyLock<Mutex<Ebpf>> = LazyLock::new(|| {
    let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steering.bpf.o"));
    let mut ebpf =
        EbpfLoader::new().override_global("workers", &WORKERS, true).load(object).unwrap();
    for name in ["steer_uplink", "steer_vxlan"] {
        program(&mut ebpf, name).load().unwrap();
    }
    let vni = taken_vni();
    let mut ends = HashMap::try_from(ebpf.map_mut("taken_tunnels").unwrap()).unwrap();
    ends.insert(TunnelEnd::of(&vni), TakenTunnel::of(&vni, None), 0).unwrap();
    let mut netdevs = HashMap::try_from(ebpf.map_mut("taken_netdevs").unwrap()).unwrap();
    netdevs.insert(LOOPBACK, TakenNetdev::of(&vni), 0).unwrap();
    Mutex::new(ebpf)
});

/// The VNI of [`THERE`] on the loopback interface.
fn taken_vni() -> TakenVni {
    TakenVni {
        vni: 10_010.try_into().unwrap(),
        source: VniSource::Netdev(LOOPBACK),
        name: "lo".to_owned(),
        index: VniIndex::new(1).unwrap(),
        local: [10, 1, 0, 0].into(),
        destination_port: 4789,
        frame_limit: FRAME_LIMIT,
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut SchedClassifier {
    ebpf.program_mut(name).unwrap().try_into().unwrap()
}

/// Whether the kernel runs programs on this frame. A test run requires a whole IP header after the
/// Ethernet header (`bpf_prog_test_run_skb()`, `net/bpf/test_run.c`).
fn can_be_run(frame: &[u8]) -> bool {
    let whole = match frame.get(12..14) {
        Some([0x08, 0x00]) => 14 + 20,
        Some([0x86, 0xdd]) => 14 + 40,
        _ => 15,
    };
    (whole..=LONGEST).contains(&frame.len())
}

/// Runs a program on a frame and returns its result. `gso_size` is the segment size of a
/// super-frame, or 0.
fn test_run(program: &SchedClassifier, frame: &[u8], gso_size: u32) -> u32 {
    // Every field of `struct __sk_buff` except `gso_size` is 0.
    let mut context = [0; 192];
    context[176..180].copy_from_slice(&gso_size.to_ne_bytes());
    let options = TestRunOptions {
        data_in: Some(frame),
        ctx_in: Some(&context),
        ..TestRunOptions::default()
    };
    program.test_run(options).unwrap_or_else(|error| panic!("{error:?}: {frame:02x?}")).return_value
}

/// Returns the worker that a punt pair's last frame was redirected to, if any, and clears it.
fn take_worker(ebpf: &mut Ebpf, punt: u32) -> Option<u32> {
    let mut waiting = Array::<_, u64>::try_from(ebpf.map_mut("waiting_since").unwrap()).unwrap();
    let waits = |worker: &u32| waiting.get(&(worker * WORDS_PER_WORKER + punt), 0).unwrap() != 0;
    let workers: Vec<u32> = (0..8).filter(waits).collect();
    for worker in &workers {
        waiting.set(worker * WORDS_PER_WORKER + punt, 0, 0).unwrap();
    }
    assert!(workers.len() <= 1, "one worker gets a frame, not {workers:?}");
    workers.first().copied()
}

/// The steering programs redirect exactly the frames that the worker forwards or drops because of
/// their contents. Each goes to its flow's worker.
pub fn steering(data: &[u8]) {
    let Some((&hook, data)) = data.split_first() else { return };
    if hook & 1 == 0 { uplink(hook, data) } else { vxlan(hook, data) }
}

/// A frame that an uplink receives. Its destination is the uplink's MAC address (loopback's in a
/// test run), unless bit 1 of `hook` is set.
fn uplink(hook: u8, data: &[u8]) {
    let mut frame = underlay_frame([0; 6], data);
    if let Some(to) = frame.get_mut(..6)
        && hook & 2 == 0
    {
        to.fill(0);
    }
    if !can_be_run(&frame) {
        return;
    }
    let mut ebpf = STEERING.lock().unwrap();
    let returned = test_run(program(&mut ebpf, "steer_uplink"), &frame, 0);
    let worker = take_worker(&mut ebpf, 0);
    let received = Frame { data: &frame, vlan: None, offload: Offload::default() };
    let explained = explain_received(&received, &THERE, &[], std::time::Instant::now()).fate;
    if matches!(explained, Fate::Kernel(_)) || frame[..6] != [0; 6] {
        assert_eq!((returned, worker), (PASS, None), "{explained:?} {frame:02x?}");
        return;
    }
    let expected = model::worker_of(&frame[50..], WORKERS);
    assert_eq!((returned, worker), (REDIRECT, Some(expected)), "{explained:?} {frame:02x?}");
    let done = run(received, |pipeline, batch, out| {
        pipeline.decapsulate(batch, &THERE, Instant::now(), out);
    });
    // The programs redirect an inner frame that ends inside its IP header. The worker drops it as
    // the kernel would.
    let steered_wrongly = [
        DropReason::Truncated,
        DropReason::NotVxlan,
        DropReason::UnknownVni,
        DropReason::ReceiveUnreadable,
    ];
    assert!(
        done.dropped.iter().all(|reason| !steered_wrongly.contains(reason)),
        "{:?}",
        done.dropped
    );
}

/// A frame that the bridge sends to a vxlan netdev. With bit 1 of `hook`, a super-frame.
fn vxlan(hook: u8, frame: &[u8]) {
    if !can_be_run(frame) {
        return;
    }
    let gso_size = if hook & 2 == 0 { 0 } else { u32::from(hook) * 4 };
    let mut ebpf = STEERING.lock().unwrap();
    let returned = test_run(program(&mut ebpf, "steer_vxlan"), frame, gso_size);
    let worker = take_worker(&mut ebpf, 1);
    let length = if gso_size == 0 {
        Some(frame.len() as u32)
    } else {
        model::segment_length(frame, gso_size)
    };
    let fits = length.is_some_and(|length| length <= FRAME_LIMIT);
    let expected =
        if fits { (REDIRECT, Some(model::worker_of(frame, WORKERS))) } else { (PASS, None) };
    assert_eq!((returned, worker), expected, "{length:?} {frame:02x?}");
}

/// Policies with the port range of the netdev, which contains the policy's range.
static POLICIES: LazyLock<Vec<(Entropy, (u16, u16))>> = LazyLock::new(|| {
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
});

static CHOSEN_PORT: LazyLock<Mutex<(Ebpf, Option<usize>)>> = LazyLock::new(|| {
    let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/chosen_port_test.bpf.o"));
    let mut ebpf = EbpfLoader::new().load(object).unwrap();
    program(&mut ebpf, "test_port").load().unwrap();
    Mutex::new((ebpf, None))
});

/// The program chooses the same port as the path crate, and none for frames that are not IP.
pub fn chosen_port(data: &[u8]) {
    let Some((&number, frame)) = data.split_first() else { return };
    if !can_be_run(frame) {
        return;
    }
    let number = usize::from(number) % POLICIES.len();
    let (entropy, kernel_ports) = &POLICIES[number];
    let (ebpf, current) = &mut *CHOSEN_PORT.lock().unwrap();
    if *current != Some(number) {
        let choice = PortChoiceEntry::new(entropy, *kernel_ports);
        Array::try_from(ebpf.map_mut("tested_choice").unwrap()).unwrap().set(0, choice, 0).unwrap();
        *current = Some(number);
    }
    let returned = test_run(program(ebpf, "test_port"), frame, 0);
    let explained = entropy.explain(&wire::dissect(frame).unwrap());
    let expected = match explained.key {
        Key::Macs { .. } => 0,
        _ => u32::from(explained.decision.source_port),
    };
    assert_eq!(returned, expected << 16 | expected, "{explained:?} {frame:02x?}");
}
