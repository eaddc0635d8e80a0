//! How often the task publishes while changes arrive faster than it can build. Needs root, for a
//! network namespace.

#![cfg(test)]

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc as blocking;
use std::time::{Duration, Instant};

use control::{FpmListener, Journal, Namespace, Request, Settings, State, Status};
use netlink::Kernel;
use nix::sched::{CloneFlags, unshare};
use tokio::sync::{mpsc, watch};

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 2620);
/// Duration of a publication in this test.
const COST: Duration = Duration::from_millis(10);
const FRAMES: u32 = 20_000;

/// `RTM_NEWNEIGH` of a remote MAC address in an FPM frame of its own.
fn frame(number: u32) -> Vec<u8> {
    let [_, b, c, d] = number.to_be_bytes();
    let neighbour = [7, 0, 0, 0, 5, 0, 0, 0, 0x40, 0, 0x16, 0];
    let vtep = [8, 0, 1, 0, 10, 0, 0, 2];
    let mac = [10, 0, 2, 0, 2, 0, 0, b, c, d, 0, 0];
    let length = 16 + (neighbour.len() + vtep.len() + mac.len()) as u8;
    let header = [length, 0, 0, 0, 28, 0, 0x05, 0x04, 0, 0, 0, 0, 0, 0, 0, 0];
    [&[1, 1, 0, length + 4][..], &header, &neighbour, &vtep, &mac].concat()
}

/// Under load, frames are not published in small pieces, each of which costs as much as a large
/// one.
#[test]
fn publications_take_half_of_the_time_at_most() {
    let story = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace; this test needs root");
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
        let published = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&published);
        let (first, ready) = blocking::channel();
        let (ask, asked) = mpsc::channel(1);
        let task = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let state = State::new(Settings::default(), Namespace::default());
                let listener = FpmListener {
                    address: Some(ADDRESS),
                    accept_hazard: true,
                    ..FpmListener::default()
                };
                let (status, _) = watch::channel(Status::default());
                let publish = move |_: &control::Update, _: &control::Diff| {
                    std::thread::sleep(COST);
                    count.fetch_add(1, Ordering::Relaxed);
                    let _ = first.send(());
                };
                let kernel = Kernel::open().unwrap();
                control::run(state, kernel, listener, asked, status, Journal::default(), publish)
                    .await
            })
        });
        ready.recv_timeout(Duration::from_secs(20)).expect("the first publication");
        let recording: Vec<u8> = (0..FRAMES).flat_map(frame).collect();
        let (start, before) = (Instant::now(), published.load(Ordering::Relaxed));
        fpm::replay(&recording[..], ADDRESS, None).expect("vtepd's side reads everything");
        let (time, made) = (start.elapsed(), published.load(Ordering::Relaxed) - before);
        // One may have been due at the start, and one may have been in progress at the end.
        let allowed = time.as_millis() / (2 * COST).as_millis() + 2;
        assert!(u128::from(made) <= allowed, "{made} publications in {time:?}");
        ask.blocking_send(Request::Shutdown).unwrap();
        task.join().unwrap().unwrap();
    };
    // A network namespace belongs to a thread.
    if let Err(panic) = std::thread::spawn(story).join() {
        std::panic::resume_unwind(panic);
    }
}
