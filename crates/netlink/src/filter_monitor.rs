//! Watches nftables rules and traffic control filters being added and removed.
//!
//! An event only tells what to read again, so lost or merged events do no harm. For tcx programs,
//! legacy iptables and ebtables there are no events.

use std::collections::BTreeSet;
use std::future;
use std::io;

use nix::libc::ENOBUFS;
use tokio::io::unix::AsyncFd;

use crate::envelope::Envelopes;
use crate::error::Error;
use crate::socket::{BUFFER, Socket, failed};

/// `NFNLGRP_NFTABLES` (`include/uapi/linux/netfilter/nfnetlink.h`).
const RULES: u32 = 7;
/// `RTNLGRP_TC`.
const TRAFFIC_CONTROL: u32 = 4;
/// `NFNL_SUBSYS_NFTABLES`: the upper byte of the message type.
const NFTABLES: u16 = 10;
/// `TCM_IFINDEX_MAGIC_BLOCK`: a filter block that several interfaces share.
const SHARED_BLOCK: u32 = 0xffff_ffff;

/// Where filters were added or removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FilterChanges {
    /// In nftables.
    pub rules: bool,
    /// On the qdiscs of these interfaces.
    pub interfaces: BTreeSet<u32>,
    /// Possibly on any interface: a shared block changed, or events were lost.
    pub anywhere: bool,
}

/// Watches the filters of a network namespace.
#[derive(Debug)]
pub struct FilterMonitor {
    /// `None` if the kernel has no netfilter.
    rules: Option<Watch>,
    traffic_control: Watch,
}

#[derive(Debug)]
struct Watch {
    socket: AsyncFd<Socket>,
    buffer: Vec<u8>,
}

impl FilterMonitor {
    /// Starts to watch the calling thread's network namespace. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        let rules = Socket::open_netfilter().and_then(|socket| Watch::join(socket, RULES));
        if let Err(error) = &rules {
            tracing::debug!(%error, "nftables is not watched");
        }
        let traffic_control = Watch::join(Socket::open(None)?, TRAFFIC_CONTROL)?;
        Ok(Self { rules: rules.ok(), traffic_control })
    }

    /// Whether changes of nftables are reported.
    #[must_use]
    pub const fn hears_rules(&self) -> bool {
        self.rules.is_some()
    }

    /// Waits for changes. Cancellation-safe: what is read from the kernel is returned in the same
    /// poll.
    ///
    /// # Errors
    /// When a socket fails. Lost events are not an error.
    pub async fn changed(&mut self) -> Result<FilterChanges, Error> {
        let Self { rules, traffic_control } = self;
        let rules = async {
            match rules {
                Some(rules) => rules.changed().await,
                None => future::pending().await,
            }
        };
        tokio::select! {
            changes = rules => changes,
            changes = traffic_control.changed() => changes,
        }
    }
}

impl Watch {
    fn join(socket: Socket, group: u32) -> Result<Self, Error> {
        socket.set_non_blocking()?;
        socket.join(group)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe; this socket owns its descriptor and never changes it"
        )]
        let socket = AsyncFd::new(socket).map_err(failed("register with the runtime"))?;
        Ok(Self { socket, buffer: Vec::with_capacity(BUFFER) })
    }

    async fn changed(&mut self) -> Result<FilterChanges, Error> {
        loop {
            let mut ready =
                self.socket.readable().await.map_err(failed("wait for events of filters"))?;
            if let Ok(changes) = ready.try_io(|socket| drain(socket.get_ref(), &mut self.buffer)) {
                return changes.map_err(failed("receive events of filters"));
            }
        }
    }
}

/// Reads all events that wait on the socket, and merges them.
fn drain(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<FilterChanges> {
    let mut changes = FilterChanges::default();
    loop {
        match socket.receive(buffer) {
            Ok(length) if length <= buffer.len() => {
                Envelopes::new(buffer).map_while(Result::ok).for_each(|envelope| {
                    changes.add(envelope.kind, envelope.payload);
                });
            }
            Ok(_) => changes.lost(),
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => changes.lost(),
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock
                    && changes != FilterChanges::default() =>
            {
                return Ok(changes);
            }
            Err(error) => return Err(error),
        }
    }
}

impl FilterChanges {
    fn add(&mut self, kind: u16, payload: &[u8]) {
        match kind {
            // RTM_{NEW,DEL}QDISC, _TFILTER and _CHAIN: `struct tcmsg` has the interface after the
            // family and its padding.
            36 | 37 | 44 | 45 | 100 | 101 => {
                match payload.get(4..8).and_then(<[u8]>::first_chunk) {
                    Some(ifindex) if u32::from_ne_bytes(*ifindex) != SHARED_BLOCK => {
                        self.interfaces.insert(u32::from_ne_bytes(*ifindex));
                    }
                    _ => self.anywhere = true,
                }
            }
            kind if kind >> 8 == NFTABLES => self.rules = true,
            _ => {}
        }
    }

    const fn lost(&mut self) {
        self.rules = true;
        self.anywhere = true;
    }
}
