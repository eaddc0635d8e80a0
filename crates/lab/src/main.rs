//! The `lab` command: fabrics in network namespaces, traffic through them, and the demo.

mod commands;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Fabrics in network namespaces from ContainerLab files, with real FRR, hosts and RoCE traffic.
#[derive(Parser)]
#[command(
    name = "lab",
    version,
    after_help = "Example:\n  lab up deploy/containerlab/scaleacross.clab.yml && lab exec leaf1 -- vtysh -c 'show bgp summary'"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// For people or for programs
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Bring a fabric up and wait until it forwards
    #[command(
        after_help = "Example:\n  lab up deploy/containerlab/scaleacross.clab.yml --name test\n\nLAB_FRR_ROOT names another root file system to run FRR from (see tests/frr-root)."
    )]
    Up(Up),
    /// Take a fabric down: end what the lab started in it, remove its namespaces
    #[command(after_help = "Example:\n  lab down scaleacross")]
    Down(Down),
    /// List the fabrics that are up
    #[command(after_help = "Example:\n  lab list -o json")]
    List,
    /// List the nodes of a fabric with their namespaces and processes
    #[command(after_help = "Example:\n  lab inspect -o json")]
    Inspect(Which),
    /// Run a command on a node
    #[command(after_help = "Example:\n  lab exec leaf1 -- vtysh -c 'show bgp l2vpn evpn summary'")]
    Exec(Exec),
    /// Show what each link has carried
    #[command(after_help = "Example:\n  lab counters --node spine1 --node spine2")]
    Counters(Counters),
    /// RoCE-shaped traffic with numbered frames
    #[command(
        subcommand,
        after_help = "Example, in two terminals:\n  lab roce receive --node host4\n  lab roce send --node host1 --to 192.168.10.4 --inner-port 49152"
    )]
    Roce(Roce),
    /// Show the same traffic through kernel VXLAN and through vtepd by each of its policies
    #[command(after_help = "Example:\n  lab demo --json figures.json --keep")]
    Demo(Demo),
    /// Look whether a fabric that is up does what it should, ContainerLab's or lab's: reach, vtepd,
    /// balance, failover
    #[command(
        after_help = "Example:\n  containerlab deploy -t minimal.clab.yml && lab verify minimal.clab.yml --json seen.json\n\nThe exit status is 1 if something is not as it should be."
    )]
    Verify(Verify),
    /// Circuits between interfaces of this namespace, with delay, jitter, loss and rate; ends on
    /// Ctrl-C or SIGTERM
    ///
    /// Frames go from one interface of a pair to the other, both ways, in their order, each way
    /// with a delay of its own. The delay wanders: every 10 ms (or four jitters) one is drawn,
    /// uniform in delay ± jitter, in between it changes evenly. Interfaces that are not there are
    /// waited for. Counters are printed at the end and on SIGUSR1 (-o json for programs).
    #[command(
        after_help = "Example:\n  lab wan a1:b1 a2:b2 --delay 5ms --jitter 1ms\n\n--delay, --jitter, --loss and --rate are those of `containerlab tools netem set`."
    )]
    Wan(Wan),
}

/// Which fabric.
#[derive(Args)]
struct Which {
    /// The fabric; needed if more than one is up
    #[arg(long)]
    name: Option<String>,
}

#[derive(Args)]
struct Up {
    /// The ContainerLab topology file
    file: PathBuf,
    /// Another name than the file's, so that several can be up
    #[arg(long)]
    name: Option<String>,
    /// Take a fabric of that name that is up down first
    #[arg(long)]
    rebuild: bool,
    /// Do not wait for BGP and EVPN
    #[arg(long)]
    no_wait: bool,
    /// Seconds to wait for
    #[arg(long, default_value_t = 90)]
    timeout: u64,
}

#[derive(Args)]
struct Down {
    /// The fabric; needed if more than one is up
    name: Option<String>,
    /// All of them
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

#[derive(Args)]
struct Exec {
    #[command(flatten)]
    which: Which,
    /// The node
    node: String,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[derive(Args)]
struct Counters {
    #[command(flatten)]
    which: Which,
    /// Only this node; can be repeated
    #[arg(long)]
    node: Vec<String>,
}

#[derive(Subcommand)]
enum Roce {
    /// Send numbered frames, queue pairs in turn
    #[command(
        after_help = "Example:\n  lab roce send --node host1 --to 192.168.10.4 --queue-pairs 32 --rate 20000 --seconds 5"
    )]
    Send(Send),
    /// Receive them and tell what was lost, reordered, duplicated or damaged; ends on Ctrl-C or
    /// after silence
    #[command(after_help = "Example:\n  lab roce receive --node host4 --quiet-seconds 3 -o json")]
    Receive(Receive),
}

#[derive(Args)]
struct Where {
    #[command(flatten)]
    which: Which,
    /// The host; without it, the namespace that lab is started in
    #[arg(long)]
    node: Option<String>,
    /// The host's interface
    #[arg(long, default_value = "eth1")]
    interface: String,
    /// What tells this stream from others
    #[arg(long, default_value_t = 1)]
    mark: u64,
}

