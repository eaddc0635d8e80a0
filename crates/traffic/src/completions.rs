//! How long operations took, for whoever shows a fabric live.
//!
//! A program of the lab tells of each operation that is complete ([`Teller`]), by a datagram to every
//! socket in the fabric's [folder](BASE). A live page has such a socket while it is open. Neither
//! waits for the other: without a socket nothing is sent, and what a full socket does not take is
//! lost.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use experiment::units::Name;
use serde::{Deserialize, Serialize};

/// A folder for each fabric, with the sockets of those that listen. Only root can use it.
pub const BASE: &str = "/run/vtepd-lab-web";

/// What was completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An iteration of a collective operation, or of a program.
    Iteration,
    /// A stream, or the requests of a connection.
    Stream,
}

/// An operation that is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// What it is.
    pub kind: Kind,
    /// What it is one of, for people.
    pub series: String,
    /// When it ended, in milliseconds since 1970 (UTC).
    pub ended: u64,
    /// How long it took, in nanoseconds.
    pub nanoseconds: u64,
}

/// Tells how long operations in a fabric took.
#[derive(Debug)]
pub struct Teller {
    folder: PathBuf,
    socket: io::Result<UnixDatagram>,
}

impl Teller {
    /// For operations in this fabric.
    #[must_use]
    pub fn of(fabric: &Name) -> Self {
        Self::within(Path::new(BASE), fabric)
    }

    /// The same below another folder than [`BASE`].
    #[must_use]
    pub fn within(base: &Path, fabric: &Name) -> Self {
        let socket = UnixDatagram::unbound();
        let socket = socket.and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        Self { folder: base.join(fabric), socket }
    }

    /// Tells all that listen of an operation that ends now.
    pub fn tell(&self, kind: Kind, series: &str, took: Duration) {
        // Nobody may listen, and traffic goes on without.
        let (Ok(socket), Ok(entries)) = (&self.socket, fs::read_dir(&self.folder)) else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let completion = Completion {
            kind,
            series: series.to_owned(),
            ended: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            nanoseconds: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
        };
        let Ok(text) = serde_json::to_vec(&completion) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let sent = socket.send_to(&text, &path);
            if sent.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
                // Who listened was killed.
                let _ = fs::remove_file(path);
            }
        }
    }
}
