//! Requests to the vtepd of a network namespace.

use api::{Address, Client, ConnectError};
use fabric::Namespace;
use fabric::netns::NetnsError;

/// vtepd did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The namespace cannot be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The runtime of the client cannot be started.
    #[error("cannot start a client of vtepd")]
    Runtime(#[source] std::io::Error),
    /// vtepd cannot be connected to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// vtepd refuses the request.
    #[error("{0}")]
    Refused(String),
}

/// Sends a request to the vtepd that listens at its default socket in this namespace, and waits for
/// the answer.
///
/// # Errors
/// [`AskError`].
pub fn ask<T: Send>(
    namespace: &Namespace,
    request: impl AsyncFnOnce(Client) -> Result<T, tonic::Status> + Send,
) -> Result<T, AskError> {
    namespace.enter(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(AskError::Runtime)?.block_on(async {
            let client = api::connect(&Address::default()).await?;
            request(client).await.map_err(|status| AskError::Refused(status.message().to_owned()))
        })
    })?
}
