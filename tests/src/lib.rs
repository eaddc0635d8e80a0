//! Helpers that the tests share: a small network of namespaces, vtepd as a child process, frames to
//! inject, and captures.
//!
//! - [`lab`]: the network
//! - [`daemon`]: vtepd as a child process, its metrics and its log
//! - [`memory`]: vtepd's allocations
//! - [`stopped`]: a thread of another process that stands still
//! - [`canonical`]: vtepd's tables and the kernel's, to compare them entry by entry
//! - [`frames`]: builders for inner and outer frames
//! - [`nftables`]: adds and removes nftables rules
//! - [`programs`]: BPF programs that do not belong to vtepd
//! - [`outer`]: the outer headers of a captured frame
//! - [`capture`]: captures of what an interface receives
//! - [`sockets`]: TCP and UDP between hosts
//! - [`bulk`]: TCP and UDP in super-frames, as fast as possible
//! - [`stream`]: numbered frames at a steady rate
//! - [`equivalence`]: the same frames with kernel VXLAN alone and with vtepd
//! - [`cycles`]: vtepd starts and stops while such a stream passes
//! - [`experiments`]: frames of an EtherType that only the tests use
//! - [`multicast`]: MDB entries of vxlan netdevs

pub mod bulk;
pub mod canonical;
pub mod capture;
pub mod cycles;
pub mod daemon;
pub mod equivalence;
pub mod experiments;
pub mod frames;
pub mod lab;
pub mod memory;
pub mod multicast;
pub mod nftables;
pub mod outer;
pub mod programs;
pub mod sockets;
pub mod stopped;
pub mod stream;

pub use capture::Capture;
pub use daemon::Vtepd;
pub use lab::{Host, Lab, Setup};
pub use outer::Outer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a test waits for an expected event.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// If nothing arrives for this time after the expected frames, a test assumes that nothing more
/// follows.
pub const QUIET: Duration = Duration::from_millis(150);

/// Polls until `condition` holds. Fails the test, naming `what`, if it does not within
/// [`TIMEOUT`].
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    assert!(::fabric::process::wait_until(TIMEOUT, &mut condition), "waited in vain for {what}");
}

/// Sets a flag when it is dropped, also after a panic: threads that end then would be waited for.
#[derive(Debug)]
pub struct Stop<'f>(pub &'f AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does something again and again, in a thread of its own, while `act` runs.
pub fn meanwhile<T>(mut again: impl FnMut() + Send, act: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                again();
            }
        });
        let _stop = Stop(&stop);
        act()
    })
}

/// Waits for [`QUIET`].
pub fn quiet() {
    let until = Instant::now() + QUIET;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::sleep(left);
    }
}
