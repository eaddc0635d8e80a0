//! Workloads of distributed training: collective operations between hosts, over reliable RoCE
//! connections.
//!
//! [`run()`] runs [`Job`]s at the same time, and calls a function with an [`Iteration`] for each
//! iteration of each job. Ranks start an iteration together, without traffic between them. Queue pair numbers,
//! sequence numbers, dealing and compute times follow from the seed.

mod gate;
mod job;
mod pipeline;
mod rank;
mod report;
mod run;
mod schedule;

pub use job::{Compute, Dealing, Host, Job, JobError, Workload};
pub use pipeline::Pipeline;
pub use report::{Iteration, Latencies};
pub use run::{WorkloadError, run};
pub use schedule::{Collective, Computation, Schedule, ScheduleError, Transfer};
