//! The arguments of commands that send and receive numbered frames.

use std::time::Duration;

use clap::Args;

use crate::arguments::Where;
use crate::fabric_arguments::number;
use crate::quantities::{interval, size, whole_seconds};

#[derive(Args)]
pub(crate) struct Send {
    #[command(flatten)]
    pub(crate) place: Where,
    /// Destination IPv4 address
    #[arg(long)]
    pub(crate) to: std::net::Ipv4Addr,
    /// Number of queue pairs
    #[arg(long, default_value_t = 32)]
    pub(crate) queue_pairs: usize,
    /// Destination queue pairs, decimal or 0x…, instead of random ones
    #[arg(long, value_name = "NUMBER", value_parser = number, conflicts_with = "queue_pairs")]
    pub(crate) qp: Vec<u32>,
    /// Seed of the random queue pair numbers
    #[arg(long, default_value_t = experiment::random::SEED)]
    pub(crate) seed: u64,
    /// UDP source port of all frames [default: one for each queue pair, by rdma-core's formula]
    #[arg(long)]
    pub(crate) inner_port: Option<u16>,
    /// Payload in bytes, a multiple of 4, or with a unit: 4KiB
    #[arg(long, default_value = "1024", value_parser = size)]
    pub(crate) payload: u64,
    /// Frames per second
    #[arg(long, default_value_t = 10_000)]
    pub(crate) rate: u32,
    /// Number of frames to send
    #[arg(long, conflicts_with = "seconds")]
    pub(crate) frames: Option<u64>,
    /// Time to send for: seconds, or with a unit
    #[arg(long, default_value = "5", value_parser = whole_seconds)]
    pub(crate) seconds: u64,
    /// Also print a row for each interval: seconds, or with a unit; not with -o json
    #[arg(short, long, value_name = "TIME", value_parser = interval)]
    pub(crate) interval: Option<Duration>,
    /// CPU on which the sender runs
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
}

#[derive(Args)]
pub(crate) struct Receive {
    #[command(flatten)]
    pub(crate) place: Where,
    /// End after this time without a frame, once the first has arrived: seconds, or with a unit
    #[arg(long, default_value = "2", value_parser = whole_seconds)]
    pub(crate) quiet_seconds: u64,
    /// Also print a row for each interval: seconds, or with a unit; not with -o json
    #[arg(short, long, value_name = "TIME", value_parser = interval)]
    pub(crate) interval: Option<Duration>,
}
