//! The control plane: from what the kernel and zebra report to tables, snapshots and steering
//! plans.
//!
//! - [`state`]: the state of all sources, without I/O: events in, tables out
//! - [`settings`]: the configuration, and defaults of the network namespace
//! - [`ineligible`]: why a VNI stays with the kernel
//! - `port_choice`: source ports of frames that the kernel encapsulates
//! - [`learn`]: workers' reports of MAC addresses, and what is written into the kernel's FDB
//! - [`mac_mobility`]: MAC addresses that move too often
//! - [`bypass`]: host ports and MAC addresses that use the bridge bypass
//! - [`standalone`]: VNIs that the configuration describes, without netdevs
//! - [`source`]: the sources and their states
//! - [`publication`]: builds the snapshot and the steering plan
//! - [`task`]: the control task
//! - [`status`]: the status of the control task
//! - [`events`]: the journal of events
//! - [`packet_filters`]: packet filter rules that could match a VNI's VXLAN packets
//! - [`change`]: what can be changed while the daemon runs
//! - [`hosts`]: hosts of which the kernel knows both MAC and IP address
//! - [`resolver`]: neighbours that the kernel is asked to resolve
//!
//! Private modules: `apply` (what each event changes), `links`, `overlay` (the FDB of one netdev),
//! `route_table` (the routes of one source), `underlay` (from a VTEP to its next hops), `vteps`,
//! `reverse_path` (`rp_filter`), `eligibility` (the decision whether a VNI is taken over), `ids`
//! (slots and path numbers), `fpm_session`, `epoch_map` (a mark-and-sweep table) and `intern`
//! (equal values stored once).

mod apply;
pub mod bypass;
pub mod change;
mod crowded;
mod eligibility;
mod epoch_map;
pub mod events;
mod fpm_session;
pub mod host;
pub mod hosts;
mod ids;
pub mod ineligible;
mod intern;
pub mod learn;
mod links;
mod listener;
pub mod mac_mobility;
mod overlay;
pub mod packet_filters;
mod policies;
mod polled;
mod port_choice;
pub mod publication;
mod publication_log;
pub mod resolver;
mod reverse_path;
mod route_table;
pub mod settings;
mod slug;
pub mod source;
pub mod standalone;
pub mod state;
pub mod status;
pub mod task;
mod underlay;
mod vteps;

pub use bypass::{NoBypass, PortDecision};
pub use change::Change;
pub use events::{Event, Journal};
pub use host::Path;
pub use hosts::Host;
pub use ineligible::{KernelOnlyReason, LeftToKernel, NoNetdev, UnsupportedEntry, UnusableRoute};
pub use learn::LearnCounts;
pub use listener::FpmListener;
pub use mac_mobility::{Flap, MoveCounts};
pub use packet_filters::PacketFilters;
pub use publication::Update;
pub use resolver::Adjacency;
pub use settings::{
    Datapath, Defaults, Filters, LearnLimits, Namespace, RoutePerFrame, Settings, StaleTime,
    VniSettings,
};
pub use source::SourceState;
pub use standalone::StandaloneVni;
pub use state::{FpmHazard, FpmSweep, Resync, State};
pub use status::{ByDefault, Status, Warning};
pub use task::{Request, RunError, run, survey};
