//! The metrics of all vtepd of a fabric, for a Prometheus outside their namespaces.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use fabric::{Fabric, Namespace, metrics};
use serde_json::json;
use study::RunError;

/// The namespace of each leaf.
type Leaves = BTreeMap<String, Namespace>;

/// Answers `/LEAF/metrics` on the loopback interface.
#[derive(Debug)]
pub struct Server {
    name: String,
    listener: TcpListener,
    leaves: Leaves,
}

impl Server {
    /// Listens on a port of the loopback interface, of which 0 is any free one.
    ///
    /// # Errors
    /// [`RunError`] if no leaf has a vtepd that answers, or the port cannot be had.
    pub fn open(fabric: &Fabric, port: u16) -> Result<Self, Box<dyn std::error::Error>> {
        let mut leaves = Leaves::new();
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
        // As tokio wants it.
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

    /// Answers until `end`, in a tokio runtime. Clients do not wait for each other.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn run(self, end: impl Future<Output = ()>) -> io::Result<()> {
        let app =
            Router::new().route("/{leaf}/metrics", get(answer)).with_state(self.leaves.into());
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        tokio::select! {
            served = axum::serve(listener, app) => served,
            () = end => Ok(()),
        }
    }
}

async fn answer(State(leaves): State<Arc<Leaves>>, Path(leaf): Path<String>) -> Response {
    let read = move || leaves.get(&leaf).map(metrics::read);
    match tokio::task::spawn_blocking(read).await {
        Ok(Some(Ok(text))) => ([(header::CONTENT_TYPE, metrics::FORMAT)], text).into_response(),
        Ok(None) => (StatusCode::NOT_FOUND, "the fabric has no such leaf\n").into_response(),
        Ok(Some(Err(error))) => (StatusCode::SERVICE_UNAVAILABLE, error + "\n").into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
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
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Duration;

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

    #[tokio::test]
    async fn clients_that_ask_for_nothing_delay_no_other() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let server = Server { name: "four".to_owned(), listener, leaves: Leaves::new() };
        let address = server.address();
        let asked = tokio::task::spawn_blocking(move || {
            let ask = |text: &str| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(text.as_bytes()).unwrap();
                stream
            };
            let slow: Vec<TcpStream> = (0..40).map(|_| ask("GET /leaf1/")).collect();
            let mut answer = String::new();
            let mut stream =
                ask("GET /leaf1/metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.read_to_string(&mut answer).unwrap();
            drop(slow);
            answer
        });
        let end = async { assert!(asked.await.unwrap().starts_with("HTTP/1.1 404 ")) };
        server.run(end).await.unwrap();
    }
}
