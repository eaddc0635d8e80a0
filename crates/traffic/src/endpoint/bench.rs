//! The frame rate of two endpoints on one CPU.

use std::time::{Duration, Instant};

use roce::{
    Completion, Connection, Counters, End, EndpointError, Handle, Operation, Place, Receive,
    Settings, SourcePort, Status, WorkRequest,
};
use serde::Serialize;
use wire::{Psn, QueuePair};

use super::{Nic, NicError, pin};
use fabric::netns::{Namespace, NetnsError, veth};
use fabric::super_frames::cut_super_frames;

/// Interface MTU of the veth pair: fits the largest path MTU.
const MTU: u32 = 9000;
/// Messages of a queue pair that are posted and not complete.
const OUTSTANDING: u64 = 4;

/// A measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The namespaces or the veth pair could not be created.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// An endpoint failed.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A request could not be posted.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The thread could not be pinned.
    #[error("cannot run on CPU {cpu}: choose another with --cpu")]
    Cpu {
        /// The CPU.
        cpu: usize,
        /// The cause.
        source: std::io::Error,
    },
    /// A request failed.
    #[error("a request failed: {0}")]
    Failed(Status),
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct Bench {
    /// Length of a message in bytes.
    pub message: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Number of queue pairs.
    pub queue_pairs: u32,
    /// Duration in seconds.
    pub seconds: f64,
    /// Frames per second that one CPU sent and received: requests and acknowledgements.
    pub frames_per_second: f64,
    /// Payload that arrived, in bits per second.
    pub goodput: f64,
    /// Writes whose bytes were wrong.
    pub mismatches: u64,
    /// Frames that did not fit a receive ring.
    pub overruns: u64,
    /// Counters of the requesting endpoint.
    pub requester: Counters,
    /// Counters of the responding endpoint.
    pub responder: Counters,
}

/// Measures writes of `message` bytes over a veth pair for `time`. Both endpoints share the calling
/// thread and one CPU, on which the kernel also delivers the frames. Needs root.
///
/// # Errors
/// [`BenchError`].
pub fn bench(
    settings: &Settings,
    (queue_pairs, message): (u32, u32),
    cpu: usize,
    time: Duration,
) -> Result<Bench, BenchError> {
    pin(cpu).map_err(|source| BenchError::Cpu { cpu, source })?;
    let name = |end: &str| format!("lab-bench-{}-{end}", std::process::id());
    let hosts = [Namespace::create(name("a"))?, Namespace::create(name("b"))?];
    let [a, b] = &hosts;
    veth((a, "eth1"), (b, "eth1"), MTU)?;
    for (host, address) in [(a, "192.0.2.1/24"), (b, "192.0.2.2/24")] {
        host.rtnl(|rtnl| rtnl.add_address("eth1", address))?;
        // As on the hosts of a fabric. Old kernels refuse it.
        let _ = host.enter(|| cut_super_frames("eth1"))?;
    }
    let open = |host: &Namespace| host.enter(|| Nic::open("eth1", settings.clone(), 1));
    let (mut requester, mut responder) = (open(a)??, open(b)??);
    let pairs = connect(&mut requester, &mut responder, queue_pairs)?;
    let place = Place::default();
    let operation = Operation::Write { remote: place, immediate: Some(0) };
    let work = WorkRequest { id: 0, operation, local: place, length: message };
    let (start, mut bytes) = (Instant::now(), 0_u64);
    for _ in 0..OUTSTANDING {
        for pair in &pairs {
            requester.endpoint.post(*pair, work, requester.now())?;
        }
    }
    while start.elapsed() < time {
        requester.work()?;
        responder.work()?;
        while let Some(completion) = responder.endpoint.completion() {
            if let Completion::Received { length, .. } = completion {
                bytes += u64::from(length);
            }
        }
        while let Some(completion) = requester.endpoint.completion() {
            if let Completion::Request { queue_pair, status, .. } = completion {
                if status != Status::Success {
                    return Err(BenchError::Failed(status));
                }
                requester.endpoint.post(queue_pair, work, requester.now())?;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let counters = (requester.endpoint.counters(), responder.endpoint.counters());
    let frames = counters.0.rx_packets + counters.1.rx_packets;
    Ok(Bench {
        message,
        mtu: settings.mtu,
        queue_pairs,
        seconds,
        frames_per_second: frames as f64 / seconds,
        goodput: bytes as f64 * 8.0 / seconds,
        mismatches: requester.memory.mismatches + responder.memory.mismatches,
        overruns: requester.overruns()? + responder.overruns()?,
        requester: counters.0,
        responder: counters.1,
    })
}

/// Connects queue pairs between two endpoints.
fn connect(one: &mut Nic, other: &mut Nic, count: u32) -> Result<Vec<Handle>, BenchError> {
    let mut handles = Vec::new();
    for index in 0..count {
        let [_, bytes @ ..] = (0x100 + index).to_be_bytes();
        let number = QueuePair::from_be_bytes(bytes);
        let end = |nic: &Nic| End { number, first: Psn::new(index), address: nic.address() };
        let (local, remote) = (end(one), end(other));
        let source_port = SourcePort::PerQueuePair;
        handles.push(one.endpoint.connect(&Connection { local, remote, source_port })?);
        let swapped = Connection { local: remote, remote: local, source_port };
        let handle = other.endpoint.connect(&swapped)?;
        let receive = Receive { id: 0, place: Place::default(), length: 0 };
        other.endpoint.post_endless_receive(handle, receive)?;
    }
    Ok(handles)
}
