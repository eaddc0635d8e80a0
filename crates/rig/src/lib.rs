//! vtepd beside kernel VXLAN and others, in network namespaces: what benchmarks measure with.
//!
//! - [`bed`]: a leaf with a host, and a peer that is the kernel's with a host of its own
//! - [`daemon`]: a vtepd in the leaf
//! - [`reference`]: Open vSwitch and testpmd in the leaf instead
//! - [`way`]: who forwards
//! - [`sender`]: frames from the leaf's host or from its peer, all that go
//! - [`turn`]: what arrives of them, and what that costs
//! - [`echo`], [`stream`]: round trips and TCP between the two hosts
//! - [`rows`]: results, and the table made of them
//! - [`cpu`]: which core, and how much of it

pub mod bed;
pub mod cpu;
pub mod daemon;
pub mod echo;
pub mod reference;
pub mod rows;
pub mod sender;
pub mod stream;
pub mod turn;
pub mod way;

pub use bed::Bed;
pub use daemon::Daemon;
pub use sender::{Sender, Traffic};
pub use turn::Turn;
pub use way::Way;

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A namespace, or a command in it.
    #[error(transparent)]
    Netns(#[from] lab::netns::NetnsError),
    /// The counters of links.
    #[error(transparent)]
    Counters(#[from] lab::counters::CountersError),
    /// A system call.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A frame that cannot be.
    #[error(transparent)]
    Frame(#[from] wire::WireError),
    /// A VNI that cannot be.
    #[error(transparent)]
    Vni(#[from] wire::TypeError),
    /// Anything else, in words.
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

/// Whether this process can make a bed, and has what it is made with.
///
/// # Errors
/// In words: what is missing, and what to do.
pub fn ready() -> Result<(), Error> {
    if !nix::unistd::geteuid().is_root() {
        return Err("network namespaces need root: run it with sudo".into());
    }
    for (program, package) in [("ip", "iproute2"), ("bridge", "iproute2"), ("ethtool", "ethtool")] {
        if !is_there(program) {
            return Err(format!("'{program}' is not in $PATH: install {package}").into());
        }
    }
    Ok(())
}

/// Whether this program is in `$PATH`.
fn is_there(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}
