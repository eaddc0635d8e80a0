//! The metrics of all vtepd of a fabric, for a Prometheus outside their namespaces.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fabric::{Fabric, Namespace, metrics};
use serde_json::json;
use study::RunError;

/// How often an interruption is looked for.
const LOOK: Duration = Duration::from_millis(100);
/// How long a client may take to ask, and how many bytes it may send.
const CLIENT: Duration = Duration::from_secs(5);
const MOST_ASKED: u64 = 8192;
/// The most clients at once; the connections of others are closed.
const MOST_CLIENTS: usize = 16;

/// Answers `/LEAF/metrics` on the loopback interface.
#[derive(Debug)]
pub struct Server {
    name: String,
    listener: TcpListener,
    leaves: BTreeMap<String, Namespace>,
}

impl Server {
    /// Listens on a port of the loopback interface, of which 0 is any free one.
    ///
    /// # Errors
    /// [`RunError`] if no leaf has a vtepd that answers, or the port cannot be had.
    pub fn open(fabric: &Fabric, port: u16) -> Result<Self, Box<dyn std::error::Error>> {
        let mut leaves = BTreeMap::new();
        for leaf in study::leaves::taken_over(fabric)? {
            let namespace = fabric.deployed().namespace(&leaf).map_err(RunError::from)?;
            leaves.insert(leaf, namespace);
        }
        if leaves.is_empty() {
            return Err(
                "no vtepd answers on a leaf of this fabric: 'lab policy qp-hash' starts it".into(),
            );
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        Ok(Self { name: fabric.name().to_string(), listener, leaves })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or_else(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    /// The discovery file (`file_sd_config` of Prometheus).
    ///
    /// # Errors
    /// Never: names are text.
    pub fn targets(&self) -> serde_json::Result<String> {
        let leaves = self.leaves.keys().map(String::as_str);
        serde_json::to_string_pretty(&targets(&self.name, self.address(), leaves))
    }

    /// Answers until `stop` is set.
    ///
    /// # Errors
    /// As accept(2).
    pub fn run(&self, stop: &AtomicBool) -> io::Result<()> {
        let clients = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            while !stop.load(Ordering::Relaxed) {
                match self.listener.accept() {
                    Ok(_) if clients.load(Ordering::Relaxed) >= MOST_CLIENTS => {}
                    Ok((stream, _)) => {
                        clients.fetch_add(1, Ordering::Relaxed);
                        scope.spawn(|| {
                            // A client that goes away is no error.
                            let _ = self.answer(stream);
                            clients.fetch_sub(1, Ordering::Relaxed);
                        });
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOOK),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(CLIENT))?;
        stream.set_write_timeout(Some(CLIENT))?;
        let mut line = String::new();
        let mut reader = BufReader::new(stream.try_clone()?.take(MOST_ASKED));
        reader.read_line(&mut line)?;
        // What is not read would reset the connection before the client has the answer.
        let mut header = String::new();
        while reader.read_line(&mut header)? > 2 {
            header.clear();
        }
        let namespace = leaf(&line).and_then(|leaf| self.leaves.get(leaf));
        let answer = match namespace.map(metrics::read) {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => refusal("503 Service Unavailable", &error),
            None => refusal("404 Not Found", "/LEAF/metrics has the metrics of a leaf"),
        };
        stream.write_all(answer.as_bytes())
    }
}

/// The leaf of a request's first line.
fn leaf(line: &str) -> Option<&str> {
    line.strip_prefix("GET /")?.split_once("/metrics ").map(|(leaf, _)| leaf)
}

fn refusal(status: &str, text: &str) -> String {
    let length = text.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}\n"
    )
}

fn targets<'a>(
    fabric: &str,
    address: SocketAddr,
    leaves: impl Iterator<Item = &'a str>,
) -> serde_json::Value {
    let target = |leaf: &str| {
        let path = format!("/{leaf}/metrics");
        let labels = json!({"__metrics_path__": path, "instance": leaf, "topology": fabric});
        json!({"targets": [address.to_string()], "labels": labels})
    };
    leaves.map(target).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_leaf_is_a_target_with_a_path_of_its_own() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9000));
        let found = targets("four", address, ["leaf1", "leaf2"].into_iter());
        assert_eq!(found[1]["targets"], json!(["127.0.0.1:9000"]));
        let labels = json!({
            "__metrics_path__": "/leaf2/metrics", "instance": "leaf2", "topology": "four",
        });
        assert_eq!((&found[1]["labels"], found.as_array().unwrap().len()), (&labels, 2));
    }

    #[test]
    fn the_path_of_a_request_names_the_leaf() {
        assert_eq!(leaf("GET /leaf1/metrics HTTP/1.1\r\n"), Some("leaf1"));
        for other in ["GET /metrics HTTP/1.1", "POST /leaf1/metrics HTTP/1.1", "GET /leaf1/", ""] {
            assert_eq!(leaf(other), None, "{other}");
        }
        assert!(
            refusal("404 Not Found", "no")
                .ends_with("Content-Length: 3\r\nConnection: close\r\n\r\nno\n")
        );
    }
}
