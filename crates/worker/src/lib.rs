//! The forwarding threads. Each receives batches of frames, has the pipeline process them, and
//! transmits the result.
//!
//! - [`worker`]: the thread, and the handle by which the daemon controls it
//! - [`access_ports`]: access ports of standalone VNIs
//! - [`scheduling`], [`affinity`]: scheduling policy and CPU of a worker
//! - [`punt`]: punt pairs, through which BPF programs divert frames to workers
//! - [`features`]: detection of kernel features

pub mod access_ports;
pub mod affinity;
pub mod features;
pub mod punt;
pub mod scheduling;
pub mod worker;

pub use access_ports::{Stations, WorkerPorts};
pub use features::Features;
pub use punt::{PuntError, PuntPair, PuntPairs, longest_frame, of_worker};
pub use scheduling::Scheduling;
pub use worker::{BypassTargets, Report, Reports, Sockets, Worker, WorkerOptions};
