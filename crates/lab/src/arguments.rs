//! The command line.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use experiment::units::Name;

use crate::quantities::whole_seconds;

/// Runs ContainerLab topologies in network namespaces, with FRR, hosts and RoCE traffic
#[derive(Parser)]
#[command(
    name = "lab",
    version,
    after_help = "Example:\n  lab up deploy/containerlab/scaleacross.clab.yml && lab exec leaf1 -- vtysh -c 'show bgp summary'"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Output format: table or JSON
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Write the topology file of a leaf-spine fabric, with FRR's configuration of each router
    #[command(
        after_help = "Example:\n  lab new --leaves 4 --spines 4 fabric && lab up fabric/fabric.clab.yml\n\nContainerLab deploys the same file."
    )]
    New(crate::fabric_arguments::New),
    /// Start a fabric and wait until it forwards
    #[command(
        after_help = "Example:\n  lab up deploy/containerlab/scaleacross.clab.yml --name test\n\nLAB_FRR_ROOT names another root file system to run FRR from (see tests/frr-root)."
    )]
    Up(Up),
    /// Stop fabrics: end their processes and delete their namespaces
    #[command(after_help = "Examples:\n  lab down scaleacross\n  lab down --all")]
    Down(Down),
    /// List the running fabrics
    #[command(after_help = "Example:\n  lab list -o json")]
    List,
    /// List the nodes of a fabric with their namespaces and processes
    #[command(after_help = "Example:\n  lab inspect -o json")]
    Inspect(Which),
    /// Run a command on a node
    #[command(after_help = "Example:\n  lab exec leaf1 -- vtysh -c 'show bgp l2vpn evpn summary'")]
    Exec(Exec),
    /// Open a shell on a node
    #[command(after_help = "Example:\n  lab shell leaf1")]
    Shell(Shell),
    /// The first process of a node, which lab up starts
    #[command(hide = true)]
    Init {
        /// Where to mount its /proc
        procs: Vec<PathBuf>,
    },
    /// Show the packet counters of each link
    #[command(after_help = "Example:\n  lab counters --node spine1 --node spine2")]
    Counters(Counters),
    /// Send or receive numbered RoCE frames
    #[command(
        subcommand,
        after_help = "Example, in two terminals:\n  lab roce receive --node host4\n  lab roce send --node host1 --to 192.168.10.4 --inner-port 49152"
    )]
    Roce(Roce),
    /// Compare kernel VXLAN with each policy of vtepd under the same traffic
    #[command(after_help = "Example:\n  lab demo --json figures.json --keep")]
    Demo(Demo),
    /// Measure what forwarding costs on this machine: vtepd in memory and beside kernel VXLAN
    ///
    /// It uses namespaces of its own, touches no vtepd that runs, and leaves nothing behind, also when
    /// it is interrupted. Whatever else the machine does shows in the figures.
    #[command(
        after_help = "Examples:\n  lab bench                                    less than a minute\n  lab bench --rounds 7 --time 1000 -o json     surer figures, for programs"
    )]
    Bench(Bench),
    /// Show the path of a flow between two hosts, by the answers of each router
    #[command(
        after_help = "Example:\n  lab path --from host1 --to host4 --qp 0x11\n\nThe leaf answers as for 'vtepctl explain', each router by 'ip route get'."
    )]
    Path(crate::fabric_arguments::Path),
    /// Show all leaves: VNIs and datapaths, sources and drops of vtepd, balance of uplinks
    ///
    /// MMR is the load of the most loaded uplink over the mean, in bytes that the leaf sent: 1 is
    /// even. The floor is the lowest MMR of as many equal queue pairs as qp-pin has placed.
    #[command(after_help = "Examples:\n  lab status\n  lab status --seconds 5")]
    Status(Status),
    /// Make all leaves forward with a policy of vtepd, or with kernel VXLAN
    #[command(
        after_help = "Example:\n  lab policy qp-hash\n  lab policy spray --scheme bitmap\n  lab policy kernel\n\nvtepd is started where it does not run, and again where it has another scheme."
    )]
    Policy(Policy),
    /// Change a link of a running fabric: down, up, or the properties of a circuit of lab wan
    #[command(
        subcommand,
        after_help = "Example:\n  lab link down spine1:dn1 --for 10s\n  lab link impair spine1:dci1 --delay 20ms --loss 1%"
    )]
    Link(crate::fabric_arguments::Link),
    /// Capture packets of leaves and links in one file for Wireshark, in the order of their times
    ///
    /// Each leaf's vtepd captures as for 'vtepctl capture': its uplinks, the frames in their packets,
    /// and what it dropped, with what was decided. A link is captured at the interface that is named,
    /// with all its packets. Names in the file begin with the node.
    #[command(
        after_help = "Examples:\n  lab capture -w fabric.pcapng                     all leaves, until Ctrl-C\n  lab capture --leaf leaf1 --link spine1:dn1 --for 10s -w - | wireshark -k -i -\n  lab capture --qp 0x11 -c 100 -w qp.pcapng"
    )]
    Capture(crate::fabric_arguments::Capture),
    /// Draw the fabric as SVG, with the load on each link
    ///
    /// Each half of a line shows what its end sends. The SVG goes to --out, or to standard output if
    /// that is redirected, or to graph.svg. If it goes to a file, the same figures are printed as a
    /// table. With -o json they are printed as JSON, and the SVG is written only with --out.
    #[command(after_help = "Example:\n  lab graph --out fabric.svg --seconds 5")]
    Graph(crate::fabric_arguments::Graph),
    /// Serve a live page of the fabric for a browser on this machine: loads, queue pairs, actions
    ///
    /// It prints the address, which has a secret in it: who knows it can do what lab does. It
    /// listens on the loopback interface only, until Ctrl-C, and reads nothing while no page is
    /// open.
    #[command(after_help = "Example:\n  lab web --port 8080 --read-only")]
    Web(crate::fabric_arguments::Web),
    /// Let a Prometheus outside the namespaces read the metrics of every vtepd of the fabric
    ///
    /// It serves the metrics of each leaf at a path of its own, on the loopback interface and until
    /// Ctrl-C, and writes a discovery file for file_sd_configs.
    #[command(
        after_help = "Example:\n  lab prometheus --out targets.json\n\nIn prometheus.yml:\n  scrape_configs:\n    - job_name: vtepd\n      file_sd_configs: [{files: [targets.json]}]"
    )]
    Prometheus(crate::fabric_arguments::Prometheus),
    /// Write lab's man pages and shell completions into a folder
    #[command(after_help = "Example:\n  lab manual /tmp/manual && man /tmp/manual/lab-up.1")]
    Manual {
        /// The folder
        folder: PathBuf,
    },
    /// Show what this machine and a fabric can and cannot do for an experiment, and what mends it
    ///
    /// ✗ is what makes experiments fail or measure something else, ○ what limits them. The exit
    /// status is 1 with a ✗. 'lab run' looks at the machine by itself.
    #[command(after_help = "Examples:\n  lab doctor\n  lab doctor -t lab.clab.yml -o json")]
    Doctor(crate::fabric_arguments::Doctor),
    /// Run an experiment: compare dataplanes by a file, and write tables, charts and a report
    ///
    /// The same command continues an experiment that was interrupted.
    #[command(
        after_help = "Example:\n  lab run deploy/experiments/scaleacross-qp.toml --quick --out results"
    )]
    Run(Run),
    /// Find the fastest plan of training between data centres: placement, schedule, network
    ///
    /// The times are predicted by a model: docs/guide/planner.md says how well. Nothing is run, and
    /// no privileges are needed.
    #[command(
        after_help = "Example:\n  lab plan deploy/plans/gpt3-two-sites.toml --explain --report plan.html"
    )]
    Plan(crate::plan_arguments::Plan),
    /// Simulate packets in a fabric: compare spraying schemes by a file, and write tables and a report
    ///
    /// No namespaces and no root. The same command continues a simulation that was interrupted. The
    /// exit status is 1 if a flow did not finish.
    #[command(after_help = "Example:\n  lab sim deploy/simulations/spraying.toml --out results")]
    Sim(crate::simulation_arguments::Sim),
    /// Join the parts of a simulation or of an experiment that ran with --shard, and write tables and a
    /// report
    #[command(
        after_help = "Examples:\n  lab merge simulated\n  lab merge part0 part1 --out results"
    )]
    Merge(crate::simulation_arguments::Merge),
    /// Compare two experiments: what changed? Or one with its simulation: do they agree?
    #[command(after_help = "Example:\n  lab compare results/before results/after")]
    Compare(crate::results_arguments::Compare),
    /// Draw columns of the tables of results, as wide as a column of a paper
    #[command(
        after_help = "Examples:\n  lab plot results --x delay --y completion_ms --pdf figure.pdf\n  lab plot results --x outage_ms --y cdf --where variant=silent --log-x --svg figure.svg"
    )]
    Plot(crate::results_arguments::Plot),
    /// Check a running fabric of ContainerLab or lab: reachability, vtepd, load balance, failover
    #[command(
        after_help = "Example:\n  containerlab deploy -t minimal.clab.yml && lab verify minimal.clab.yml --json result.json\n\nThe exit status is 1 if a check fails."
    )]
    Verify(Verify),
    /// Emulate circuits between interfaces with delay, jitter, loss and rate, until Ctrl-C or
    /// SIGTERM
    ///
    /// Frames pass between the two interfaces of a pair in both directions, in order. Each
    /// direction has its own delay. A new delay is drawn every 10 ms (or four jitters), uniform in
    /// delay ± jitter; between two draws it changes linearly. Missing interfaces are waited for.
    /// Counters are printed at the end and on SIGUSR1 (-o json for JSON).
    #[command(
        after_help = "Example:\n  lab wan a1:b1 a2:b2 --delay 5ms --jitter 1ms\n\n--delay, --jitter, --loss and --rate are those of `containerlab tools netem set`."
    )]
    Wan(crate::fabric_arguments::Wan),
    /// Run a collective operation of distributed training between hosts, over RoCE connections
    ///
    /// Each host is a rank. All ranks begin an iteration together. The result of each iteration is
    /// printed: a row, or a line of JSON.
    #[command(
        after_help = "Example:\n  lab workload host1 host2 host3 host4 --collective all-reduce-ring --bytes 64MiB --rate 1Gbit"
    )]
    Workload(Box<crate::workload_arguments::Workload>),
    /// Add vectors of several hosts over RoCE connections, for a program that trains
    ///
    /// One runs on each host, in its network namespace. It prints 'ready', and then reads requests
    /// from standard input: a line with a number of bytes. It replaces the float32 numbers at the
    /// beginning of the file by the sums over all hosts, and prints 'done'. All hosts must ask for
    /// the same lengths, and have the same addresses, seed and queue pairs. The order of summation is
    /// that of Gloo's ring. It ends with its standard input.
    #[command(
        name = "allreduce",
        after_help = "Example, on the first of two hosts:\n  truncate -s 1M /dev/shm/vector\n  lab allreduce --memory /dev/shm/vector --rank 0 --addresses 192.168.10.1,192.168.10.4"
    )]
    AllReduce(Box<crate::workload_arguments::AllReduce>),
}

