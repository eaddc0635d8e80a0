//! Requests to the control task.

use std::time::Duration;

use netlink::RuleSet;
use tables::{Learned, VniIndex};
use tokio::sync::oneshot;
use wire::MacAddr;

use crate::change::Change;
use crate::hosts::Host;
use crate::settings::{Filters, Settings};
use crate::stores::neighbours::Adjacency;

/// A request to the control task.
#[derive(Debug)]
pub enum Request {
    /// Use these settings from now on.
    Reload(Box<Settings>),
    /// Which packet filters see bridged frames has changed.
    Filters(Filters),
    /// The rules of packet filters have changed.
    PacketFilters(RuleSet),
    /// A worker received a frame from this MAC address.
    Learn(Learned),
    /// A worker needs this neighbour's MAC address.
    Resolve(Adjacency),
    /// A worker hung for so long that the kernel took over.
    Stalled {
        /// How long the frames had waited.
        waited: Duration,
        /// How many of them were dropped.
        dropped: u64,
    },
    /// Apply this change. The answer is sent when it is in force or has failed.
    Change(Change, oneshot::Sender<Result<(), path::SettingsError>>),
    /// Ask for the bridge port behind which the VNI in this index has an address.
    Port(VniIndex, MacAddr, oneshot::Sender<Option<String>>),
    /// Ask for the known hosts.
    Hosts(oneshot::Sender<Vec<Host>>),
    /// End the task.
    Shutdown,
}
