//! Why a command on a fabric could not be carried out.

use std::path::PathBuf;
use std::time::Duration;

use experiment::shard::Shard;

use crate::daemon::DaemonError;
use crate::run::ProgramError;
use fabric::FabricError;
use fabric::counters::CountersError;
use fabric::deployed::DeployedError;
use fabric::netns::NetnsError;
use fabric::node::NodeError;
use fabric::process::ProcessError;
use fabric::progress::Interrupted;
use fabric::topology::TopologyError;
use traffic::roce::RoceError;
use traffic::workload::WorkloadError;
use wan::ChangeError;

/// A command on a fabric could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The experiment file cannot be used.
    #[error(transparent)]
    Experiment(#[from] experiment::FileError),
    /// The topology file cannot be used.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// An operation on the fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The overlay could not be read.
    #[error(transparent)]
    Deployed(#[from] DeployedError),
    /// The user interrupted the command.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// An operation on a node failed.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A process could not be ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// An operation on a namespace failed.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// vtepd could not be run on a node.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The traffic could not be sent or received.
    #[error(transparent)]
    Roce(#[from] RoceError),
    /// The interface counters could not be read.
    #[error(transparent)]
    Counters(#[from] CountersError),
    /// A leaf does not find its paths.
    #[error(
        "probes have not reached {missing} VTEPs after {limit:?}: see 'vtepctl path' on the leaves"
    )]
    Paths {
        /// The time limit.
        limit: Duration,
        /// The number of VTEPs, of all leaves.
        missing: usize,
    },
    /// No two leaves spray.
    #[error(
        "no leaf sprays packets after {limit:?}: two leaves need two routes between them; see \
         'vtepctl path' on the leaves"
    )]
    NotSprayed {
        /// The time limit.
        limit: Duration,
    },
    /// The fabric has no such leaf.
    #[error("the fabric has no leaf '{0}': 'lab status' lists them")]
    NoLeaf(String),
    /// The fabric has no link for the failure.
    #[error(
        "the traffic uses no circuit of 'lab wan': use the failure 'carrier', or another topology"
    )]
    NoCircuit,
    /// The fabric has no such link.
    #[error("no link ends at '{0}': name an end as NODE:INTERFACE, as 'lab counters' lists them")]
    NoLink(String),
    /// Circuits could not be changed.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// Traffic did not return.
    #[error(
        "{missing} {seconds} s after the last failure: set a larger 'limit' in [[failure]], or an \
         end with 'for'"
    )]
    NoRecovery {
        /// The limit.
        seconds: u64,
        /// What is not as before.
        missing: &'static str,
    },
    /// The workload of the experiment file is not valid.
    #[error("{}, {place}: {message}", .file.display())]
    Workload {
        /// The experiment file.
        file: PathBuf,
        /// Where in the file.
        place: String,
        /// What is wrong.
        message: String,
    },
    /// The program of the workload could not be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The workload could not be run.
    #[error(transparent)]
    Job(#[from] WorkloadError),
    /// A file cannot be read or written.
    #[error("cannot use {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file of the directory has another content than expected.
    #[error("{}, line {line}, is no run: remove the line, or choose another directory with --out",
        .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The cause.
        source: serde_json::Error,
    },
    /// The directory has results of another experiment, commit or machine.
    #[error("{} has results that cannot be continued: choose another directory with --out{}",
        .path.display(), .differences.iter().map(|text| format!("\n  {text}")).collect::<String>())]
    Other {
        /// The directory.
        path: PathBuf,
        /// What differs.
        differences: Vec<String>,
    },
    /// The directory has files that are not of an experiment.
    #[error("{} is not empty and has no experiment: choose another directory with --out",
        .0.display())]
    NotEmpty(PathBuf),
    /// A fabric of this name was left running.
    #[error("fabric '{0}' is running: stop it with 'lab down {0}', or choose another with --name")]
    FabricIsUp(String),
    /// vtepd runs on leaves of a fabric that is up.
    #[error(
        "vtepd already runs on {}, and the experiment starts its own: deploy the topology without it \
         ('deploy/containerlab/up NAME kernel'), or end it ('docker stop' its containers, or \
         'lab policy kernel')", .0.join(", ")
    )]
    TakenOver(Vec<String>),
    /// A failure needs processes of the lab.
    #[error(
        "the failure '{0}' needs FRR that 'lab' started, and cannot be measured in ContainerLab's \
         containers: leave --deployed out, or use the fabric of 'lab up'"
    )]
    NeedsLab(&'static str),
    /// The fabric has no hosts for the traffic.
    #[error("{0}")]
    NoHosts(String),
    /// No attempt of a run counts.
    #[error(
        "no attempt of a run counts, the machine may be too busy for BFD:{}",
        .0.iter().map(|reason| format!("\n  {reason}")).collect::<String>()
    )]
    Unstable(Vec<String>),
    /// A circuit has ended during a run, or a process in ContainerLab's containers.
    #[error("{0} during a run: see its log, and start the same command again, which continues")]
    Changed(String),
    /// An experiment has fewer repetitions than parts.
    #[error(
        "--shard {shard}: the experiment has {repetitions} repetitions: use at most as many parts"
    )]
    Shards {
        /// The part.
        shard: Shard,
        /// Repetitions of the experiment.
        repetitions: u32,
    },
    /// Results cannot be joined.
    #[error("{}: {problem}", .path.display())]
    Merge {
        /// The directory.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// There are no runs.
    #[error("the experiment has no runs")]
    Nothing,
}