/// The fabric.
#[derive(Args)]
pub(crate) struct Which {
    /// Name of the fabric; required if several are running
    #[arg(long)]
    pub(crate) name: Option<Name>,
}

#[derive(Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Time over which the balance is measured: seconds, or with a unit [default: since the links
    /// were created]
    #[arg(long, value_parser = whole_seconds)]
    pub(crate) seconds: Option<u64>,
}

#[derive(Args)]
pub(crate) struct Up {
    /// ContainerLab topology file, or a directory with one
    pub(crate) file: PathBuf,
    /// Name of the fabric, instead of the name in the file
    #[arg(long)]
    pub(crate) name: Option<Name>,
    /// Stop a running fabric of this name first
    #[arg(long)]
    pub(crate) rebuild: bool,
    /// Do not wait until BGP and EVPN have converged
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Leave out the nodes that run vtepd beside a leaf: kernel VXLAN forwards
    #[arg(long)]
    pub(crate) no_vtepd: bool,
    /// Then serve the live page, until Ctrl-C (see lab web); the fabric stays up
    #[arg(long)]
    pub(crate) web: bool,
    /// Path of vtepd [default: in the folder of lab]
    #[arg(long)]
    pub(crate) vtepd: Option<PathBuf>,
    /// Maximum time to wait: seconds, or with a unit, such as 2min
    #[arg(long, default_value = "90", value_parser = whole_seconds)]
    pub(crate) timeout: u64,
}

