//! `GET /metrics`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

/// The metrics endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("metrics cannot be served on {address}: {source}; choose another address with --metrics-listen")]
pub struct ServeError {
    address: SocketAddr,
    source: io::Error,
}

/// Opens the endpoint, in the calling thread's namespace.
///
/// # Errors
/// When the address is taken or not the namespace's own.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError { address, source })
}

/// Answers requests until the future is dropped; `text` makes the answer.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    text: impl Fn() -> Result<String, std::fmt::Error> + Send + Sync + 'static,
) -> io::Result<()> {
    let text = Arc::new(text);
    let metrics = move || {
        let text = Arc::clone(&text);
        async move {
            match text() {
                Ok(text) => {
                    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                    ([(header::CONTENT_TYPE, kind)], text).into_response()
                }
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            }
        }
    };
    axum::serve(listener, Router::new().route("/metrics", get(metrics))).await
}
