//! A test leaf in network namespaces, for benchmarks of vtepd, kernel VXLAN and other datapaths.
//!
//! - [`topology`]: a leaf with a host, and a peer with kernel VXLAN and a host
//! - [`daemon`]: vtepd in the leaf
//! - [`ovs_dpdk`]: Open vSwitch or testpmd in the leaf
//! - [`datapath`]: the datapath that is measured
//! - [`sender`]: frames from the leaf's host or from its peer at the maximum rate
//! - [`measurement`]: one measurement of throughput and CPU time
//! - [`echo`], [`stream`]: round trips and TCP between the two hosts
//! - [`table`]: results, and a table of them
//! - [`cpu`], [`memory`]: CPU affinity, CPU time, memory

pub mod cpu;
pub mod daemon;
pub mod datapath;
pub mod echo;
pub mod measurement;
pub mod memory;
pub mod ovs_dpdk;
mod redirect;
pub mod sender;
pub mod stream;
pub mod table;
pub mod topology;

pub use daemon::Daemon;
pub use datapath::Datapath;
pub use measurement::Measurement;
pub use sender::{Sender, Traffic};
pub use topology::Testbed;

/// A measurement could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A namespace could not be used, or a command in it failed.
    #[error(transparent)]
    Netns(#[from] fabric::netns::NetnsError),
    /// The interface counters could not be read.
    #[error(transparent)]
    Counters(#[from] fabric::counters::CountersError),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A frame could not be built.
    #[error(transparent)]
    Frame(#[from] wire::WireError),
    /// A VNI is out of range.
    #[error(transparent)]
    Vni(#[from] wire::TypeError),
    /// Any other error, as a message.
    #[error("{0}")]
    Other(String),
}

impl From<nix::errno::Errno> for Error {
    fn from(errno: nix::errno::Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<String> for Error {
    fn from(text: String) -> Self {
        Self::Other(text)
    }
}

impl From<&str> for Error {
    fn from(text: &str) -> Self {
        Self::Other(text.to_owned())
    }
}

/// Checks that this process can create a testbed and that the required programs are installed.
///
/// # Errors
/// A message with what is missing and what to do.
pub fn ready() -> Result<(), Error> {
    if !nix::unistd::geteuid().is_root() {
        return Err("network namespaces need root: run it with sudo".into());
    }
    if !is_there("ethtool") {
        return Err("'ethtool' is not in $PATH: install the package ethtool".into());
    }
    Ok(())
}

/// Whether a program is in `$PATH`.
fn is_there(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}
