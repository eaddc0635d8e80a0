//! Errors of the steering programs.

use std::io;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use aya::programs::tc::TcError;
use nix::errno::Errno;

use crate::hook::Hook;

/// An error while loading, attaching or configuring the steering programs.
#[derive(Debug, thiserror::Error)]
pub enum SteeringError {
    /// The kernel did not load the programs.
    #[error(
        "the kernel did not load the steering programs: {0}; vtepd needs CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN"
    )]
    Load(#[from] EbpfError),
    /// A program could not be attached.
    #[error("steering program {program} could not be attached to {interface} by {hook}: {source}")]
    Attach {
        /// The program.
        program: &'static str,
        /// The interface.
        interface: String,
        /// The kind of hook.
        hook: Hook,
        /// The cause.
        source: ProgramError,
    },
    /// The clsact qdisc could not be added.
    #[error("no clsact qdisc could be added to {interface}: {source}")]
    Clsact {
        /// The interface.
        interface: String,
        /// The cause.
        source: TcError,
    },
    /// An interface has another qdisc in the place of clsact.
    #[error(
        "{0} has the qdisc 'ingress', which has no filters of sent frames: use 'clsact' instead, as in \
         tc qdisc del dev {0} ingress; tc qdisc add dev {0} clsact"
    )]
    NoEgress(String),
    /// A program could not be loaded, or is not of the expected type.
    #[error("steering program {0} was not loaded: {1}")]
    Program(&'static str, ProgramError),
    /// A map could not be written or read.
    #[error("the steering programs' map {0}: {1}")]
    Map(&'static str, MapError),
    /// The object file lacks a map or program that the code uses.
    #[error("the steering object has no {0}")]
    Missing(&'static str),
    /// An interface vanished.
    #[error("interface {0} is gone")]
    NoInterface(u32),
    /// The private namespace could not be entered.
    #[error("the punts' namespace could not be entered: {0}")]
    Namespace(io::Error),
    /// A map could not be mapped into memory.
    #[error("the steering programs' map {0} could not be mapped into memory: {1}")]
    Mapped(&'static str, io::Error),
    /// The limit of open files could not be read.
    #[error("the limit of open files could not be read: {0}")]
    DescriptorLimit(Errno),
    /// A descriptor of the kill switch or of one of its programs could not be duplicated.
    #[error("a file descriptor of the kill switch could not be duplicated: {0}")]
    Descriptor(io::Error),
    /// Another thread holds the kill switch and hangs.
    #[error("the kill switch cannot be emptied: a thread that fills or empties it hangs")]
    KillSwitchBusy,
}