#[derive(Args)]
pub(crate) struct Down {
    /// Names of fabrics; required if several are running
    pub(crate) names: Vec<Name>,
    /// Stop all fabrics
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,
}

#[derive(Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Node
    pub(crate) node: String,
    /// Command and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Shell {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Node
    pub(crate) node: String,
}

#[derive(Args)]
pub(crate) struct Counters {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Only this node; can be repeated
    #[arg(long)]
    pub(crate) node: Vec<String>,
}

#[derive(Subcommand)]
pub(crate) enum Roce {
    /// Send numbered frames of several queue pairs in alternation
    #[command(
        after_help = "Example:\n  lab roce send --node host1 --to 192.168.10.4 --queue-pairs 32 --rate 20000 --seconds 5"
    )]
    Send(crate::stream_arguments::Send),
    /// Receive frames and count lost, reordered, duplicated and corrupted ones, until Ctrl-C or a
    /// pause
    #[command(
        after_help = "Example:\n  lab roce receive --node host4 --quiet-seconds 3 -o json\n\n'foreign' counts IPv4 frames of others."
    )]
    Receive(crate::stream_arguments::Receive),
    /// Measure two RoCE endpoints over a veth pair on one CPU: frames per second, goodput
    #[command(
        after_help = "Example:\n  lab roce bench --mtu 1024 --message 1MiB --seconds 5 -o json"
    )]
    Bench(crate::workload_arguments::Bench),
    /// Answer RoCE requests of another host: of lab roce connect, or of perftest
    #[command(
        after_help = "Example:\n  lab roce serve --node host4 --once\n\nThe other side: lab roce connect, ib_write_bw, ib_send_bw or ib_read_bw."
    )]
    Serve(crate::workload_arguments::Serve),
    /// Send RoCE writes, sends or reads to another host: to lab roce serve, or to perftest
    #[command(
        after_help = "Example:\n  lab roce connect --node host1 --to 192.168.10.4 --operation read --message 64KiB --count 1000"
    )]
    Connect(crate::workload_arguments::Connect),
}

