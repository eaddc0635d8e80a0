//! The metrics of the vtepd that runs in a namespace.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::netns::Namespace;

/// The address of vtepd's metrics endpoint inside its namespace.
pub const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9472);

/// The content type of the metrics.
pub const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
    Accept: application/openmetrics-text\r\n\r\n";

/// On a busy machine, the answer has taken more than two seconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the metrics in Prometheus' text format.
///
/// # Errors
/// A message, if vtepd does not answer.
pub fn read(namespace: &Namespace) -> Result<String, String> {
    let get = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&ADDRESS, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(REQUEST)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        // vtepd answers in one piece.
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    };
    namespace.enter(get).map_err(|error| error.to_string())?.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => format!("no metrics: vtepd has not answered for {TIMEOUT:?}"),
        ErrorKind::ConnectionRefused => format!("no vtepd listens at {ADDRESS}"),
        _ => format!("no metrics: {error}"),
    })
}
