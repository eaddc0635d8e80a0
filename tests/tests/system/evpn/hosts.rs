//! Traffic between hosts with ordinary sockets: ping, TCP and UDP.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fabric::Namespace;
use fabric::process::wait_until;
use nix::sys::socket::{setsockopt, sockopt};
use vtepd_tests::sockets::bytes;

use super::fixture::{ScaleAcross, TIMEOUT};

/// Each VNI's hosts and their addresses.
const NETWORKS: [&[(&str, Ipv4Addr)]; 2] = [
    &[
        ("host1", Ipv4Addr::new(192, 168, 10, 1)),
        ("host2", Ipv4Addr::new(192, 168, 10, 2)),
        ("host3", Ipv4Addr::new(192, 168, 10, 3)),
        ("host4", Ipv4Addr::new(192, 168, 10, 4)),
        ("host5", Ipv4Addr::new(192, 168, 10, 5)),
        ("host6", Ipv4Addr::new(192, 168, 10, 6)),
    ],
    &[("store1", Ipv4Addr::new(192, 168, 20, 1)), ("store4", Ipv4Addr::new(192, 168, 20, 4))],
];

/// Payload sizes of ping: its default, two usual sizes, the largest that fits one frame, and one
/// that the host fragments.
const PINGS: [&str; 5] = ["56", "1600", "3200", "8972", "20000"];
/// Datagram sizes: tiny, usual, the largest that fits one frame, and one that the host fragments.
const DATAGRAMS: [usize; 4] = [1, 600, 8972, 20_000];
const TCP: usize = 300_000;

/// A host in its namespace.
pub(super) struct Host {
    pub namespace: Namespace,
    pub address: Ipv4Addr,
}

pub(super) fn host(fabric: &ScaleAcross, name: &str) -> Host {
    let (_, address) = NETWORKS.concat().into_iter().find(|(host, _)| *host == name).unwrap();
    Host { namespace: fabric.namespace(name), address }
}

/// Checks that all pairs of hosts of a VNI can ping each other and exchange TCP and UDP, in
/// parallel. Every byte is compared.
pub(super) fn all_reach_each_other(fabric: &ScaleAcross) {
    std::thread::scope(|scope| {
        for network in NETWORKS {
            for (index, (a, _)) in network.iter().enumerate() {
                for (b, _) in &network[index + 1..] {
                    scope.spawn(move || {
                        let (a, b) = (host(fabric, a), host(fabric, b));
                        for size in PINGS {
                            ping(&a, &b, size);
                        }
                        tcp_both_ways(&a, &b, TCP);
                        for size in DATAGRAMS {
                            udp(&a, &b, size);
                            udp(&b, &a, size);
                        }
                    });
                }
            }
        }
    });
}

/// Sends three requests, each answered once. Without `-w` ping waits for two round trips only,
/// which is too short on a busy machine.
pub(super) fn ping(from: &Host, to: &Host, size: &str) {
    let to = to.address.to_string();
    let output = from
        .namespace
        .output(&["ping", "-n", "-c", "3", "-i", "0.2", "-w", "10", "-s", size, &to])
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("3 packets transmitted, 3 received, 0% packet loss"),
        "{size} bytes: {said}"
    );
}

fn connect(client: &Host, server: &Host) -> (TcpStream, TcpStream) {
    let listener =
        server.namespace.enter(|| TcpListener::bind((server.address, 0))).unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    let near = client
        .namespace
        .enter(|| TcpStream::connect_timeout(&address, TIMEOUT))
        .unwrap()
        .expect("TCP connects");
    let (far, _) = listener.accept().unwrap();
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    }
    (near, far)
}

/// Sends `length` bytes in each direction over one connection and compares them.
pub(super) fn tcp_both_ways(a: &Host, b: &Host, length: usize) {
    let (near, far) = connect(a, b);
    std::thread::scope(|scope| {
        for (stream, own, theirs) in [(&near, 1, 2), (&far, 2, 1)] {
            scope.spawn(move || {
                (&mut &*stream).write_all(&bytes(own, length)).expect("TCP takes every byte");
                stream.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut received = Vec::new();
                (&mut &*stream).read_to_end(&mut received).expect("TCP brings every byte");
                assert!(
                    received == bytes(theirs, length),
                    "TCP brought {} of {length} bytes, or others",
                    received.len()
                );
            });
        }
    });
}

/// Sends a few datagrams. Each must arrive unchanged.
fn udp(from: &Host, to: &Host, size: usize) {
    const COUNT: u64 = 8;
    let receiver = to.namespace.enter(|| UdpSocket::bind((to.address, 0))).unwrap().unwrap();
    setsockopt(&receiver, sockopt::RcvBufForce, &(8 << 20)).unwrap();
    receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
    let sender = from.namespace.enter(|| UdpSocket::bind((from.address, 0))).unwrap().unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    for number in 0..COUNT {
        sender.send(&bytes(number, size)).expect("UDP takes it");
    }
    let mut buffer = vec![0; 1 << 16];
    for number in 0..COUNT {
        let length = receiver
            .recv(&mut buffer)
            .unwrap_or_else(|error| panic!("datagram {number} of {size} bytes: {error}"));
        assert!(
            buffer[..length] == bytes(number, size),
            "datagram {number} of {size} bytes brought {length}, or others"
        );
    }
}

/// A continuous TCP transfer at a modest rate. The receiver compares every byte.
pub(super) struct Transfer {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<u64>,
}

impl Transfer {
    pub(super) fn start(client: &Host, server: &Host) -> Self {
        const CHUNK: usize = 64 << 10;
        const PAUSE: Duration = Duration::from_millis(5);
        let (near, far) = connect(client, server);
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let stopped = Arc::clone(&stop);
        let sender = std::thread::spawn(move || {
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                (&mut &near).write_all(&bytes(sent, CHUNK)).expect("TCP takes every byte");
                sent += 1;
                std::thread::sleep(PAUSE);
            }
            near.shutdown(Shutdown::Write).unwrap();
            sent
        });
        let counter = Arc::clone(&received);
        let receiver = std::thread::spawn(move || {
            let mut chunk = vec![0; CHUNK];
            let mut number = 0;
            while (&mut &far).read_exact(&mut chunk).is_ok() {
                assert!(
                    chunk == bytes(number, CHUNK),
                    "chunk {number} of a TCP transfer has other bytes"
                );
                number += 1;
                counter.store(number, Ordering::Relaxed);
            }
            number
        });
        Self { stop, received, sender, receiver }
    }

    /// Waits until more has arrived, so that an earlier change has carried traffic.
    pub(super) fn goes_on(&self) {
        let before = self.received.load(Ordering::Relaxed);
        let more = wait_until(TIMEOUT, || {
            self.received.load(Ordering::Relaxed) > before + 20 || self.receiver.is_finished()
        });
        assert!(
            more && !self.receiver.is_finished(),
            "the TCP transfer stands still after {before} chunks"
        );
    }

    /// Ends the transfer. Everything that was sent must have arrived.
    pub(super) fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (sent, received) = (self.sender.join().unwrap(), self.receiver.join().unwrap());
        assert_eq!(received, sent, "chunks of a TCP transfer");
    }
}
