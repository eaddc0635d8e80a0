//! The assertions of the fuzz targets, one function for each target.

#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    reason = "a fuzz target tells what it found by a panic"
)]

mod files;
mod frames;
mod kernel;
mod model;
mod offload;
mod probes;
mod programs;
mod requests;
mod seeds;
mod settings;
mod spraying;
mod streams;

pub use files::{experiment, matrix, plan, simulation, topology};
pub use frames::{decapsulate, dissect, encapsulate};
pub use offload::offload;
pub use probes::{probe_exchange, probe_message};
pub use programs::{chosen_port, steering};
pub use requests::api_request;
pub use seeds::write_if_asked as write_seeds_if_asked;
pub use settings::configuration;
pub use spraying::resequence;
pub use streams::{fpm_stream, netlink_decode};

/// The daemon's modules. The daemon is a binary crate, so no other crate can depend on it.
#[allow(dead_code, unused_imports, reason = "the targets use a part")]
#[path = "../../../crates/vtepd/src"]
mod vtepd {
    pub mod guard;
    pub mod handle;
    pub mod link_watch;
    pub mod log;
    pub mod metrics_view;
    pub mod own_links;
    pub mod pinning;
    pub mod privilege;
    pub mod probing;
    pub mod program_drops;
    pub mod takeover;
    pub mod wakeups;

    pub mod api {
        pub mod capture;
        pub mod captured;
        pub mod events;
        pub mod explain;
        pub mod flow;
        pub mod pinned;
        pub mod placement;
        pub mod service;
        pub mod show;
        pub mod status;
    }
}
// The modules refer to each other by these paths.
use vtepd::{
    api, guard, handle, link_watch, log, metrics_view, own_links, pinning, privilege,
    program_drops, takeover, wakeups,
};
