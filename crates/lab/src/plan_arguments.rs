//! The command line of `lab plan`.

use std::path::PathBuf;

use clap::Args;

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
