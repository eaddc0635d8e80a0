//! The server: who may talk to it, and what it answers.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::action::Action;
use crate::door::{Caller, Door};
use crate::hub::Hub;
use crate::jobs::{self, Jobs};
use crate::model::Fabric;
use crate::reader;
use crate::stage::{Shown, Stage};
use crate::watched::{Look, Watched};

/// The format of a file that a page has saved, or that it can show.
pub const FORMAT: &str = "lab-web-1";
/// The most pages at once.
const PAGES: usize = 16;
/// The least time between two changes for a page.
const INTERVAL: Duration = Duration::from_millis(100);
/// The largest request in bytes.
const REQUEST: usize = 16 << 10;
/// How long a request waits for its command. A longer one goes on, unless it only reads.
const WAIT: Duration = Duration::from_secs(20);

/// Nothing may be loaded from elsewhere, and no other page may show this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The files of the page.
const FILES: [(&str, &str, &str); 10] = [
    ("", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("style.css", "text/css; charset=utf-8", include_str!("../page/style.css")),
    ("main.js", "text/javascript; charset=utf-8", include_str!("../page/main.js")),
    ("map.js", "text/javascript; charset=utf-8", include_str!("../page/map.js")),
    ("tables.js", "text/javascript; charset=utf-8", include_str!("../page/tables.js")),
    ("actions.js", "text/javascript; charset=utf-8", include_str!("../page/actions.js")),
    ("chart.js", "text/javascript; charset=utf-8", include_str!("../page/chart.js")),
    ("pauses.js", "text/javascript; charset=utf-8", include_str!("../page/pauses.js")),
    ("results.js", "text/javascript; charset=utf-8", include_str!("../page/results.js")),
    ("state.js", "text/javascript; charset=utf-8", include_str!("../page/state.js")),
];

/// Whether pages may change the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// They may.
    Full,
    /// They only show it.
    ReadOnly,
}

