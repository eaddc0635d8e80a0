//! Arguments of `lab sim` and `lab merge`.

use std::num::NonZeroU16;
use std::path::PathBuf;

use clap::Args;
use study::simulation::Shard;

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
