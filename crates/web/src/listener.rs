//! Hears how long operations in a fabric took, from the programs of the lab that perform them.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use experiment::units::Name;
use tokio::net::UnixDatagram;
use traffic::completions::{BASE, Completion};

/// The most bytes of a datagram.
const MOST: usize = 4096;
/// Attempts to make the folder and a socket in it, while another process removes the folder.
const ATTEMPTS: usize = 10;

/// A socket to which programs tell. Dropping it removes the socket.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Listener {
    /// Hears of operations in the fabric of this name. It must be called in a tokio runtime.
    ///
    /// # Errors
    /// If it is no name, or the socket cannot be made.
    pub(crate) fn of(fabric: &str) -> io::Result<Self> {
        let name =
            fabric.parse().map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        Self::within(Path::new(BASE), &name)
    }

    fn within(base: &Path, fabric: &Name) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = base.join(fabric);
        let path = folder.join(format!("{}-{number}", std::process::id()));
        let open = || {
            DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
            // A process with the same id may have been killed.
            let _ = fs::remove_file(&path);
            UnixDatagram::bind(&path)
        };
        let mut opened = open();
        for _ in 1..ATTEMPTS {
            if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                opened = open();
            }
        }
        Ok(Self { socket: opened?, path })
    }

    /// Waits for the next operation that is complete.
    ///
    /// # Errors
    /// If the socket fails.
    pub(crate) async fn next(&self) -> io::Result<Completion> {
        let mut buffer = [0; MOST];
        loop {
            let length = self.socket.recv(&mut buffer).await?;
            let text = buffer.get(..length).unwrap_or_default();
            // What is damaged is of another version.
            if let Ok(completion) = serde_json::from_slice(text) {
                return Ok(completion);
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Both stay while they have other files.
        for folder in self.path.ancestors().skip(1).take(2) {
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use traffic::completions::{Kind, Teller};

    use super::*;

    fn name() -> Name {
        "fabric".parse().unwrap()
    }

    #[tokio::test]
    async fn all_that_listen_are_told_and_leave_nothing() {
        let base = std::env::temp_dir().join(format!("completions-{}", std::process::id()));
        let teller = Teller::within(&base, &name());
        teller.tell(Kind::Stream, "nobody listens", Duration::from_secs(1));
        assert!(!base.exists());
        let listeners = [(); 2].map(|()| Listener::within(&base, &name()).unwrap());
        let other = Listener::within(&base, &"other".parse().unwrap()).unwrap();
        // Who listened here was killed.
        drop(net::UnixDatagram::bind(base.join("fabric/stale")).unwrap());
        teller.tell(Kind::Iteration, "ring", Duration::from_micros(1500));
        assert!(!base.join("fabric/stale").exists());
        for listener in &listeners {
            let heard = listener.next().await.unwrap();
            let Completion { kind, series, ended, nanoseconds } = heard;
            assert_eq!((kind, series.as_str(), nanoseconds), (Kind::Iteration, "ring", 1_500_000));
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
            assert!((now - 10_000..=now).contains(&ended.into()), "{ended} {now}");
        }
        // A full socket takes no more, and nobody waits.
        for _ in 0..1000 {
            teller.tell(Kind::Iteration, "ring", Duration::ZERO);
        }
        drop(listeners);
        let nothing = tokio::time::timeout(Duration::from_millis(50), other.next()).await;
        assert!(nothing.is_err(), "{nothing:?}");
        drop(other);
        assert!(!base.exists());
    }
}
