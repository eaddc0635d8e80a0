//! Bulk traffic between hosts, sent in super-frames as fast as sockets accept it: numbered
//! datagrams (`UDP_SEGMENT`), and TCP streams whose bytes both ends can compute.

use std::io::{IoSliceMut, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::fabric::Namespace;
use experiment::random::{Random, SEED};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg, setsockopt, sockopt};
use wire::QueuePair;
use wire::number::PORT_ROCE;
use wire::roce::Bth;

use crate::TIMEOUT;
use crate::lab::Host;
use crate::sockets::{bytes, on_one_cpu};

/// Maximum number of segments in a super-frame. Every kernel accepts this many.
const SEGMENTS: usize = 64;
/// Maximum size of a super-frame in bytes.
const LARGEST: usize = 60_000;
/// Length of the base transport header and the datagram number in bytes.
const HEADER: usize = Bth::LENGTH + 8;
/// Number of positions in the pseudo-random pool at which a payload can start.
const POOL: usize = 1 << 16;
/// Maximum number of datagrams that one system call receives.
const BATCH: usize = 64;
/// Sending stops at this multiple of the wanted number of datagrams.
const FUTILE: u64 = 1000;
/// If nothing arrives for this time after the last send, the receiver stops.
const SILENCE: Duration = Duration::from_millis(500);
/// Bytes of a TCP stream that are written and compared together.
const CHUNK: usize = 256 << 10;

/// The flows that the datagrams belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flows {
    /// The number of sockets. Each super-frame comes from one socket.
    Sockets(u32),
    /// RoCE with this number of queue pairs. They share one socket and alternate in each
    /// super-frame.
    QueuePairs(u32),
}

impl Flows {
    const fn count(self) -> u32 {
        match self {
            Self::Sockets(count) | Self::QueuePairs(count) => count,
        }
    }
}

/// Datagrams whose bytes follow from their flow and their number.
#[derive(Debug, Clone)]
pub struct Datagrams {
    flows: Flows,
    size: usize,
    pool: Arc<Vec<u8>>,
}

/// Number of frames sent.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// Super-frames.
    pub super_frames: u64,
    /// Datagrams in each super-frame.
    pub segments: u64,
}

impl Sent {
    /// The total number of datagrams.
    #[must_use]
    pub const fn datagrams(self) -> u64 {
        self.super_frames * self.segments
    }
}

/// State that sender and receiver share.
#[derive(Debug, Default)]
struct Progress {
    sent_all: AtomicBool,
    arrived: AtomicU64,
}

/// Number of datagrams received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Datagrams that arrived unchanged and in the order of their flow.
    pub whole: u64,
    /// Datagrams that do not match any datagram that was sent.
    pub damaged: u64,
    /// Datagrams that arrived twice, or after a later one of their flow.
    pub out_of_turn: u64,
}

impl Datagrams {
    /// Datagrams of `size` bytes each.
    #[must_use]
    pub fn new(flows: Flows, size: usize) -> Self {
        assert!(size >= HEADER, "a datagram has {HEADER} bytes at least");
        Self { flows, size, pool: Arc::new(bytes(SEED, POOL + size)) }
    }

    const fn segments(&self) -> usize {
        let fit = LARGEST / self.size;
        if fit < SEGMENTS { fit } else { SEGMENTS }
    }

    fn header(flow: u32, number: u64) -> [u8; HEADER] {
        let pair = QueuePair::try_from(0x100 + flow).unwrap();
        let bth = Bth::new(4, pair, number as u32 & 0xff_ffff);
        let mut header = [0; HEADER];
        header[..Bth::LENGTH].copy_from_slice(bth.as_bytes());
        header[Bth::LENGTH..].copy_from_slice(&number.to_be_bytes());
        header
    }

    fn payload(&self, flow: u32, number: u64) -> &[u8] {
        let start = Random::new(u64::from(flow) << 40 | number).next() as usize % POOL;
        &self.pool[start..start + self.size - HEADER]
    }

