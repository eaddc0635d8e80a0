//! Watches interfaces being created, deleted, and set up or down.
//!
//! An event only tells which interface to read again, so lost or merged events do no harm.

use std::collections::BTreeSet;

use crate::decode::Messages;
use crate::error::Error;
use crate::events::Events;
use crate::message::Message;
use crate::socket::Socket;

/// `RTNLGRP_LINK`.
const LINKS: u32 = 1;

/// Names of interfaces that changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkChanges {
    /// These were created, deleted, renamed or changed.
    pub names: BTreeSet<String>,
    /// Whether events were lost, so that any interface may have changed.
    pub any: bool,
}

/// Watches the interfaces of a network namespace.
#[derive(Debug)]
pub struct LinkMonitor(Events);

impl LinkMonitor {
    /// Starts to watch the calling thread's network namespace. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// When the socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Events::join(Socket::open(None)?, LINKS, "receive events of links").map(Self)
    }

    /// Waits for changes. Cancellation-safe: what is read from the kernel is returned in the same
    /// poll.
    ///
    /// # Errors
    /// When the socket fails. Lost events are not an error.
    pub async fn changed(&mut self) -> Result<LinkChanges, Error> {
        self.0.changed(LinkChanges::add).await
    }
}

impl LinkChanges {
    fn add(&mut self, events: Option<&[u8]>) {
        self.any |= events.is_none();
        for message in Messages::new(events.unwrap_or_default()) {
            match message {
                Ok(Message::Link(_, link)) => drop(self.names.insert(link.name)),
                Ok(_) => {}
                Err(_) => self.any = true,
            }
        }
    }
}
