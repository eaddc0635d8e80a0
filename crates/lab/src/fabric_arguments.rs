//! The arguments of commands that make, change and show a fabric.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use experiment::units::Name;
use lab::link::Direction;

use crate::arguments::Which;
use crate::quantities::{circuit_rate, duration, percent, size, whole_seconds};

#[derive(Args)]
pub(crate) struct New {
    /// Directory for the files; it must be empty or missing
    pub(crate) directory: PathBuf,
    /// Leaves in each site
    #[arg(long, default_value_t = 2)]
    pub(crate) leaves: usize,
    /// Spines in each site; each leaf has a link to each
    #[arg(long, default_value_t = 2)]
    pub(crate) spines: usize,
    /// Sites (data centres); each spine has a link to each spine of the other sites
    #[arg(long, default_value_t = 1)]
    pub(crate) sites: usize,
    /// Hosts at each leaf
    #[arg(long, default_value_t = 1)]
    pub(crate) hosts: usize,
    /// Interval of BFD packets, 10ms to 60s; a session ends after three intervals [default: 300ms, or
    /// 1s with more than 200 links between routers]
    #[arg(long, value_parser = duration, conflicts_with = "no_bfd")]
    pub(crate) bfd: Option<Duration>,
    /// Without BFD: BGP notices a link without carrier at once, and a silent failure after 9 s
    #[arg(long)]
    pub(crate) no_bfd: bool,
    /// Delay of links between sites in each direction, by circuits of lab wan; 0ms for plain links
    #[arg(long, default_value = "5ms", value_parser = duration)]
    pub(crate) delay: Duration,
    /// Maximum deviation from that delay
    #[arg(long, default_value = "1ms", value_parser = duration)]
    pub(crate) jitter: Duration,
    /// Leave out the nodes that run vtepd beside each leaf
    #[arg(long)]
    pub(crate) no_vtepd: bool,
    /// Name of the fabric [default: the name of the directory]
    #[arg(long)]
    pub(crate) name: Option<Name>,
}

#[derive(Args)]
pub(crate) struct Path {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Sending host
    #[arg(long)]
    pub(crate) from: String,
    /// Receiving host
    #[arg(long)]
    pub(crate) to: String,
    /// Destination queue pair, decimal or 0x…: RoCE traffic [default: a UDP flow]
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    pub(crate) qp: Option<u32>,
    /// Inner UDP source port
    #[arg(long, alias = "sport", value_name = "PORT", default_value_t = 49_152)]
    pub(crate) inner_port: u16,
    /// Outer source port, where vtepd does not choose it
    #[arg(long, value_name = "PORT")]
    pub(crate) outer_port: Option<u16>,
    /// Also show the way back, of this queue pair [default: the other one of the connection, if a
    /// leaf knows it]
    #[arg(
        long,
        value_name = "NUMBER",
        value_parser = number,
        num_args = 0..=1,
        requires = "qp",
        conflicts_with = "outer_port"
    )]
    pub(crate) reverse: Option<Option<u32>>,
}

#[derive(Subcommand)]
pub(crate) enum Link {
    /// Set a link down: both ends lose their carrier
    ///
    /// A plain link is set down at the named end, or at its first. A circuit is set down at both
    /// interfaces of lab wan.
    #[command(after_help = "Example:\n  lab link down spine1:dn1 --for 10s")]
    Down(LinkState),
    /// Set all interfaces of a link up
    #[command(after_help = "Example:\n  lab link up spine1:dn1")]
    Up(LinkState),
    /// Change delay, jitter, loss or rate of a circuit of lab wan while it runs
    ///
    /// What is not named stays, but a jitter above the new delay becomes that delay. Frames that
    /// wait for the rate limit get a new rate; others in transit keep their time. The properties
    /// are printed afterwards.
    #[command(
        after_help = "Example:\n  lab link impair spine1:dci1 --delay 20ms --loss 1% --for 10s\n  lab link impair a1:b1 --rate 100mbit --direction a-to-b"
    )]
    Impair(Impair),
}

#[derive(Args)]
pub(crate) struct LinkState {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Interface of the link as NODE:INTERFACE, or circuit as A:B
    pub(crate) link: String,
    /// Undo it after this time, such as 10s, or on Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) time: Option<Duration>,
}

#[derive(Args)]
#[group(id = "properties", required = true, multiple = true, args = ["delay", "jitter", "loss", "rate", "queue"])]
pub(crate) struct Impair {
    #[command(flatten)]
    pub(crate) place: LinkState,
    /// Delay in each direction: 5ms, 300us, 1s
    #[arg(long, value_parser = duration)]
    pub(crate) delay: Option<Duration>,
    /// Maximum deviation from the delay
    #[arg(long, value_parser = duration)]
    pub(crate) jitter: Option<Duration>,
    /// Frame loss in percent: 1, 0.1%
    #[arg(long, value_parser = percent)]
    pub(crate) loss: Option<f64>,
    /// Rate limit: 200mbit, 1gbit, or a number of kilobits per second; 0 for none
    #[arg(long, value_parser = circuit_rate)]
    pub(crate) rate: Option<u64>,
    /// Queue length of the rate limit in bytes, or with a unit: 64KiB
    #[arg(long, value_parser = size)]
    pub(crate) queue: Option<u64>,
    /// Directions of the circuit A:B
    #[arg(long, value_enum, default_value_t = Direction::Both)]
    pub(crate) direction: Direction,
}