    fn write(&self, flow: u32, number: u64, datagram: &mut [u8]) {
        let (header, payload) = datagram.split_at_mut(HEADER);
        header.copy_from_slice(&Self::header(flow, number));
        payload.copy_from_slice(self.payload(flow, number));
    }

    /// Returns flow and number of a datagram, if every byte is as it was sent.
    fn read(&self, datagram: &[u8]) -> Option<(u32, u64)> {
        let (header, payload) = datagram.split_first_chunk::<HEADER>()?;
        let (bth, number) = Bth::parse(header).ok()?;
        let flow = bth.destination().get().checked_sub(0x100)?;
        let number = u64::from_be_bytes(number.try_into().ok()?);
        let right = flow < self.flows.count()
            && datagram.len() == self.size
            && *header == Self::header(flow, number)
            && payload == self.payload(flow, number);
        right.then_some((flow, number))
    }

    /// Sends as fast as possible until `wanted` datagrams have arrived, or [`FUTILE`] times as many
    /// were sent.
    #[must_use]
    pub fn send(&self, from: &Host, to: &Host, wanted: u64) -> (Sent, Arrived) {
        let port = if matches!(self.flows, Flows::QueuePairs(_)) { PORT_ROCE } else { 0 };
        let receiver = to.ns.enter(|| UdpSocket::bind((to.ip(), port))).unwrap().unwrap();
        setsockopt(&receiver, sockopt::RcvBufForce, &(64 << 20)).unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let address = receiver.local_addr().unwrap();
        let sockets = if let Flows::Sockets(count) = self.flows { count } else { 1 };
        let open = || {
            UdpSocket::bind((from.ip(), 0))
                .and_then(|socket| socket.connect(address).map(|()| socket))
        };
        let senders: Vec<UdpSocket> =
            (0..sockets).map(|_| from.ns.enter(open).unwrap().unwrap()).collect();
        for sender in &senders {
            setsockopt(sender, sockopt::UdpGsoSegment, &i32::try_from(self.size).unwrap())
                .expect("UDP_SEGMENT");
        }
        let progress = Progress::default();
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| self.receive(&receiver, &progress));
            let segments = self.segments() as u64;
            let mut sent = Sent { super_frames: 0, segments };
            on_one_cpu(|| {
                let enough = |super_frames: u64| {
                    progress.arrived.load(Ordering::Relaxed) >= wanted
                        || super_frames * segments >= wanted * FUTILE
                        || receiving.is_finished()
                };
                sent.super_frames = self.send_until(&senders, enough);
            });
            progress.sent_all.store(true, Ordering::Relaxed);
            (sent, receiving.join().expect("the receiver"))
        })
    }

    /// Returns the number of super-frames sent.
    fn send_until(&self, senders: &[UdpSocket], enough: impl Fn(u64) -> bool) -> u64 {
        let mut numbers = vec![0; self.flows.count() as usize];
        let mut super_frame = vec![0; self.size * self.segments()];
        let (mut sent, mut turn) = (0, 0);
        for (flow, sender) in senders.iter().enumerate().cycle() {
            if enough(sent) {
                break;
            }
            for datagram in super_frame.chunks_exact_mut(self.size) {
                let flow = if matches!(self.flows, Flows::Sockets(_)) {
                    flow
                } else {
                    turn % numbers.len()
                };
                self.write(flow as u32, numbers[flow], datagram);
                numbers[flow] += 1;
                turn += 1;
            }
            assert_eq!(sender.send(&super_frame).expect("UDP takes it"), super_frame.len());
            sent += 1;
        }
        sent
    }

    /// Receives until everything is sent and nothing has arrived for [`SILENCE`].
    fn receive(&self, socket: &UdpSocket, progress: &Progress) -> Arrived {
        // One more byte shows that a datagram is too long.
        let room = self.size + 1;
        let mut buffer = vec![0; room * BATCH];
        let mut next = vec![0; self.flows.count() as usize];
        let (mut arrived, mut last) = (Arrived::default(), Instant::now());
        while !progress.sent_all.load(Ordering::Relaxed) || last.elapsed() < SILENCE {
            let mut slices: Vec<_> =
                buffer.chunks_exact_mut(room).map(|chunk| [IoSliceMut::new(chunk)]).collect();
            let mut headers = MultiHeaders::<()>::preallocate(slices.len(), None);
            let flags = MsgFlags::MSG_WAITFORONE;
            let lengths: Vec<usize> =
                match recvmmsg(socket.as_raw_fd(), &mut headers, slices.iter_mut(), flags, None) {
                    Ok(messages) => messages.map(|message| message.bytes).collect(),
                    Err(Errno::EAGAIN | Errno::EINTR) => continue,
                    Err(errno) => panic!("the receiver: {errno}"),
                };
            last = Instant::now();
            for (datagram, length) in buffer.chunks_exact(room).zip(lengths) {
                match self.read(&datagram[..length]) {
                    None => arrived.damaged += 1,
                    Some((flow, number)) if number < next[flow as usize] => {
                        arrived.out_of_turn += 1
                    }
                    Some((flow, number)) => {
                        next[flow as usize] = number + 1;
                        arrived.whole += 1;
                    }
                }
            }
            progress.arrived.store(arrived.whole, Ordering::Relaxed);
        }
        arrived
    }
}

