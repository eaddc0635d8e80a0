//! Sources to tables to snapshot: resync, sweep, liveness.
//!
//! - [`state`]: everything that the sources said, without any I/O: events in, tables out
//! - [`settings`]: what the user sets, and what the namespace has set already
//! - [`ineligible`]: why a VNI stays with kernel VXLAN
//! - `port_choice`: the source ports of frames that the kernel encapsulates
//! - [`learn`]: what workers hear of MAC addresses, and what of it goes into the kernel's FDB
//! - [`mac_mobility`]: addresses that move too often
//! - [`bypass`]: which bridge ports have the bypass, and which addresses it goes by
//! - [`standalone`]: VNIs that the configuration describes, without netdevs
//! - [`source`]: the sources of facts, and how far each is to be believed
//! - [`publication`]: from what is known to what workers and steering go by
//! - [`task`]: the one task that owns everything
//! - [`status`]: what the control room says of itself
//! - [`events`]: what happened, for who wants to watch
//! - [`packet_filters`]: rules that could match a VNI's VXLAN packets
//! - [`change`]: what can be changed while the daemon runs
//! - [`hosts`]: which hosts' MAC and IP addresses the kernel knows together
//! - [`resolver`]: which neighbours the kernel is asked to resolve, and how often
//!
//! Inside: `hear` (what each event changes), `links`, `overlay` (one netdev's FDB), `fib` (one
//! source's routes), `underlay` (from a VTEP to the adjacencies that lead there), `vteps`,
//! `reverse_path` (`rp_filter`), `discover` (who is taken over, on which terms), `slots`,
//! `fpm_session`, and under most of them `swept`, the mark-and-sweep table, and `shared`, equal
//! values kept once.

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
