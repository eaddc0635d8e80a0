//! The command line of workloads and RoCE connections.

use clap::{Args, ValueEnum};
use experiment::units::Name;
use roce::{Order, Settings, SourcePort, dcqcn, nscc};
use traffic::endpoint::Kind;
use traffic::workload::{Collective, Compute, Dealing};

use crate::quantities::{duration, rate, retransmission, seconds, size};

/// How inner UDP source ports are chosen.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PortFormula {
    /// One port for all queue pairs: 49152
    Constant,
    /// rdma-core's formula, from both queue pair numbers
    #[value(alias = "queue-pair")]
    PerQueuePair,
    /// Soft-RoCE's formula, from the local queue pair number
    SoftRoce,
}

/// How a host follows congestion.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Congestion {
    /// Rates follow notifications: DCQCN, with the parameters of its paper
    Dcqcn,
    /// A window follows marks and round trip times in acknowledgements: NSCC. Both hosts need it
    Nscc,
}

/// What a host does with packets that arrive out of order.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arrivals {
    /// Drops them; the sender goes back to the first one that is missing
    Drop,
    /// Keeps them; the sender repeats what is missing. Both hosts need it
    Place,
}

/// Settings of connections.
#[derive(Args, Clone)]
pub(crate) struct Transport {
    /// Number of queue pairs between two hosts
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) queue_pairs: u32,
    /// Path MTU in bytes of payload: 256, 512, 1024, 2048 or 4096
    #[arg(long, default_value = "1024", value_parser = size)]
    pub(crate) mtu: u64,
    /// Bytes of a queue pair that may be sent and not acknowledged
    #[arg(long, default_value = "256KiB", value_parser = size)]
    pub(crate) window: u64,
    /// Retransmission timer: a time such as 500us, or N for 4.096 µs × 2^N
    #[arg(long, default_value = "14", value_name = "TIME|N", value_parser = retransmission)]
    pub(crate) timeout: u64,
    /// Retransmissions without progress after which a connection fails
    #[arg(long, default_value_t = 7)]
    pub(crate) retries: u32,
    /// Rate of each host, such as 1Gbit or 200Mbit; 0 for no limit
    #[arg(long, default_value = "0", value_parser = rate)]
    pub(crate) rate: u64,
    /// Congestion control; --rate is the line rate
    #[arg(long, value_enum)]
    pub(crate) congestion: Option<Congestion>,
    /// Packets that arrive out of order
    #[arg(long, value_enum, default_value_t = Arrivals::Drop)]
    pub(crate) order: Arrivals,
    /// DSCP of all frames
    #[arg(long, default_value_t = 0)]
    pub(crate) dscp: u8,
    /// Packets that a queue pair sends before the next one has its turn
    #[arg(long, default_value_t = 16)]
    pub(crate) burst: u32,
    /// How inner UDP source ports are chosen
    #[arg(long, alias = "source-port", value_enum, default_value_t = PortFormula::PerQueuePair)]
    pub(crate) inner_port: PortFormula,
    /// Seed of queue pair numbers and of everything else that is random
    #[arg(long, default_value_t = experiment::random::SEED)]
    pub(crate) seed: u64,
}

impl Transport {
    /// The settings of an endpoint.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            mtu: u32::try_from(self.mtu).unwrap_or(u32::MAX),
            window: u32::try_from(self.window).unwrap_or(u32::MAX),
            timeout: self.timeout,
            retries: self.retries,
            rate: self.rate,
            dcqcn: self.controls(Congestion::Dcqcn).then(dcqcn::Parameters::default),
            nscc: self.controls(Congestion::Nscc).then(nscc::Parameters::default),
            acknowledge_marked: self.controls(Congestion::Nscc),
            order: match self.order {
                Arrivals::Drop => Order::Drop,
                Arrivals::Place => Order::Place,
            },
            dscp: self.dscp,
            burst: self.burst,
            ..Settings::default()
        }
    }

    fn controls(&self, by: Congestion) -> bool {
        self.congestion == Some(by)
    }

    pub(crate) fn source_port(&self) -> SourcePort {
        match self.inner_port {
            PortFormula::Constant => SourcePort::Constant(0xc000),
            PortFormula::PerQueuePair => SourcePort::PerQueuePair,
            PortFormula::SoftRoce => SourcePort::SoftRoce,
        }
    }
}

