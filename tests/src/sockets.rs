//! TCP and UDP between hosts with ordinary sockets. Their frames have partial checksums and can be
//! super-frames.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use experiment::random::Random;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;

use crate::TIMEOUT;
use crate::lab::Host;

/// Pseudo-random bytes. The same seed gives the same bytes.
#[must_use]
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = vec![0; length.next_multiple_of(8)];
    // An iterator over single bytes takes ten times as long without optimisation.
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Sends `length` bytes in each direction over one TCP connection and compares them.
pub fn tcp_both_ways(client: &Host, server: &Host, length: usize) {
    tcp_between((client, client.ip()), (server, server.ip()), length);
}

/// Like [`tcp_both_ways`], with other addresses of the hosts.
pub fn tcp_between(
    (client, _): (&Host, Ipv4Addr),
    (server, address): (&Host, Ipv4Addr),
    length: usize,
) {
    let listener = server.ns.enter(|| TcpListener::bind((address, 0))).unwrap().unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        exchange(stream, 2, 1, length);
    });
    let stream = client
        .ns
        .enter(|| TcpStream::connect_timeout(&SocketAddrV4::new(address, port).into(), TIMEOUT));
    exchange(stream.unwrap().expect("TCP connects"), 1, 2, length);
    serving.join().expect("the server gets every byte");
}

fn exchange(stream: TcpStream, own: u64, theirs: u64, length: usize) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        writer.write_all(&bytes(own, length)).expect("TCP takes every byte");
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    (&stream).read_to_end(&mut received).expect("TCP brings every byte");
    sending.join().unwrap();
    assert!(
        received == bytes(theirs, length),
        "TCP brought {} of {length} bytes, or others",
        received.len()
    );
}

/// Sends datagrams and compares what arrives. None may be lost. With `segment`, the kernel splits
/// larger sends into datagrams (`UDP_SEGMENT`).
pub fn udp(from: &Host, to: &Host, datagrams: usize, size: usize, segment: bool) {
    let receiver = to.ns.enter(|| UdpSocket::bind((to.ip(), 0))).unwrap().unwrap();
    setsockopt(&receiver, sockopt::RcvBufForce, &(32 << 20)).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let sender = from.ns.enter(|| UdpSocket::bind((from.ip(), 0))).unwrap().unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let per_send = if segment { (60_000 / size).clamp(1, 64) } else { 1 };
    if segment {
        setsockopt(&sender, sockopt::UdpGsoSegment, &i32::try_from(size).unwrap())
            .expect("UDP_SEGMENT");
    }
    let all = bytes(size as u64, datagrams * size);
    on_one_cpu(|| {
        for (number, chunk) in all.chunks(per_send * size).enumerate() {
            sender.send(chunk).expect("UDP takes it");
            // The receiver's buffer must not overflow if the receiver is not scheduled.
            if number % 16 == 15 {
                std::thread::yield_now();
            }
        }
    });
    let mut buffer = vec![0; 65_536];
    for (number, expected) in all.chunks(size).enumerate() {
        let length = receiver
            .recv(&mut buffer)
            .unwrap_or_else(|e| panic!("datagram {number} of {size} bytes: {e}"));
        assert!(
            buffer[..length] == *expected,
            "datagram {number} of {size} bytes has {length} bytes, or others"
        );
    }
}

/// Runs `send` on one CPU. A veth has a backlog queue on each CPU, so the frames of a sender that
/// changes its CPU may overtake each other.
pub(crate) fn on_one_cpu(send: impl FnOnce()) {
    let this = Pid::from_raw(0);
    let all = sched_getaffinity(this).unwrap();
    let mut one = CpuSet::new();
    let first = (0..CpuSet::count()).find(|cpu| all.is_set(*cpu).unwrap_or(false)).expect("a CPU");
    one.set(first).unwrap();
    sched_setaffinity(this, &one).unwrap();
    send();
    sched_setaffinity(this, &all).unwrap();
}

/// Pings a host with `count` requests of `size` bytes. Each must be answered. `options` are those
/// of ping.
pub fn ping(from: &Host, to: Ipv4Addr, count: u32, size: u32, options: &[&str]) {
    // Without a deadline ping waits for its last answer only for twice the longest round-trip time.
    let options = [options, &["-i", "0.05", "-w", "10"]].concat();
    let said = try_ping(from, to, count, size, &options);
    // When answers take longer than the interval, it sends more until `count` have come.
    let answered = (1..=count).all(|number| said.contains(&format!("icmp_seq={number} ")));
    assert!(answered && !said.contains("duplicate"), "{said}");
}

/// Like [`ping`], but returns ping's output.
#[must_use]
pub fn try_ping(from: &Host, to: Ipv4Addr, count: u32, size: u32, options: &[&str]) -> String {
    let (count, size, to) = (count.to_string(), size.to_string(), to.to_string());
    let mut command = vec!["ping", "-n", "-i", "0.05", "-W", "3", "-c", &count, "-s", &size];
    command.extend(options);
    command.push(&to);
    let output = from.ns.output(&command).unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
