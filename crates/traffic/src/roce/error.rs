//! The error of the traffic generator.

use fabric::arp::ArpError;
use fabric::packet::PacketError;

/// Traffic could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum RoceError {
    /// The interface cannot be used.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// A setting is out of range.
    #[error("{0}")]
    Setting(String),
    /// The destination or the own address could not be resolved or announced.
    #[error(transparent)]
    Arp(#[from] ArpError),
    /// A socket or thread could not be set up.
    #[error("cannot {action}")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}
