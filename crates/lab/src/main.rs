//! t
#![allow(clippy::all, clippy::unwrap_used)]
use std::sync::atomic::*;
use std::time::Duration;
use lab::roce::*;
fn main() {
    let t = lab::topology::Topology::load(std::path::Path::new("deploy/containerlab/scaleacross.clab.yml")).unwrap();
    let start = std::time::Instant::now();
    let report = |m: &str| { eprintln!("{:?} {m}", start.elapsed()); Ok(()) };
    let f = lab::fabric::Fabric::up(t, None, &report).unwrap();
    f.converge(Duration::from_secs(60), &report).unwrap();
    let ns = |n: &str| f.node(n).unwrap().namespace().unwrap();
    let links = ["leaf1:up1","leaf1:up2","spine1:dci1","spine1:dci2","spine2:dci1","spine2:dci2"];
    let read = || links.iter().map(|l| { let (n,i)=l.split_once(':').unwrap(); lab::counters::read(&ns(n)).unwrap()[i].tx_packets }).collect::<Vec<_>>();
    for (port, payload, rate) in [(InnerPort::Constant(49152), 1024, 20000), (InnerPort::PerQueuePair, 1024, 20000), (InnerPort::PerQueuePair, 64, 100_000)] {
        let source = Source { interface: "eth1".into(), destination: "192.168.10.4".parse().unwrap(), connections: connections(lab::random::SEED, 32), inner_port: port, payload, rate, mark: 1, cpu: Some(0) };
        let before = read();
        let mut sink = ns("host4").enter(|| Sink::open("eth1", 1).unwrap()).unwrap();
        let (stop, progress) = (AtomicBool::new(false), AtomicU64::new(0));
        let host1 = ns("host1");
        let sent = std::thread::scope(|s| {
            let h = s.spawn(|| host1.enter(|| source.run(Limit::Frames(100_000), &stop, &progress)).unwrap().unwrap());
            while !h.is_finished() { sink.receive().unwrap(); }
            h.join().unwrap()
        });
        sink.drain(&sent, Duration::from_secs(1)).unwrap();
        let r = sink.report_of(&sent, &source.connections);
        let after = read();
        let d: Vec<u64> = after.iter().zip(&before).map(|(a,b)| a-b).collect();
        println!("{:?} lost {} reord {} dup {} corr {} foreign {} {d:?} mmr {:.2}", Duration::from_nanos(sent.nanoseconds as u64), r.lost(), r.reordered(), r.duplicated(), r.corrupted(), r.foreign, lab::balance::mmr(&d[2..]));
    }
    f.down().unwrap();
    println!("{:?}", start.elapsed());
}