#[derive(Args)]
struct Send {
    #[command(flatten)]
    place: Where,
    /// The IPv4 address to send to
    #[arg(long)]
    to: std::net::Ipv4Addr,
    /// How many queue pairs; their numbers are drawn from the seed
    #[arg(long, default_value_t = 32)]
    queue_pairs: usize,
    /// Draws the queue pair numbers
    #[arg(long, default_value_t = lab::random::SEED)]
    seed: u64,
    /// One UDP source port for all; without it, one per queue pair by rdma-core's formula
    #[arg(long)]
    inner_port: Option<u16>,
    /// Payload bytes, a multiple of 4
    #[arg(long, default_value_t = 1024)]
    payload: usize,
    /// Frames per second
    #[arg(long, default_value_t = 10_000)]
    rate: u32,
    /// Stop after so many frames
    #[arg(long, conflicts_with = "seconds")]
    frames: Option<u64>,
    /// Stop after so long
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// The CPU to stay on
    #[arg(long)]
    cpu: Option<usize>,
}

#[derive(Args)]
struct Receive {
    #[command(flatten)]
    place: Where,
    /// End when nothing has come for so long after the first frame
    #[arg(long, default_value_t = 2)]
    quiet_seconds: u64,
}

#[derive(Args)]
struct Demo {
    /// Write the figures to this file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Leave the fabric up, with vtepd on every leaf
    #[arg(long)]
    keep: bool,
    /// Queue pairs between the two hosts
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1000))]
    queue_pairs: u16,
    /// Frames per second
    #[arg(long, default_value_t = 20_000)]
    rate: u32,
    /// Frames per policy
    #[arg(long, default_value_t = 100_000)]
    frames: u64,
    /// The topology file [default: deploy/containerlab/scaleacross.clab.yml, here or in the
    /// checkout that lab was built in]
    #[arg(long)]
    topology: Option<PathBuf>,
    /// The vtepd program; without it, the one beside lab
    #[arg(long)]
    vtepd: Option<PathBuf>,
}

#[derive(Args)]
struct Verify {
    /// The ContainerLab topology file
    file: PathBuf,
    /// The fabric's name, if it is not the file's
    #[arg(long)]
    name: Option<String>,
    /// Write what was seen to this file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// No vtepd is expected: kernel VXLAN forwards
    #[arg(long)]
    kernel: bool,
    /// Queue pairs between the two hosts
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1000))]
    queue_pairs: u16,
    /// Frames per second
    #[arg(long, default_value_t = 10_000)]
    rate: u32,
    /// Frames for the balance
    #[arg(long, default_value_t = 50_000)]
    frames: u64,
    /// Take no uplink down, and cut no circuit
    #[arg(long)]
    no_failover: bool,
    /// The balance must equal the demo's figures in this file (lab demo --json)
    #[arg(long, value_name = "FILE")]
    figures: Option<PathBuf>,
    /// Seconds until everybody reaches everybody
    #[arg(long, default_value_t = 120)]
    timeout: u64,
}

#[derive(Args)]
struct Wan {
    /// The two interfaces of each circuit
    #[arg(required = true, value_name = "A:B")]
    circuits: Vec<lab::wan::Circuit>,
    /// How long a frame is on its way, each way: 5ms, 300us, 1s
    #[arg(long, default_value = "0ms", value_parser = duration)]
    delay: Duration,
    /// How far the delay goes from that, up and down
    #[arg(long, default_value = "0ms", value_parser = duration)]
    jitter: Duration,
    /// Frames that are lost, in percent
    #[arg(long, default_value_t = 0.0, value_parser = percent)]
    loss: f64,
    /// Kilobits per second; 0 for as many as there are
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// Bytes that may wait for the rate
    #[arg(long, default_value_t = 1 << 20)]
    queue: u64,
    /// Draws jitter and loss
    #[arg(long, default_value_t = lab::random::SEED)]
    seed: u64,
    /// The far end loses its carrier when the near end has (a wavelength); without, it does not
    /// notice (a carrier's Ethernet)
    #[arg(long)]
    carrier: bool,
}

/// Parses a number with its unit, such as `5ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err("expected a number with ns, us, ms or s, such as 5ms".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("'{number}' is no number"))?;
    // No circuit has a delay of more than an hour.
    Some(number * scale)
        .filter(|seconds| (0.0..=3600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected 0 s to 3600 s".to_owned())
}

/// Parses a percentage, 0 to 100, as a fraction of 1.
fn percent(text: &str) -> Result<f64, String> {
    let percent: f64 =
        text.parse().map_err(|_| "expected a number of percent, such as 0.1".to_owned())?;
    if (0.0..=100.0).contains(&percent) {
        Ok(percent / 100.0)
    } else {
        Err("expected 0 to 100".to_owned())
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => {
            let mut text = format!("lab: {error}\n");
            let mut cause = error.source();
            while let Some(error) = cause {
                text += &format!("  because: {error}\n");
                cause = error.source();
            }
            // A closed standard error is no error.
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::from(if commands::interrupted() { 130 } else { 1 })
        }
    }
}
