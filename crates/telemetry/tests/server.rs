//! The metrics endpoint with clients that send nothing or too much.

#![cfg(test)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use telemetry::{Metrics, bind};

const TIMEOUT: Duration = Duration::from_secs(20);

fn serve(
    address: SocketAddr,
    listener: Option<TcpListener>,
    served: impl FnOnce() + Send + 'static,
) -> Metrics {
    let text = || Ok("text\n".to_owned());
    Metrics::serve(address, listener, served, |_, _| Some(1000), text).unwrap()
}

fn start() -> (Metrics, SocketAddr) {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    (serve(address, Some(listener), || {}), address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Whether the server closes the connection within [`TIMEOUT`].
fn has_ended(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: leaf\r\n\r\n";

/// Number of open file descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn requests_are_answered() {
    let (metrics, address) = start();
    let answer = ask(address, GET);
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\ntext\n"),
        "{answer}"
    );
    assert!(answer.contains("Content-Type: text/plain; version=0.0.4"), "{answer}");
    let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2";
    let answer = ask(address, &GET.replace("Host: leaf", &format!("Host: leaf\r\n{accept}")));
    assert!(
        answer.contains("Content-Type: application/openmetrics-text; version=1.0.0"),
        "{answer}"
    );
    assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    let head = ask(address, "HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(head.contains("Content-Length: 5\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    drop(metrics);
    assert!(TcpStream::connect(address).is_err(), "the address is free");
}

#[test]
fn silent_connections_keep_nobody_waiting_and_end() {
    let (_metrics, address) = start();
    let before = descriptors();
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..300 {
        silent.push(connect(address));
    }
    assert!(ask(address, GET).ends_with("text\n"));
    let mut last = silent.pop().unwrap();
    last.set_nonblocking(true).unwrap();
    let waits = last.read(&mut [0]).unwrap_err();
    assert_eq!(waits.kind(), ErrorKind::WouldBlock, "answered while others are silent");
    last.set_nonblocking(false).unwrap();
    // The 300 clients have a descriptor each; the server has few.
    assert!(descriptors() < before + 300 + 80, "{} more descriptors", descriptors() - before);
    // The server closes the newest connection as well, after some seconds.
    assert!(has_ended(&mut last));
    // A request that never ends.
    let mut endless = connect(address);
    let junk = vec![b'x'; 100_000];
    let _ = endless.write_all(&junk);
    assert!(has_ended(&mut endless));
    assert!(ask(address, GET).ends_with("text\n"));
}

#[test]
fn an_address_that_another_process_has_is_tried_again() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let error = bind(address).unwrap_err();
    assert!(error.is_taken() && error.to_string().contains("--metrics-listen"), "{error}");
    let (told, served) = mpsc::channel();
    let _metrics = serve(address, None, move || told.send(()).unwrap());
    drop(other);
    served.recv_timeout(TIMEOUT).unwrap();
    assert!(ask(address, GET).ends_with("text\n"));
}
