//! What the vtepd of a leaf answers.

use std::time::Duration;

use api::Address;
use api::v1::{
    GetCountersRequest, GetStatusRequest, ListPathsRequest, ListQueuePairsRequest, QueuePair,
    SprayedPath, WatchEventsRequest,
};
use fabric::abstract_socket::Peer;
use fabric::netns::Namespace;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tonic::{Code, Status};

/// The time between two readings.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long vtepd may take to answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The most queue pairs of a leaf that are shown.
const MOST_PAIRS: usize = 4096;

/// A reading of a leaf.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub(crate) leaf: String,
    /// State of the leaf.
    pub(crate) state: Value,
    /// Queue pairs by a name of their own.
    pub(crate) pairs: Map<String, Value>,
    /// New events.
    pub(crate) events: Vec<Value>,
}

/// Any failure to get an answer. It is shown as a leaf without vtepd.
#[derive(Debug, thiserror::Error)]
enum LeafError {
    #[error(transparent)]
    Netns(#[from] fabric::netns::NetnsError),
    #[error(transparent)]
    Connect(#[from] api::ConnectError),
    #[error("{0}")]
    Answer(String),
    #[error("vtepd did not answer within {TIMEOUT:?}")]
    Silent(#[from] tokio::time::error::Elapsed),
    #[error("the thread that entered the namespace ended")]
    Thread(#[from] tokio::task::JoinError),
}

/// Reads a leaf once a second and sends what it reads, until nobody receives it.
pub(crate) async fn follow(leaf: String, namespace: String, readings: mpsc::Sender<Reading>) {
    let mut vtepd = None;
    // None: events from now on.
    let mut after = None;
    loop {
        let reading = match read(&leaf, &namespace, &mut vtepd, &mut after).await {
            Ok(reading) => reading,
            Err(error) => {
                (vtepd, after) = (None, None);
                let state = json!({"vtepd": false, "why": error.to_string()});
                Reading { leaf: leaf.clone(), state, ..Reading::default() }
            }
        };
        if readings.send(reading).await.is_err() {
            return;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// A connection, and the process at its other end, if it is visible from here.
type Connected = (api::Client, Option<i32>);

async fn connect(namespace: &str) -> Result<Connected, LeafError> {
    let (name, handle) = (namespace.to_owned(), tokio::runtime::Handle::current());
    // Sockets that are opened in the namespace stay there.
    let connected = tokio::task::spawn_blocking(move || {
        let namespace = Namespace::open(name)?;
        let address = Address::default();
        let connected = namespace.enter(|| {
            let connect = async { tokio::time::timeout(TIMEOUT, api::connect(&address)).await };
            let client = handle.block_on(connect)??;
            // vtepd tells its id in a PID namespace that may be its own.
            let peer = match &address {
                Address::Abstract(name) => Peer::listening(name).ok(),
                Address::Path(_) => None,
            };
            Ok((client, peer.and_then(Peer::pid)))
        });
        connected?
    });
    connected.await?
}

fn answer(status: impl std::fmt::Display) -> LeafError {
    LeafError::Answer(status.to_string())
}

async fn read(
    leaf: &str,
    namespace: &str,
    known: &mut Option<Connected>,
    after: &mut Option<u64>,
) -> Result<Reading, LeafError> {
    let mut vtepd = match known.take() {
        Some(known) => known,
        None => connect(namespace).await?,
    };
    let reading = tokio::time::timeout(TIMEOUT, ask(leaf, &mut vtepd, after)).await??;
    *known = Some(vtepd);
    Ok(reading)
}

async fn ask(
    leaf: &str,
    (vtepd, pid): &mut Connected,
    after: &mut Option<u64>,
) -> Result<Reading, LeafError> {
    let status = vtepd.get_status(GetStatusRequest {}).await.map_err(answer)?.into_inner();
    let counters = vtepd.get_counters(GetCountersRequest {}).await.map_err(answer)?.into_inner();
    let mut vnis = Map::new();
    for vni in status.taken.iter().chain(&status.left) {
        let policy = vni.taken.as_ref().and_then(|taken| taken.policy.as_ref());
        let kernel = vni.chosen_port.as_ref().and_then(|port| port.policy.as_ref());
        let policy = policy.or(kernel).map_or("", |policy| policy.name.as_str());
        vnis.insert(vni.vni.to_string(), json!({"datapath": vni.datapath, "policy": policy}));
    }
    let drops = counters.drops.iter().filter(|drop| drop.frames > 0);
    let drops: Map<String, Value> =
        drops.map(|drop| (drop.reason.clone(), json!(drop.frames))).collect();
    let sources: Map<String, Value> =
        status.sources.iter().map(|source| (source.name.clone(), json!(source.state))).collect();
    let mut state = json!({
        "vtepd": true, "pid": pid, "vnis": vnis, "sources": sources, "drops": drops,
        "dropped": counters.dropped, "sent": counters.sent,
    });
    let pairs = match pairs(leaf, vtepd).await {
        // Without probing it places none.
        Err(error) if error.code() == Code::FailedPrecondition => Map::new(),
        pairs => pairs.map_err(answer)?,
    };
    if pairs.values().any(|pair| pair.get("paths").is_some()) {
        let sprayed = sprayed(vtepd).await.map_err(answer)?;
        state.as_object_mut().map(|state| state.insert("sprayed".to_owned(), sprayed));
    }
    let events = events(leaf, vtepd, after).await?;
    Ok(Reading { leaf: leaf.to_owned(), state, pairs, events })
}

async fn pairs(leaf: &str, vtepd: &mut api::Client) -> Result<Map<String, Value>, Status> {
    let mut pairs = Map::new();
    let mut listed = vtepd.list_queue_pairs(ListQueuePairsRequest::default()).await?.into_inner();
    while let Some(pair) = listed.message().await? {
        if pairs.len() < MOST_PAIRS {
            let (name, pair) = shown(leaf, &pair);
            pairs.insert(name, pair);
        }
    }
    Ok(pairs)
}

/// The paths over which packets are sprayed, by VTEP: uplink, source port, and packets that were sent,
/// arrived with an ECN mark, and were lost; how long a packet would wait in µs, null if the path is
/// down, and whether packets pass it over.
async fn sprayed(vtepd: &mut api::Client) -> Result<Value, Status> {
    let mut all = Map::new();
    let mut listed = vtepd.list_paths(ListPathsRequest::default()).await?.into_inner();
    while let Some(paths) = listed.message().await? {
        let of = |path: SprayedPath| {
            json!([
                path.uplink,
                path.source_port,
                path.sent,
                path.marked,
                path.lost,
                path.wait_us,
                path.passed_over,
            ])
        };
        all.insert(paths.vtep, paths.sprayed.into_iter().map(of).collect());
    }
    Ok(Value::Object(all))
}

fn shown(leaf: &str, pair: &QueuePair) -> (String, Value) {
    let name =
        format!("{leaf} {} {} {} {:#x}", pair.vni, pair.source, pair.destination, pair.queue_pair);
    let mut value = json!({
        "leaf": leaf, "vni": pair.vni, "source": pair.source, "destination": pair.destination,
        "qp": pair.queue_pair, "uplink": pair.uplink, "port": pair.source_port,
        "state": pair.state, "routers": pair.routers, "rate": pair.kilobytes_per_second * 8000,
        "moves": pair.moves, "gaps": pair.psn_gaps, "same": pair.same_links,
    });
    if let (Some(partner), Some(fields)) = (pair.partner, value.as_object_mut()) {
        fields.insert("partner".to_owned(), json!(partner));
    }
    if let Some(fields) = value.as_object_mut().filter(|_| pair.paths > 0) {
        fields.insert("paths".to_owned(), json!(pair.paths));
        fields.insert("vtep".to_owned(), json!(pair.vtep));
    }
    (name, value)
}

async fn events(
    leaf: &str,
    vtepd: &mut api::Client,
    after: &mut Option<u64>,
) -> Result<Vec<Value>, LeafError> {
    let request = WatchEventsRequest { after: after.unwrap_or(0), ..Default::default() };
    let mut stream = vtepd.watch_events(request).await.map_err(answer)?.into_inner();
    let mut events = Vec::new();
    while let Some(event) = stream.message().await.map_err(answer)? {
        *after = Some(event.sequence.max(after.unwrap_or(0)));
        events.push(json!({
            "leaf": leaf, "time": event.time, "kind": event.kind, "text": event.text,
        }));
    }
    after.get_or_insert(0);
    Ok(events)
}
