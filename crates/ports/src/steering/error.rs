//! What can go wrong with the BPF programs.

use std::io;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use aya::programs::tc::TcError;

use super::Hook;

/// Something about the steering programs did not work.
#[derive(Debug, thiserror::Error)]
pub enum SteeringError {
    /// The kernel did not take the programs.
    #[error(
        "the kernel did not load the steering programs: {0}; vtepd needs CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN"
    )]
    Load(#[from] EbpfError),
    /// A program could not be loaded or attached.
    #[error("steering program {program} could not be attached to {interface} by {hook}: {source}")]
    Attach {
        /// The program.
        program: &'static str,
        /// The interface.
        interface: String,
        /// How.
        hook: Hook,
        /// Why.
        source: ProgramError,
    },
    /// The clsact qdisc could not be added.
    #[error("no clsact qdisc could be added to {interface}: {source}")]
    Clsact {
        /// The interface.
        interface: String,
        /// Why.
        source: TcError,
    },
    /// A program is not as it should be.
    #[error("steering program {0} was not loaded: {1}")]
    Program(&'static str, ProgramError),
    /// A map could not be written or read.
    #[error("the steering programs' map {0}: {1}")]
    Map(&'static str, MapError),
    /// The object file lacks something that the code asks for.
    #[error("the steering object has no {0}")]
    Missing(&'static str),
    /// An interface vanished.
    #[error("interface {0} is gone")]
    NoInterface(u32),
    /// The private namespace could not be entered.
    #[error("the punts' namespace could not be entered: {0}")]
    Namespace(io::Error),
    /// The notes of waiting frames could not be shared.
    #[error("the steering programs' map waiting_since could not be mapped into memory: {0}")]
    Watchdog(io::Error),
    /// The kill switch's descriptor could not be put above the others.
    #[error("the kill switch's file descriptor could not be duplicated: {0}")]
    KillSwitch(io::Error),
}
