//! The error of a verification.

use crate::deployed::DeployedError;
use crate::progress::Interrupted;
use crate::roce::RoceError;
use fabric::counters::CountersError;
use fabric::netns::NetnsError;

/// The verification could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The overlay could not be read.
    #[error(transparent)]
    Deployed(#[from] DeployedError),
    /// The user interrupted the command.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// An operation on a namespace failed.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The traffic could not be sent or received.
    #[error(transparent)]
    Roce(#[from] RoceError),
    /// The interface counters could not be read.
    #[error(transparent)]
    Counters(#[from] CountersError),
    /// There is nothing to verify.
    #[error("{0}")]
    Nothing(String),
}
