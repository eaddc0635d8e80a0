//! What `lab run` is asked for.

use std::path::PathBuf;

use experiment::shard::Shard;
use experiment::units::Name;

/// The settings of an experiment.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The experiment file.
    pub file: PathBuf,
    /// The directory for the results.
    pub out: PathBuf,
    /// Whether to run the short form.
    pub quick: bool,
    /// Whether to use fabrics that are up, of ContainerLab or `lab up`, and to leave them up.
    pub deployed: bool,
    /// The vtepd executable.
    pub vtepd: PathBuf,
    /// The name of the fabric; `None` for the name of the experiment.
    pub fabric: Option<Name>,
    /// The part of the runs; `None` for all.
    pub shard: Option<Shard>,
    /// The command that repeats the experiment, for the report.
    pub command: String,
}
