//! The arguments of commands that make, change and show a fabric.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::arguments::{Which, duration};

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
    /// Interval of BFD packets, 10ms to 60s; a session ends after three intervals
    #[arg(long, default_value = "300ms", value_parser = duration, conflicts_with = "no_bfd")]
    pub(crate) bfd: Duration,
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
    pub(crate) name: Option<String>,
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
    /// Inner source port
    #[arg(long, value_name = "PORT", default_value_t = 49_152)]
    pub(crate) sport: u16,
    /// Outer source port, where vtepd does not choose it
    #[arg(long, value_name = "PORT")]
    pub(crate) outer_port: Option<u16>,
    /// Path of vtepctl [default: in the folder of lab]
    #[arg(long)]
    pub(crate) vtepctl: Option<PathBuf>,
}

fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}' is no number"))
}