/// Sends `length` bytes over a TCP connection from each first host to its second, in parallel, and
/// compares what arrives.
pub fn tcp_streams(ways: &[(&Host, &Host)], length: u64) {
    let pool = &bytes(SEED, POOL + CHUNK);
    std::thread::scope(|scope| {
        for (seed, (from, to)) in (SEED..).zip(ways) {
            let listener = to.ns.enter(|| TcpListener::bind((to.ip(), 0))).unwrap().unwrap();
            let address = listener.local_addr().unwrap();
            let sender = from.ns.enter(|| TcpStream::connect_timeout(&address, TIMEOUT));
            let mut sender = sender.unwrap().expect("TCP connects");
            let (mut receiver, _) = listener.accept().unwrap();
            sender.set_write_timeout(Some(TIMEOUT)).unwrap();
            receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
            scope.spawn(move || {
                for chunk in chunks(pool, seed, length) {
                    sender.write_all(chunk).expect("TCP takes every byte");
                }
                sender.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut received = vec![0; CHUNK];
                for (expected, number) in chunks(pool, seed, length).zip(0..) {
                    let received = &mut received[..expected.len()];
                    receiver.read_exact(received).expect("TCP brings every byte");
                    let same = received.iter().zip(expected).take_while(|(a, b)| a == b);
                    assert!(
                        received == expected,
                        "byte {} is another",
                        number * CHUNK + same.count()
                    );
                }
                assert_eq!(
                    receiver.read(&mut received).expect("the end"),
                    0,
                    "TCP brings bytes that nobody sent"
                );
            });
        }
    });
}

/// A stream of `length` bytes as slices of a pool. The same seed gives the same stream.
fn chunks(pool: &[u8], seed: u64, length: u64) -> impl Iterator<Item = &[u8]> {
    let mut random = Random::new(seed);
    (0..length).step_by(CHUNK).map(move |at| {
        let start = random.next() as usize % POOL;
        &pool[start..][..CHUNK.min((length - at) as usize)]
    })
}

/// A protocol's counter in a namespace, with its name in `/proc/net/snmp`.
#[must_use]
pub fn snmp(namespace: &Namespace, protocol: &str, counter: &str) -> u64 {
    let table =
        namespace.enter(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).unwrap().unwrap();
    let mut rows = table.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(": "));
    let mut row = || rows.next().unwrap_or_else(|| panic!("no {protocol} in\n{table}")).split(' ');
    let (names, values) = (row(), row());
    let found = names.zip(values).find(|(name, _)| *name == counter);
    found
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or_else(|| panic!("no {counter} in\n{table}"))
}
