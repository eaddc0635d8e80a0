//! The forwarding threads. Each receives batches of frames, has the pipeline process them, and
//! transmits the result.
//!
//! - [`worker`]: the handle by which the daemon controls a worker
//! - `engine`: the worker's thread
//! - [`forwarder`]: receives, has the pipeline process, transmits and counts, over any ports
//! - [`access_ports`]: access ports of standalone VNIs
//! - [`scheduling`], [`affinity`]: scheduling policy and CPU of a worker
//! - [`punt`]: punt pairs, through which BPF programs divert frames to workers, and the splitter
//! - [`features`]: detection of kernel features

pub mod access_ports;
pub mod affinity;
mod engine;
pub mod features;
pub mod forwarder;
pub mod punt;
pub mod scheduling;
pub mod worker;

pub use access_ports::{Stations, WorkerPorts};
pub use features::Features;
pub use forwarder::{Forwarder, Ports};
pub use punt::{PrivateLink, PuntError, PuntPair, PuntPairs, longest_frame, of_worker};
pub use scheduling::Scheduling;
pub use worker::{Report, Reports, Sockets, Waker, Worker, WorkerOptions};