#[derive(Args)]
pub(crate) struct Workload {
    /// Hosts, in the order of their ranks
    #[arg(required_unless_present = "file")]
    pub(crate) hosts: Vec<String>,
    /// JSON file with a list of jobs, which run at the same time; see the guide
    #[arg(long, conflicts_with = "hosts")]
    pub(crate) file: Option<std::path::PathBuf>,
    /// Name of the fabric; required if several are running
    #[arg(long)]
    pub(crate) name: Option<Name>,
    /// The hosts are network namespaces, not nodes of a fabric
    #[arg(long)]
    pub(crate) namespaces: bool,
    /// Interface of the hosts
    #[arg(long, default_value = "eth1")]
    pub(crate) interface: String,
    /// Site of each host, for a hierarchical AllReduce
    #[arg(long, value_delimiter = ',')]
    pub(crate) sites: Vec<u32>,
    /// Collective operation
    #[arg(long, value_enum, default_value_t = Collective::AllReduceRing)]
    pub(crate) collective: Collective,
    /// Bytes of a rank's buffer, such as 312MB or 16MiB
    #[arg(long, default_value = "16MiB", value_parser = size)]
    pub(crate) bytes: u64,
    /// Maximum bytes of a message
    #[arg(long, default_value = "1MiB", value_parser = size)]
    pub(crate) message: u64,
    /// How messages use the queue pairs
    #[arg(long, value_enum, default_value_t = Dealing::RoundRobin)]
    pub(crate) dealing: Dealing,
    /// Iterations that count
    #[arg(long, default_value_t = 10)]
    pub(crate) iterations: u32,
    /// Iterations before those
    #[arg(long, default_value_t = 1)]
    pub(crate) warm_up: u32,
    /// Time that ranks compute in each iteration: 5ms, 5ms..10ms (uniform) or ~5ms (exponential)
    #[arg(long, value_parser = compute, default_value = "0s")]
    pub(crate) compute: Compute,
    /// Micro-batches of a pipeline
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) micro_batches: u32,
    /// Time of the forward pass of a micro-batch through a stage
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10ms")]
    pub(crate) forward: f64,
    /// Time of its backward pass
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "20ms")]
    pub(crate) backward: f64,
    /// Skew of an AllToAll: exponent of Zipf's law
    #[arg(long, default_value_t = 0.0)]
    pub(crate) skew: f64,
    /// Rate to compare the result with [default: --rate]
    #[arg(long, default_value = "0", value_parser = rate)]
    pub(crate) roofline: u64,
    /// Maximum time of an iteration: seconds, or with a unit, such as 2min
    #[arg(long, default_value = "300", value_parser = seconds)]
    pub(crate) limit: f64,
    #[command(flatten)]
    pub(crate) transport: Transport,
}

#[derive(Args)]
pub(crate) struct AllReduce {
    /// File that the program shares: the vectors are at its beginning
    #[arg(long, value_name = "FILE")]
    pub(crate) memory: std::path::PathBuf,
    /// Rank of this host, from 0
    #[arg(long, value_name = "N")]
    pub(crate) rank: usize,
    /// IPv4 addresses of all hosts, by rank
    #[arg(long, value_delimiter = ',', required = true)]
    pub(crate) addresses: Vec<std::net::Ipv4Addr>,
    /// Interface of this host
    #[arg(long, default_value = "eth1")]
    pub(crate) interface: String,
    /// Maximum time of a sum: seconds, or with a unit, such as 2min
    #[arg(long, default_value = "300", value_parser = seconds)]
    pub(crate) limit: f64,
    #[command(flatten)]
    pub(crate) transport: Transport,
}

#[derive(Args)]
pub(crate) struct Bench {
    /// Bytes of a message
    #[arg(long, default_value = "1MiB", value_parser = size)]
    pub(crate) message: u64,
    /// Seconds to measure
    #[arg(long, default_value = "3", value_parser = seconds)]
    pub(crate) seconds: f64,
    /// CPU on which everything runs
    #[arg(long, default_value_t = 0)]
    pub(crate) cpu: usize,
    #[command(flatten)]
    pub(crate) transport: Transport,
}

/// Where an endpoint runs.
#[derive(Args)]
pub(crate) struct Place {
    /// Name of the fabric; required if several are running
    #[arg(long)]
    pub(crate) name: Option<Name>,
    /// Host [default: the namespace in which lab is started]
    #[arg(long)]
    pub(crate) node: Option<String>,
    /// Interface of the host
    #[arg(long, default_value = "eth1")]
    pub(crate) interface: String,
    /// TCP port on which both sides agree on their queue pairs
    #[arg(long, default_value_t = traffic::endpoint::PORT)]
    pub(crate) port: u16,
}

#[derive(Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) place: Place,
    /// End after the first peer
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) transport: Transport,
}

#[derive(Args)]
pub(crate) struct Connect {
    #[command(flatten)]
    pub(crate) place: Place,
    /// IPv4 address of the other host
    #[arg(long)]
    pub(crate) to: std::net::Ipv4Addr,
    /// What to send
    #[arg(long, value_enum, default_value_t = Kind::Write)]
    pub(crate) operation: Kind,
    /// Bytes of a message
    #[arg(long, default_value = "64KiB", value_parser = size)]
    pub(crate) message: u64,
    /// Messages of each queue pair
    #[arg(long, default_value_t = 1000)]
    pub(crate) count: u64,
    /// Messages of a queue pair that are not complete at a time
    #[arg(long, default_value_t = 128)]
    pub(crate) depth: u64,
    #[command(flatten)]
    pub(crate) transport: Transport,
}

/// A time in seconds, with its unit.
fn time(text: &str) -> Result<f64, String> {
    duration(text).map(|time| time.as_secs_f64())
}

fn compute(text: &str) -> Result<Compute, String> {
    if let Some((min, max)) = text.split_once("..") {
        return Ok(Compute::Uniform { min: time(min)?, max: time(max)? });
    }
    if let Some(mean) = text.strip_prefix('~') {
        return Ok(Compute::Exponential { mean: time(mean)? });
    }
    Ok(match time(text)? {
        0.0 => Compute::None,
        seconds => Compute::Fixed { seconds },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_computation_is_a_time_a_range_or_a_mean() {
        assert_eq!(compute("0s"), Ok(Compute::None));
        assert_eq!(compute("2s"), Ok(Compute::Fixed { seconds: 2.0 }));
        assert_eq!(compute("1s..1min"), Ok(Compute::Uniform { min: 1.0, max: 60.0 }));
        assert_eq!(compute("~1s"), Ok(Compute::Exponential { mean: 1.0 }));
        assert!(compute("5").unwrap_err().contains("such as 5ms"));
    }
}
