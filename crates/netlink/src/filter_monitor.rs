//! Watches nftables rules and traffic control filters being added and removed.
//!
//! An event only tells what to read again, so lost or merged events do no harm. For tcx programs,
//! legacy iptables and ebtables there are no events.

use std::collections::BTreeSet;
use std::future;

use crate::envelope::Envelopes;
use crate::error::Error;
use crate::events::Events;
use crate::socket::Socket;

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
    rules: Option<Events>,
    traffic_control: Events,
}

impl FilterMonitor {
    /// Starts to watch the calling thread's network namespace. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        let join = |socket, group| Events::join(socket, group, "receive events of filters");
        let rules = Socket::open_netfilter().and_then(|socket| join(socket, RULES));
        if let Err(error) = &rules {
            tracing::debug!(%error, "nftables is not watched");
        }
        let traffic_control = join(Socket::open(None)?, TRAFFIC_CONTROL)?;
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
                Some(rules) => rules.changed(FilterChanges::add_all).await,
                None => future::pending().await,
            }
        };
        tokio::select! {
            changes = rules => changes,
            changes = traffic_control.changed(FilterChanges::add_all) => changes,
        }
    }
}

impl FilterChanges {
    fn add_all(&mut self, events: Option<&[u8]>) {
        self.rules |= events.is_none();
        self.anywhere |= events.is_none();
        for envelope in Envelopes::new(events.unwrap_or_default()).map_while(Result::ok) {
            self.add(envelope.kind, envelope.payload);
        }
    }

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
}
