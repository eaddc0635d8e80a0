//! The command lines of commands that read files of plans, simulations and results, and of those
//! that send and receive numbered frames.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use study::simulation::Shard;

use crate::arguments::Where;
use crate::fabric_arguments::number;
use crate::quantities::{interval, size, whole_seconds};

#[derive(Args)]
pub(crate) struct Plan {
    /// Job file
    pub(crate) file: PathBuf,
    /// How many plans to show
    #[arg(long, value_name = "N", default_value = "5", value_parser = count)]
    pub(crate) top: usize,
    /// Explain the fastest plan, and show the fastest of each placement and sharding
    #[arg(long)]
    pub(crate) explain: bool,
    /// Write what the fastest plan sends between sites: JSON, for simulators FILE.cm, or for lab run
    /// FILE.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) traffic: Option<PathBuf>,
    /// Take the balance of paths from the results of lab run or lab sim in this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) network: Option<PathBuf>,
    /// Show what lab run has measured of the fastest plan, or lab sim simulated of its traffic, beside
    /// the prediction; can be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) measured: Vec<PathBuf>,
    /// Write a report with charts and the timeline of the fastest plan: one HTML file
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

/// A number of plans, 1 to 1000.
fn count(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=1000).contains(number));
    number.ok_or_else(|| "expected 1 to 1000".to_owned())
}

#[derive(Args)]
pub(crate) struct Sim {
    /// File of the simulation, or of an experiment with [simulation]
    #[arg(required_unless_present = "schema")]
    pub(crate) file: Option<PathBuf>,
    /// Directory for the results
    #[arg(long, value_name = "DIR", required_unless_present = "schema")]
    pub(crate) out: Option<PathBuf>,
    /// Number of threads; results do not depend on it [default: the CPUs]
    #[arg(long)]
    pub(crate) threads: Option<NonZeroU16>,
    /// Only a part of the runs: INDEX/COUNT, from 0/COUNT. 'lab merge DIR' joins all parts
    #[arg(long, value_name = "INDEX/COUNT")]
    pub(crate) shard: Option<Shard>,
    /// Print the JSON schema of the file
    #[arg(long)]
    pub(crate) schema: bool,
}

#[derive(Args)]
pub(crate) struct Merge {
    /// Directory with the results of all parts of a simulation, or directories with one part of an
    /// experiment each
    #[arg(required = true)]
    pub(crate) directories: Vec<PathBuf>,
    /// Directory for the joined results of an experiment
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Compare {
    /// Directory of the earlier results, or of reference results: a summary.csv alone
    pub(crate) before: PathBuf,
    /// Directory of the later results
    pub(crate) after: PathBuf,
}

#[derive(Args)]
pub(crate) struct Plot {
    /// Directory with the results of lab run
    pub(crate) directory: PathBuf,
    /// Column of the horizontal axis; also a key of [sweep], such as delay or loss
    #[arg(long, value_name = "COLUMN")]
    pub(crate) x: String,
    /// Column of the vertical axis, of which the mean is drawn; or cdf, the share of the lines with
    /// at most the value of x
    #[arg(long, value_name = "COLUMN")]
    pub(crate) y: String,
    /// Column whose values are the series
    #[arg(long, value_name = "COLUMN", default_value = "dataplane")]
    pub(crate) series: String,
    /// Only lines with this value
    #[arg(long = "where", value_name = "COLUMN=VALUE", value_parser = equals)]
    pub(crate) only: Vec<(String, String)>,
    /// Table with the columns, such as queue-pairs.csv [default: the first that has them]
    #[arg(long, value_name = "FILE")]
    pub(crate) table: Option<String>,
    /// Logarithmic horizontal axis
    #[arg(long)]
    pub(crate) log_x: bool,
    /// Logarithmic vertical axis
    #[arg(long)]
    pub(crate) log_y: bool,
    /// Title of the horizontal axis
    #[arg(long, value_name = "TEXT")]
    pub(crate) x_title: Option<String>,
    /// Title of the vertical axis
    #[arg(long, value_name = "TEXT")]
    pub(crate) y_title: Option<String>,
    /// As wide as a page, not as a column of a paper
    #[arg(long)]
    pub(crate) wide: bool,
    /// SVG file to write
    #[arg(long, value_name = "FILE", required_unless_present = "pdf")]
    pub(crate) svg: Option<PathBuf>,
    /// PDF file to write, by rsvg-convert
    #[arg(long, value_name = "FILE")]
    pub(crate) pdf: Option<PathBuf>,
}

fn equals(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').ok_or_else(|| format!("'{text}': expected COLUMN=VALUE"))?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

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
