//! Notices changes of routes and forwarding databases in the namespaces of a fabric. The kernel
//! notifies, so a fabric in which nothing changes costs nothing.

use std::collections::BTreeSet;

use netlink::{NotificationKind, Notifications};

use crate::at_once::at_once;
use crate::deployed::{Deployed, DeployedError};

/// Sockets in the namespaces of a fabric that the kernel notifies.
#[derive(Debug)]
pub(crate) struct Changes(Vec<Watched>);

#[derive(Debug)]
struct Watched {
    node: String,
    databases: Notifications,
    routes: Notifications,
    ipv6_routes: Notifications,
}

/// What may have changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// The nodes with changed forwarding databases or neighbours.
    pub(crate) databases: BTreeSet<String>,
    /// Whether an IPv4 route of some node has changed.
    pub(crate) routes: bool,
    /// Whether an IPv6 route of some node has changed. Hosts and switches without an IPv6 underlay
    /// have such routes, too.
    pub(crate) ipv6_routes: bool,
}

impl Changes {
    /// Watches all namespaces of the fabric from now on.
    ///
    /// # Errors
    /// [`DeployedError`] if a namespace is gone or the kernel refuses a socket.
    pub(crate) fn watch(deployed: &Deployed) -> Result<Self, DeployedError> {
        let watch = |node: &String| {
            let open = || {
                Ok(Watched {
                    node: node.clone(),
                    databases: Notifications::open(NotificationKind::Neighbours)?,
                    routes: Notifications::open(NotificationKind::Ipv4Routes)?,
                    ipv6_routes: Notifications::open(NotificationKind::Ipv6Routes)?,
                })
            };
            deployed.namespace(node)?.enter(open)?.map_err(|source| not_watched(node, source))
        };
        at_once(&deployed.namespaces().collect::<Vec<_>>(), |node| watch(node)).map(Self)
    }

    /// What may have changed since the last call. Does not wait.
    ///
    /// # Errors
    /// [`DeployedError`] if a socket fails.
    pub(crate) fn take(&self) -> Result<Changed, DeployedError> {
        let mut changed = Changed::default();
        for Watched { node, databases, routes, ipv6_routes } in &self.0 {
            let failed = |source| not_watched(node, source);
            if databases.changed().map_err(failed)? {
                changed.databases.insert(node.clone());
            }
            changed.routes |= routes.changed().map_err(failed)?;
            changed.ipv6_routes |= ipv6_routes.changed().map_err(failed)?;
        }
        Ok(changed)
    }
}

fn not_watched(node: &str, source: netlink::Error) -> DeployedError {
    DeployedError::NotWatched { node: node.to_owned(), source }
}
