//! The control plane: from what the kernel and zebra report to tables, snapshots and steering
//! plans.
//!
//! State flows one way, from the sources to the workers:
//!
//! - [`sources`]: what the kernel and zebra send, applied to the stores
//! - `stores`: links, addresses, FDBs, neighbours, routes, remote VTEPs, rules
//! - `resolve`: from a VTEP to its next hops
//! - [`eligibility`]: which VNIs are taken over, and why others stay with the kernel
//! - [`publish`]: builds the snapshot and the steering plan
//! - [`events`]: what a publication changed, and the journal
//! - [`state`]: all of these without I/O: messages in, publications out
//! - [`task`]: the control task, which does the I/O
//!
//! Beside them: [`settings`] (the configuration, and defaults of the network namespace), [`change`]
//! (what can be changed while the daemon runs), [`learn`] (MAC addresses that workers report),
//! [`mac_mobility`] (MAC addresses that move too often) and [`hosts`] (hosts of which the kernel
//! knows both MAC and IP address).

pub mod change;
pub mod eligibility;
pub mod events;
pub mod hosts;
pub mod learn;
pub mod mac_mobility;
pub mod publish;
mod resolve;
pub mod settings;
pub mod sources;
pub mod state;
mod stores;
pub mod task;

pub use change::Change;
pub use eligibility::ineligible::{
    KernelOnlyReason, LeftToKernel, NoNetdev, UnsupportedEntry, UnusableRoute,
};
pub use events::{Event, Journal};
pub use hosts::Host;
pub use learn::LearnCounts;
pub use mac_mobility::{Flap, MoveCounts};
pub use publish::bypass::{NoBypass, PortDecision};
pub use publish::diff::Diff;
pub use publish::update::Update;
pub use resolve::path_mtu::Path;
pub use settings::{
    Datapath, Defaults, Filters, FlowLabelSource, LearnLimits, Namespace, RoutePerFrame, Settings,
    StaleTime, VniSettings,
};
pub use sources::SourceState;
pub use sources::fpm_session::{FpmHazard, FpmSweep};
pub use sources::resync::Resync;
pub use sources::standalone::StandaloneVni;
pub use state::State;
pub use stores::ipv6_interface::Ipv6Interface;
pub use stores::neighbours::Adjacency;
pub use task::listener::FpmListener;
pub use task::request::Request;
pub use task::status::{ByDefault, Status, Warning};
pub use task::{RunError, run, survey};
