//! The listeners for metrics and the API. vtepd forwards without them, and tries again until they
//! can be opened.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use api::{Address, Listener};
use telemetry::Metrics;

use crate::handle::Handle;
use crate::holder::Holder;

/// Time between two attempts to open the API's socket.
pub(crate) const AGAIN: Duration = Duration::from_secs(5);

/// A listener, or a sentence that explains why there is none.
pub(crate) type Opened<T> = Result<T, String>;

/// Opens the listener for metrics.
pub(crate) fn metrics(address: SocketAddr) -> Opened<TcpListener> {
    telemetry::bind(address).map_err(|error| {
        let owner = if error.is_taken() { tcp_owner(address) } else { None };
        with_holder(&error.to_string(), owner)
    })
}

/// Opens the API's socket.
pub(crate) fn api(address: &Address) -> Opened<Listener> {
    Listener::open(address).map_err(|error| {
        let holder = match address {
            Address::Abstract(name) => Holder::of(name.as_bytes()).ok(),
            Address::Path(_) => None,
        };
        with_holder(&error.to_string(), holder.map(|holder| holder.to_string()))
    })
}

fn tcp_owner(address: SocketAddr) -> Option<String> {
    let uid = netlink::listener_owner(address).ok().flatten()?;
    Some(format!("a process of user {uid} (`ss -ltnp` names it)"))
}

fn with_holder(error: &str, holder: Option<String>) -> String {
    match holder {
        Some(holder) => format!("{error}. {holder} has it"),
        None => error.to_owned(),
    }
}

/// Serves metrics until the returned value is dropped.
///
/// # Errors
/// When the thread cannot be created.
pub(crate) fn serve_metrics(
    address: SocketAddr,
    opened: Opened<TcpListener>,
    handle: &Arc<Handle>,
) -> std::io::Result<Metrics> {
    let listener = handle.note(METRICS, opened);
    let (served, text) = (Arc::clone(handle), Arc::clone(handle));
    let owner = |own, peer| netlink::socket_owner(own, peer).ok().flatten();
    Metrics::serve(address, listener, move || served.served(METRICS), owner, move || text.render())
}

/// The API's listener, as soon as it can be opened. Without an address it waits forever.
pub(crate) async fn await_api(
    address: Option<Address>,
    opened: Option<Opened<Listener>>,
    handle: &Handle,
) -> Listener {
    let (Some(address), Some(opened)) = (address, opened) else {
        return std::future::pending().await;
    };
    if let Some(listener) = handle.note(API, opened) {
        return listener;
    }
    loop {
        tokio::time::sleep(AGAIN).await;
        if let Ok(listener) = Listener::open(&address) {
            handle.served(API);
            return listener;
        }
    }
}

/// Names of the services in log lines and warnings.
const METRICS: &str = "metrics";
const API: &str = "the API";