#[derive(Args)]
pub(crate) struct Where {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Host [default: the namespace in which lab is started]
    #[arg(long)]
    pub(crate) node: Option<String>,
    /// Interface of the host
    #[arg(long, default_value = "eth1")]
    pub(crate) interface: String,
    /// Number in each frame that identifies the stream
    #[arg(long, default_value_t = 1)]
    pub(crate) mark: u64,
}

#[derive(Args)]
pub(crate) struct Demo {
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Leave the fabric running, with vtepd on every leaf
    #[arg(long)]
    pub(crate) keep: bool,
    /// Number of queue pairs between the two hosts
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) queue_pairs: u16,
    /// Frames per second
    #[arg(long, default_value_t = 20_000)]
    pub(crate) rate: u32,
    /// Number of frames for each policy
    #[arg(long, default_value_t = 100_000)]
    pub(crate) frames: u64,
    /// Topology file [default: deploy/containerlab/scaleacross.clab.yml, below the current folder
    /// or in the checkout that lab was built in]
    #[arg(long)]
    pub(crate) topology: Option<PathBuf>,
    /// Path of vtepd [default: in the folder of lab]
    #[arg(long)]
    pub(crate) vtepd: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Bench {
    /// Path of vtepd [default: in the folder of lab, else in $PATH]
    #[arg(long)]
    pub(crate) vtepd: Option<PathBuf>,
    /// Number of measurements of each; the median is reported [default: as many as fit in a minute]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) rounds: Option<u8>,
    /// Milliseconds that each is measured for
    #[arg(long, value_name = "MS", default_value_t = 150, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) time: u64,
    /// Only what a frame of 1,082 bytes and a round trip cost on one core
    #[arg(long)]
    pub(crate) brief: bool,
}

