//! `lab` with namespaces and links.

#![cfg(test)]

mod allreduce;
mod command_line;
mod fabric;
mod names;
mod planned;
mod roce;
mod super_frames;
mod wan;
mod wan_faults;
mod workload;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ::fabric::netns::{Namespace, veth};
use experiment::random::SEED;
use traffic::roce::{Limit, Sent, Sink, Source, SourcePort, connections};

/// Namespaces of a test, whose names end so.
fn namespaces<const N: usize>(story: &str, ends: [&str; N]) -> [Namespace; N] {
    let name = |end| format!("lab-{story}-{}-{end}", std::process::id());
    ends.map(|end| Namespace::create(name(end)).unwrap())
}

/// Two namespaces whose `eth1` are the ends of a link, with the addresses 192.0.2.1 and 192.0.2.2.
fn pair(story: &str, mtu: u32) -> [Namespace; 2] {
    let [a, b] = namespaces(story, ["a", "b"]);
    veth((&a, "eth1"), (&b, "eth1"), mtu).unwrap();
    a.run(&["ip", "addr", "add", "192.0.2.1/24", "dev", "eth1"]).unwrap();
    b.run(&["ip", "addr", "add", "192.0.2.2/24", "dev", "eth1"]).unwrap();
    [a, b]
}

/// A stream of so many queue pairs to 192.0.2.2, with so many bytes in a frame and frames per second.
fn source(queue_pairs: usize, payload: usize, rate: u32) -> Source {
    Source {
        interface: "eth1".into(),
        destination: [192, 0, 2, 2].into(),
        connections: connections(SEED, queue_pairs),
        inner_port: SourcePort::Constant(49152),
        payload,
        rate,
        mark: 1,
        cpu: None,
    }
}

/// Sends so many frames from the first namespace, and receives them in the second until they pause.
fn stream(
    [from, to]: [&Namespace; 2],
    source: &Source,
    frames: u64,
    progress: impl Fn(u64) + Send,
) -> (Sent, Sink) {
    let mut sink = to.enter(|| Sink::open("eth1", source.mark)).unwrap().unwrap();
    let sent = std::thread::scope(|scope| {
        let stop = AtomicBool::new(false);
        let send = move || source.run(Limit::Frames(frames), &stop, progress).unwrap();
        let sending = scope.spawn(move || from.enter(send).unwrap());
        while !sending.is_finished() {
            sink.receive().unwrap();
        }
        sending.join().unwrap()
    });
    sink.drain(&sent, Duration::from_secs(1)).unwrap();
    (sent, sink)
}

root_test::main!();
