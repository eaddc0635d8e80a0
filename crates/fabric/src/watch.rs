//! A namespace whose interfaces are read again and again.

use std::io;

use netlink::{NotificationKind, Notifications};

use crate::counters::{Counters, CountersError, Table};
use crate::netns::{Namespace, NetnsError};
use crate::rtnl::{Link, Rtnl};

/// Reads the interfaces of a namespace, which it enters once. If the namespace is replaced by one of
/// the same name, it enters that.
#[derive(Debug)]
pub struct Watch {
    namespace: String,
    open: Option<Open>,
}

/// What is open in the namespace. The namespace exists at least as long.
#[derive(Debug)]
struct Open {
    namespace: Namespace,
    inode: u64,
    counters: Table,
    rtnl: Rtnl,
    changes: Notifications,
}

impl Watch {
    /// Watches the namespace of this name, whether it exists already or not.
    #[must_use]
    pub fn new(namespace: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), open: None }
    }

    /// The present counters of each interface.
    ///
    /// # Errors
    /// [`CountersError`], for example if there is no such namespace now.
    pub fn counters(&mut self) -> Result<impl Iterator<Item = (&str, Counters)>, CountersError> {
        Ok(self.open()?.counters.read()?)
    }

    /// The present interfaces.
    ///
    /// # Errors
    /// As [`Self::counters`].
    pub fn links(&mut self) -> Result<Vec<Link>, CountersError> {
        let open = self.open()?;
        let links = open.rtnl.links();
        Ok(links.map_err(|error| NetnsError::Rtnl { name: open.namespace.name().into(), error })?)
    }

    /// Whether an interface may have changed since the last call: the kernel tells.
    ///
    /// # Errors
    /// As [`Self::counters`].
    pub fn changed(&mut self) -> Result<bool, CountersError> {
        let was_open = self.open.is_some();
        let open = self.open()?;
        let changed = open.changes.changed().map_err(io::Error::other)?;
        Ok(changed || !was_open)
    }

    fn open(&mut self) -> Result<&mut Open, CountersError> {
        // What is open would keep a namespace that was deleted, and not see a new one.
        let open = self.open.take().filter(|open| open.namespace.inode().ok() == Some(open.inode));
        let open = open.map_or_else(|| Open::new(&self.namespace), Ok)?;
        Ok(self.open.insert(open))
    }
}

impl Open {
    fn new(name: &str) -> Result<Self, CountersError> {
        let namespace = Namespace::open(name)?;
        let inode = namespace.inode()?;
        let changes = || Notifications::open(NotificationKind::Links);
        let open = || (Table::open(), Rtnl::open(), changes());
        let (counters, rtnl, changes) = namespace.enter(open)?;
        let changes = changes.map_err(io::Error::other)?;
        let rtnl = rtnl.map_err(|error| NetnsError::Rtnl { name: name.to_owned(), error })?;
        Ok(Self { namespace, inode, counters: counters?, rtnl, changes })
    }
}
