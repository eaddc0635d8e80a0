//! The error of a verification.

use fabric::counters::CountersError;
use fabric::deployed::DeployedError;
use fabric::netns::NetnsError;
use fabric::progress::Interrupted;
use traffic::roce::RoceError;

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
