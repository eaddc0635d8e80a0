//! What the stories share: a small fabric of namespaces, vtepd under guard, frames to inject and
//! captures of what arrives.
//!
//! - [`guard`]: one story at a time, as root
//! - [`lab`]: the fabric; [`lab::Lab`] draws it
//! - [`daemon`]: vtepd as a child, its metrics and its log
//! - [`memory`]: what vtepd allocates
//! - [`normal_form`]: vtepd's tables and the kernel's, to be compared entry by entry
//! - [`frames`]: inner and outer frames, byte by byte
//! - [`nftables`]: rules put in and taken out
//! - [`programs`]: BPF programs of somebody else
//! - [`outer`]: what a captured frame says in its outer headers
//! - [`capture`]: what an interface received
//! - [`sockets`]: TCP and UDP between hosts
//! - [`bulk`]: the same as fast as they go, in super-frames
//! - [`stream`]: numbered frames at a steady rate, and what became of them
//! - [`equivalence`]: the same frames with kernel VXLAN alone and with vtepd
//! - [`cycles`]: vtepd comes and goes under such a stream

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a fixture may panic, that is how a story fails"
)]

pub mod bulk;
pub mod capture;
pub mod cycles;
pub mod daemon;
pub mod equivalence;
pub mod experiments;
pub mod frames;
pub mod guard;
pub mod lab;
pub mod memory;
pub mod multicast;
pub mod nftables;
pub mod normal_form;
pub mod outer;
pub mod programs;
pub mod sockets;
pub mod stream;

pub use capture::Capture;
pub use daemon::Vtepd;
pub use lab::{Host, Lab, Setup};
pub use outer::Outer;

use std::time::{Duration, Instant};

/// How long anything that has to happen may take.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long nothing may come after what was expected, before it is believed that nothing more
/// comes.
pub const QUIET: Duration = Duration::from_millis(150);

/// Polls until `condition` holds; fails the story, naming `what`, if it does not within
/// [`PATIENCE`].
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    assert!(::lab::process::wait_until(PATIENCE, &mut condition), "waited in vain for {what}");
}

/// Lets time pass in which nothing may happen.
pub fn quiet() {
    let until = Instant::now() + QUIET;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::sleep(left);
    }
}
