//! Traffic between hosts: RoCE endpoints on interfaces, streams, and collective operations.
//!
//! - [`allreduce`]: sums of real vectors, for a program that trains
//! - [`completions`]: tells live pages how long operations took
//! - [`endpoint`]: a RoCE endpoint with reliable connections on an interface
//! - [`roce`], [`stream`]: numbered frames of many queue pairs, checked at the receiver
//! - [`spread`]: how a stream is distributed over the links of a fabric
//! - [`timeline`]: what was sent and what arrived, over time
//! - [`trace`]: where the frames of each queue pair go
//! - [`workload`]: collective operations of distributed training between hosts

pub mod allreduce;
pub mod completions;
pub mod endpoint;
mod numbers;
pub mod roce;
pub mod spread;
pub mod stream;
pub mod timeline;
pub mod trace;
pub mod workload;
