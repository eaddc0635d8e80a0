//! The API: gRPC over a Unix socket, with health and reflection.
//!
//! - [`connection`]: a connection and the process that made it
//! - [`service`]: one method for each request
//! - [`capture`]: captures packets; [`captured`] says what was decided about them
//! - [`show`]: converts forwarding tables to messages
//! - [`status`]: converts status and counters to messages
//! - [`events`]: converts events to messages
//! - [`explain`]: explains what happens to a given frame; [`flow`] builds the frame of a flow
//! - [`pinned`]: converts known paths and placed queue pairs; [`placement`] explains those of a flow

mod capture;
mod captured;
mod connection;
mod events;
mod explain;
mod flow;
mod pinned;
mod placement;
mod service;
mod show;
mod status;

use std::sync::Arc;

use api::v1::vtepd_server::VtepdServer;
use api::{Address, Listener};
use control::{Journal, Request};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tonic::transport::Server;

use crate::daemon::Failure;
use crate::handle::Handle;
use crate::listeners::{self, Opened};
use connection::Connection;
use service::Service;

/// Answers requests until the future is dropped. Without an address it waits forever. The health
/// service reports SERVING once frames are redirected.
///
/// # Errors
/// When the server fails for good.
pub(crate) async fn serve(
    address: Option<Address>,
    opened: Option<Opened<Listener>>,
    handle: Arc<Handle>,
    requests: mpsc::Sender<Request>,
    journal: Journal,
) -> Result<(), Failure> {
    let listener = listeners::await_api(address, opened, &handle).await;
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_not_serving::<VtepdServer<Service>>().await;
    reporter.set_service_status("", tonic_health::ServingStatus::NotServing).await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(api::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let ready = {
        let handle = Arc::clone(&handle);
        async move {
            let mut status = handle.status.clone();
            // The first publication fills the kill switch. An error means that the daemon ends.
            while !handle.is_ready() {
                if status.changed().await.is_err() {
                    return;
                }
            }
            reporter.set_serving::<VtepdServer<Service>>().await;
            reporter.set_service_status("", tonic_health::ServingStatus::Serving).await;
        }
    };
    let server = Server::builder()
        .add_service(health)
        .add_service(reflection)
        .add_service(VtepdServer::new(Service::new(handle, requests, journal)))
        .serve_with_incoming(listener.map(|stream| Connection::new(stream?)));
    let (served, ()) = tokio::join!(server, ready);
    Ok(served?)
}
