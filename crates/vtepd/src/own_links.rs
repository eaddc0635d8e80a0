//! Watches vtepd's own interfaces in the leaf's namespace. Without them, frames that the steering
//! programs redirect are lost. An interface that is set down is set up again. If one is deleted,
//! everything is given back to the kernel immediately.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use control::{Event, Journal};

use crate::handle::Handle;
use crate::link_watch::LinkWatch;

/// How often the interfaces are checked if the kernel's notifications cannot be used.
const INTERVAL: Duration = Duration::from_millis(100);

/// An interface of vtepd cannot be used any more. The kernel forwards everything.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnLinkError {
    /// The interface was deleted, renamed or moved to another namespace.
    #[error(
        "the interface {0} is gone: it was deleted, renamed or moved, and vtepd cannot forward without it; the kernel forwards everything"
    )]
    Gone(String),
    /// The interface was down and could not be set up.
    #[error(
        "the interface {name} was set down and cannot be set up again ({source}); the kernel forwards everything"
    )]
    Down {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
}

/// Watches the interfaces and repairs them. Returns once one cannot be used any more.
pub(crate) async fn watch(handle: Arc<Handle>, journal: Journal) -> OwnLinkError {
    let mut links = LinkWatch::new("vtepd's own interfaces", INTERVAL);
    loop {
        // The first pass covers changes before the first notification.
        match handle.repair() {
            Ok(repaired) => {
                for name in repaired {
                    let text = format!(
                        "the interface {name} was set down; it is vtepd's, and was set up again: the kernel forwarded meanwhile"
                    );
                    tracing::warn!("{text}");
                    journal.write(Event::Warning(text));
                }
            }
            Err(error) => return error,
        }
        let names = handle.own_links();
        loop {
            let changes = links.changed().await;
            if changes.any || names.iter().any(|name| changes.names.contains(name)) {
                break;
            }
        }
    }
}