#[derive(Args)]
pub(crate) struct Graph {
    #[command(flatten)]
    pub(crate) which: Which,
    /// File for the SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Time over which the load is measured: seconds, or with a unit
    #[arg(long, default_value = "1", value_parser = whole_seconds)]
    pub(crate) seconds: u64,
}

#[derive(Args)]
pub(crate) struct Doctor {
    /// Name of a running fabric to look at, too [default: the only one]
    pub(crate) name: Option<Name>,
    /// Look at the fabric of this topology file, which ContainerLab or lab has started
    #[arg(short = 't', long, value_name = "FILE", conflicts_with = "name")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Web {
    /// Name of the fabric; required if several are running
    pub(crate) name: Option<Name>,
    /// TCP port on 127.0.0.1 [default: any that is free]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
    /// Only show the fabric: the page has no actions
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Show a file that the page has saved, or the directory with the results of lab run or lab sim;
    /// no fabric and no privileges are needed
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub(crate) replay: Option<PathBuf>,
    /// With results of several fabrics: the one to show, or a case of a simulation [default: the
    /// first]
    #[arg(long, value_name = "NAME", requires = "replay")]
    pub(crate) fabric: Option<String>,
}

impl Web {
    pub(crate) const fn access(&self) -> web::Access {
        if self.read_only { web::Access::ReadOnly } else { web::Access::Full }
    }
}

#[derive(Args)]
pub(crate) struct Capture {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Leaves [default: all with vtepd, without --link]
    #[arg(long, value_name = "NODE")]
    pub(crate) leaf: Vec<String>,
    /// Interfaces of links, NODE:INTERFACE
    #[arg(long, value_name = "NODE:INTERFACE", value_parser = end)]
    pub(crate) link: Vec<fabric::topology::Endpoint>,
    /// Of leaves only packets of this VNI
    #[arg(long, value_name = "VNI")]
    pub(crate) vni: Option<u32>,
    /// Of leaves only packets to this inner destination queue pair, decimal or 0x…
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    pub(crate) qp: Option<u32>,
    /// Of leaves only packets from or to this inner MAC address
    #[arg(long, value_name = "MAC")]
    pub(crate) mac: Option<wire::MacAddr>,
    /// The file; - for the standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: PathBuf,
    /// End after so many packets
    #[arg(short, long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) time: Option<Duration>,
    /// The most bytes of each packet of a leaf [default: all]
    #[arg(short, long, value_name = "BYTES", default_value_t = 0, hide_default_value = true)]
    pub(crate) snap_length: u32,
}

/// Parses an interface of a node.
fn end(text: &str) -> Result<fabric::topology::Endpoint, String> {
    let parts = text.split_once(':').filter(|(node, name)| !node.is_empty() && !name.is_empty());
    let (node, interface) = parts.ok_or_else(|| format!("'{text}' is not NODE:INTERFACE"))?;
    Ok(fabric::topology::Endpoint { node: node.to_owned(), interface: interface.to_owned() })
}

/// Parses a queue pair number, decimal or hexadecimal.
pub(crate) fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}' is no number"))
}

#[derive(Args)]
pub(crate) struct Wan {
    /// The two interfaces of each circuit
    #[arg(required = true, value_name = "A:B")]
    pub(crate) circuits: Vec<fabric::topology::Circuit>,
    /// Delay in each direction: 5ms, 300us, 1s
    #[arg(long, default_value = "0ms", value_parser = duration)]
    pub(crate) delay: Duration,
    /// Maximum deviation from the delay, in both directions
    #[arg(long, default_value = "0ms", value_parser = duration)]
    pub(crate) jitter: Duration,
    /// Frame loss in percent: 1, 0.1%
    #[arg(long, default_value = "0", value_parser = percent)]
    pub(crate) loss: f64,
    /// Rate limit: 200mbit, 1gbit, or a number of kilobits per second; 0 for none
    #[arg(long, default_value = "0", value_parser = circuit_rate)]
    pub(crate) rate: u64,
    /// Queue length of the rate limit in bytes, or with a unit: 64KiB
    #[arg(long, default_value = "1MiB", value_parser = size)]
    pub(crate) queue: u64,
    /// Set the ECN mark of ECN-capable frames while more than so many bytes are in that queue
    #[arg(long, value_name = "BYTES", requires = "rate", value_parser = size)]
    pub(crate) ecn: Option<u64>,
    /// Seed of the random jitter and loss
    #[arg(long, default_value_t = experiment::random::SEED)]
    pub(crate) seed: u64,
    /// Propagate a lost carrier to the other end, as a wavelength does; a carrier's Ethernet
    /// service does not
    #[arg(long)]
    pub(crate) carrier: bool,
}

#[derive(Args)]
pub(crate) struct Prometheus {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Discovery file to write [default: it is printed]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Port on the loopback interface [default: a free one]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
}
