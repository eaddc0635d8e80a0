//! CPU time that the bypass saves.

use std::time::Duration;

use fabric::packet::{Interface, PacketSocket};
use nix::time::{ClockId, clock_gettime};
use root_test::root_test;
use vtepd_tests::Lab;
use vtepd_tests::frames::{self, Pair};
use vtepd_tests::lab::{ETH, ip};

use super::{port, speak, start, steering};

/// Measures the CPU time of a frame's sender, alternately with the bridge and with the bypass. The
/// sender's CPU does all work up to the punt pair.
#[root_test]
#[ignore = "a measurement: cargo test -p vtepd-tests --test system what_the_bypass_saves -- --ignored --nocapture"]
fn what_the_bypass_saves() {
    const BATCHES: u32 = 1000;
    let lab = Lab::new("sccost");
    let vtepd = start(&lab, "tcx");
    let frames: Vec<Vec<u8>> =
        (0..64).map(|n| frames::Roce::to(n).frame(Pair::of(&lab.host, &lab.far))).collect();
    let cpu = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let cost = || {
        let send = || {
            let socket = PacketSocket::sender(&Interface::find(ETH).unwrap()).unwrap();
            let start = cpu();
            for _ in 0..BATCHES {
                let mut rest: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
                while !rest.is_empty() {
                    let taken = socket.send(&rest).unwrap();
                    rest.drain(..taken);
                }
                // Time for the worker to empty its ring.
                std::thread::sleep(Duration::from_millis(1));
            }
            (cpu() - start) / (BATCHES * 64)
        };
        lab.host.ns.enter(send).unwrap()
    };
    let (mut bridged, mut bypass) = (Vec::new(), Vec::new());
    for netfilter in ["1", "0"] {
        if netfilter == "0" {
            lab.without_bridge_netfilter();
        }
        for _ in 0..7 {
            ip(&lab.leaf, "link set hp10 type bridge_slave isolated on");
            vtepd.wait_for("the bridge", |m| port(m, "hp10").is_some_and(|port| port.is_err()));
            bridged.push(cost());
            ip(&lab.leaf, "link set hp10 type bridge_slave isolated off");
            vtepd.wait_for("the bypass", |m| port(m, "hp10") == Some(Ok(())));
            speak(&lab.host);
            let before = steering(&vtepd.metrics(), "port_bypassed");
            bypass.push(cost());
            let taken = steering(&vtepd.metrics(), "port_bypassed") - before;
            assert!(taken > u64::from(BATCHES) * 60, "{taken}");
        }
        let mut ratios: Vec<f64> =
            bridged.iter().zip(&bypass).map(|(b, s)| s.as_secs_f64() / b.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        [&mut bridged, &mut bypass].iter_mut().for_each(|costs| costs.sort());
        println!(
            "bridge-nf-call {netfilter}: by the bridge {:?}, by the bypass {:?}, ratio {:.2} (medians of {})",
            bridged[3],
            bypass[3],
            ratios[3],
            ratios.len()
        );
        bridged.clear();
        bypass.clear();
    }
    println!("dropped: {}", vtepd.metrics().dropped_in_all());
}