/// The names of vtepd's policies, and of kernel VXLAN.
fn policies() -> PossibleValuesParser {
    let own = study::daemon::Policy::ALL.map(study::daemon::Policy::name).into_iter();
    PossibleValuesParser::new(own.chain([experiment::file::KERNEL]))
}

#[derive(Args)]
pub(crate) struct Policy {
    #[command(flatten)]
    pub(crate) which: Which,
    /// A policy of vtepd, or `kernel` for kernel VXLAN without vtepd
    #[arg(value_parser = policies())]
    pub(crate) policy: String,
    /// Only on this leaf; may be repeated [default: all leaves]
    #[arg(long, value_name = "LEAF")]
    pub(crate) leaf: Vec<String>,
    /// Datapath of vtepd [default: vtepd's own]
    #[arg(long, value_parser = PossibleValuesParser::new(study::daemon::DATAPATHS))]
    pub(crate) datapath: Option<String>,
    /// Number of source ports of qp-bins [default: 4]
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..=65535))]
    pub(crate) bins: Option<usize>,
    /// Scheme of spray: prime-like (the default), bitmap, mixed, reps or oblivious
    #[arg(long, value_parser = study::daemon::scheme)]
    pub(crate) scheme: Option<study::daemon::Scheme>,
    /// Seed of the hashes
    #[arg(long, default_value_t = experiment::random::SEED)]
    pub(crate) seed: u64,
    /// Path of vtepd [default: in the folder of lab]
    #[arg(long)]
    pub(crate) vtepd: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Run {
    /// Experiment file
    #[arg(required_unless_present = "schema")]
    pub(crate) file: Option<PathBuf>,
    /// Directory for the results
    #[arg(long, value_name = "DIR", required_unless_present_any = ["schema", "plan"])]
    pub(crate) out: Option<PathBuf>,
    /// Run the short form of the experiment
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print the runs in their order, and run nothing
    #[arg(long)]
    pub(crate) plan: bool,
    /// Print the JSON Schema of the experiment file
    #[arg(long, exclusive = true)]
    pub(crate) schema: bool,
    /// Path of vtepd [default: in the folder of lab]
    #[arg(long)]
    pub(crate) vtepd: Option<PathBuf>,
    /// Use fabrics that are up, of ContainerLab or lab up, and leave them up; they must run without vtepd
    #[arg(long)]
    pub(crate) deployed: bool,
    /// Name of the fabric [default: the name of the experiment; with --deployed, of the topology]
    #[arg(long)]
    pub(crate) name: Option<Name>,
    /// Only a part of the repetitions: INDEX/COUNT, from 0/COUNT. 'lab merge' joins all parts
    #[arg(long, value_name = "INDEX/COUNT", conflicts_with_all = ["schema", "plan"])]
    pub(crate) shard: Option<experiment::shard::Shard>,
    /// Serve a live page of the experiment; an open page takes CPU time from what is measured
    #[arg(long)]
    pub(crate) web: bool,
    /// The command that the report names to repeat the experiment
    #[arg(long, hide = true)]
    pub(crate) command: Option<String>,
}

#[derive(Args)]
pub(crate) struct Verify {
    /// ContainerLab topology file, or a directory with one
    pub(crate) file: PathBuf,
    /// Name of the fabric [default: the name in the file]
    #[arg(long)]
    pub(crate) name: Option<Name>,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Expect kernel VXLAN to forward, without vtepd
    #[arg(long)]
    pub(crate) kernel: bool,
    /// Number of queue pairs between the two hosts
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) queue_pairs: u16,
    /// Frames per second
    #[arg(long, default_value_t = 10_000)]
    pub(crate) rate: u32,
    /// Number of frames for the load balance
    #[arg(long, default_value_t = 50_000)]
    pub(crate) frames: u64,
    /// Do not interrupt an uplink and a circuit
    #[arg(long)]
    pub(crate) no_failover: bool,
    /// Compare the load balance with the demo's figures in this file (lab demo --json)
    #[arg(long, value_name = "FILE")]
    pub(crate) figures: Option<PathBuf>,
    /// Maximum time until all hosts and leaves are known: seconds, or with a unit
    #[arg(long, default_value = "120", value_parser = whole_seconds)]
    pub(crate) timeout: u64,
}
