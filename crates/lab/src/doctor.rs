//! `lab doctor`: what a machine and a fabric can and cannot do for an experiment.
//!
//! What is read from the system is in `machine` and `routers`; what follows from it is decided by
//! functions without access to the system.

mod machine;
mod routers;

use fabric::deployed::{Deployed, DeployedError};
use serde::Serialize;

pub use machine::{abilities, conditions, neighbours_beyond};
pub(crate) use routers::fpm;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As experiments need it.
    Ok,
    /// Experiments run, but some figures mean less, or some features are missing.
    Limit,
    /// Experiments fail, or measure something else than they say.
    Fault,
}

/// What was looked at, and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `machine`, or the node.
    pub subject: String,
    /// What was looked at.
    pub check: &'static str,
    /// How much it matters.
    pub state: State,
    /// What was found and, unless it is [`State::Ok`], what follows from it.
    pub text: String,
    /// The command or the change that mends it; empty if there is none.
    pub remedy: String,
}

impl Finding {
    fn ok(subject: &str, check: &'static str, text: impl Into<String>) -> Self {
        Self::new(subject, check, State::Ok, text.into(), "")
    }

    fn limit(subject: &str, check: &'static str, text: impl Into<String>, remedy: &str) -> Self {
        Self::new(subject, check, State::Limit, text.into(), remedy)
    }

    fn fault(subject: &str, check: &'static str, text: impl Into<String>, remedy: &str) -> Self {
        Self::new(subject, check, State::Fault, text.into(), remedy)
    }

    fn new(subject: &str, check: &'static str, state: State, text: String, remedy: &str) -> Self {
        Self { subject: subject.to_owned(), check, state, text, remedy: remedy.to_owned() }
    }
}

/// What the routers of a fabric that is up can do for an experiment. IPv6 routes and VTEPs are not
/// looked at.
///
/// # Errors
/// If a namespace is gone, or its interfaces and routes cannot be read.
pub fn fabric(deployed: &Deployed) -> Result<Vec<Finding>, DeployedError> {
    let routers = routers::read(deployed)?;
    Ok(routers::judge(&routers))
}