/// The server could not be started, or has failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port is taken, for example.
    #[error("cannot listen on {address}: {source}; name another port with --port")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not one that the page saves.
    #[error("this is no file that the page of 'lab web' has saved (\"format\": \"lab-web-1\")")]
    Replay,
    /// The system has no random numbers.
    #[error("no random numbers for the address: {0}")]
    Random(#[from] getrandom::Error),
    /// A system call failed.
    #[error("the server failed: {0}")]
    System(#[from] std::io::Error),
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    shown: watch::Sender<Shown>,
    access: Access,
    token: String,
    address: SocketAddr,
    hub: Arc<Hub>,
    jobs: Jobs,
    watched: Arc<Watched>,
    /// The file that is shown instead of a fabric.
    replay: Option<Value>,
}

impl Server {
    /// Listens on the loopback interface; port 0 is any that is free. It must be called in a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn bind(fabric: Fabric, access: Access, port: u16) -> Result<Self, ServeError> {
        let mut secret = [0_u8; 16];
        getrandom::fill(&mut secret)?;
        let token = secret.iter().fold(String::new(), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| ServeError::Listen { address, source })?;
        let address = listener.local_addr()?;
        let hub = Arc::new(Hub::new());
        let jobs = Jobs::new(Arc::clone(&hub));
        let shown = watch::Sender::new((0, Arc::new(fabric)));
        let (watched, replay) = (Arc::default(), None);
        let shared = Shared { shown, access, token, address, hub, jobs, watched, replay };
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    /// Listens as [`Server::bind`] does, to show a file that a page has saved.
    ///
    /// # Errors
    /// [`ServeError`]; [`ServeError::Replay`] if the file is of another kind.
    pub async fn replay(file: Value, port: u16) -> Result<Self, ServeError> {
        if file.get("format").and_then(Value::as_str) != Some(FORMAT) {
            return Err(ServeError::Replay);
        }
        let mut server = Self::bind(Fabric::default(), Access::ReadOnly, port).await?;
        if let Some(shared) = Arc::get_mut(&mut server.shared) {
            shared.replay = Some(file);
        }
        Ok(server)
    }

    /// What is shown, for a program that changes it while the server runs.
    #[must_use]
    pub fn stage(&self) -> Stage {
        Stage::new(self.shared.shown.clone(), Arc::clone(&self.shared.hub))
    }

    /// The address of the page, with its secret.
    #[must_use]
    pub fn address(&self) -> String {
        format!("http://{}/{}/", self.shared.address, self.shared.token)
    }

    /// Serves until `end`. Commands that are running are ended then.
    ///
    /// # Errors
    /// [`ServeError::System`].
    pub async fn run(self, end: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let Self { listener, shared } = self;
        let app = Router::new()
            .route("/{token}/", get(page))
            .route("/{token}/fabric", get(fabric))
            .route("/{token}/state/{page}", get(state))
            .route("/{token}/history", get(history))
            .route("/{token}/look", post(look))
            .route("/{token}/run", post(run))
            .route("/{token}/command", post(command))
            .route("/{token}/stop", post(stop))
            .route("/{token}/{file}", get(file))
            .layer(DefaultBodyLimit::max(REQUEST))
            .layer(middleware::from_fn_with_state(Arc::clone(&shared), guard))
            .with_state(Arc::clone(&shared))
            .into_make_service_with_connect_info::<Caller>();
        let (hub, watched) = (Arc::clone(&shared.hub), Arc::clone(&shared.watched));
        let reads = reader::run(shared.shown.subscribe(), hub, watched);
        let served = tokio::select! {
            served = axum::serve(Door::new(listener), app) => served,
            () = reads => Ok(()),
            () = end => Ok(()),
        };
        shared.jobs.stop_all().await;
        Ok(served?)
    }
}

/// Refuses who does not know the secret, other names of this machine (DNS rebinding) and pages of
/// other origins.
async fn guard(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let token = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    let allowed = same(token, &shared.token) && shared.is_own(request.method(), request.headers());
    let mut response = if allowed {
        caller.has_shown_secret();
        next.run(request).await
    } else {
        (StatusCode::FORBIDDEN, "open the address that lab printed\n").into_response()
    };
    let headers = response.headers_mut();
    let fixed: [(HeaderName, &'static str); 6] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, axum::http::HeaderValue::from_static(value));
    }
    response
}

/// Compares all bytes, so that the time does not tell how many are right.
fn same(given: &str, secret: &str) -> bool {
    let differences = given.bytes().zip(secret.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == secret.len() && differences == 0
}

impl Shared {
    fn is_own(&self, method: &Method, headers: &HeaderMap) -> bool {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let port = self.address.port();
        let names = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
        let Some(host) = text(header::HOST).filter(|host| names.iter().any(|name| name == host))
        else {
            return false;
        };
        match headers.get(header::ORIGIN) {
            Some(origin) => origin.as_bytes() == format!("http://{host}").as_bytes(),
            None => method == Method::GET,
        }
    }
}

async fn page() -> Response {
    file(Path((String::new(), String::new()))).await
}

async fn file(Path((_, name)): Path<(String, String)>) -> Response {
    match FILES.iter().find(|(file, ..)| *file == name) {
        Some((_, kind, text)) => ([(header::CONTENT_TYPE, *kind)], *text).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn answer(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

async fn fabric(State(shared): State<Arc<Shared>>) -> Response {
    let read_only = shared.access == Access::ReadOnly;
    if let Some(file) = &shared.replay {
        let answered = json!({"fabric": file.get("fabric"), "readOnly": true, "replay": file});
        return answer(StatusCode::OK, &answered);
    }
    let (number, fabric) = shared.shown.borrow().clone();
    answer(StatusCode::OK, &json!({"fabric": *fabric, "number": number, "readOnly": read_only}))
}

/// The last ten minutes, for a page that opens.
async fn history(State(shared): State<Arc<Shared>>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], shared.hub.history()).into_response()
}

/// Server-sent events: the state, then changes. A page chooses a number for itself.
async fn state(
    State(shared): State<Arc<Shared>>,
    Path((_, number)): Path<(String, u64)>,
) -> Response {
    if shared.hub.pages() >= PAGES {
        return answer(StatusCode::TOO_MANY_REQUESTS, &json!({"error": "too many pages are open"}));
    }
    // Both are dropped when the page closes.
    let page = (shared.hub.subscribe(), shared.watched.open(number));
    let changes = stream::unfold((page, false), |((mut page, viewer), sent)| async move {
        if sent {
            tokio::time::sleep(INTERVAL).await;
        }
        let change = page.next().await?;
        Some((Ok::<_, Infallible>(change), ((page, viewer), true)))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(changes)).into_response()
}

fn refused(status: StatusCode, error: &dyn std::fmt::Display) -> Response {
    answer(status, &json!({"error": error.to_string()}))
}

/// The action of a request, and its command; or the answer that refuses it.
fn words(shared: &Shared, body: &Bytes) -> Result<(Action, Vec<String>), Response> {
    let bad = |error: &dyn std::fmt::Display| refused(StatusCode::BAD_REQUEST, error);
    let action: Action = serde_json::from_slice(body).map_err(|error| bad(&error))?;
    if shared.access == Access::ReadOnly && !action.only_reads() {
        return Err(refused(StatusCode::FORBIDDEN, &"the page was started with --read-only"));
    }
    let leaves = shared.hub.part("leaves");
    let (_, fabric) = shared.shown.borrow().clone();
    let words = action.command(&fabric, leaves.as_deref()).map_err(|error| bad(&error))?;
    Ok((action, words))
}

/// The command of an action, for a shell.
async fn command(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    match words(&shared, &body) {
        Ok((_, words)) => answer(StatusCode::OK, &json!({"command": jobs::text(&words)})),
        Err(refusal) => refusal,
    }
}

async fn run(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let (action, words) = match words(&shared, &body) {
        Ok(both) => both,
        Err(refusal) => return refusal,
    };
    let ended = |command: &str, (ok, output): (bool, String)| json!({"command": command, "ok": ok, "output": output, "running": false});
    if action.only_reads() {
        return match tokio::time::timeout(WAIT, shared.jobs.read(&words)).await {
            Ok(Ok((command, outcome))) => answer(StatusCode::OK, &ended(&command, outcome)),
            Ok(Err(error)) => refused(StatusCode::SERVICE_UNAVAILABLE, &error),
            Err(_) => {
                let text = format!("no answer in {} s: ask again", WAIT.as_secs());
                refused(StatusCode::GATEWAY_TIMEOUT, &text)
            }
        };
    }
    let (command, mut task) = match shared.jobs.start(&words) {
        Ok(started) => started,
        Err(error) => return refused(StatusCode::SERVICE_UNAVAILABLE, &error),
    };
    match tokio::time::timeout(WAIT, &mut task).await {
        Ok(Ok(outcome)) => answer(StatusCode::OK, &ended(&command, outcome)),
        _ => answer(StatusCode::OK, &json!({"command": command, "running": true})),
    }
}

#[derive(Deserialize)]
struct Looks {
    page: u64,
    at: Option<Look>,
}

/// A page looks at a queue pair, or at none. Nothing else is counted.
async fn look(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let looks: Looks = match serde_json::from_slice(&body) {
        Ok(looks) => looks,
        Err(error) => return refused(StatusCode::BAD_REQUEST, &error),
    };
    if shared.watched.look(looks.page, looks.at) {
        answer(StatusCode::OK, &json!({}))
    } else {
        refused(StatusCode::CONFLICT, &"the page is not open")
    }
}

#[derive(Deserialize)]
struct Stop {
    job: u64,
}

async fn stop(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let Ok(Stop { job }) = serde_json::from_slice(&body) else {
        return answer(StatusCode::BAD_REQUEST, &json!({"error": "name a job"}));
    };
    shared.jobs.stop(job);
    answer(StatusCode::OK, &json!({}))
}

#[cfg(test)]
mod tests;
