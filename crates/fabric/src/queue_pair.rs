//! The packets of a queue pair that pass an interface of a namespace.

use std::io;

use nix::net::if_::if_nametoindex;
use ports::QueuePairCounter;

use crate::counters::CountersError;
use crate::netns::Namespace;

pub use ports::{QueuePairFilter, Way};
pub use wire::QueuePair;

/// Counts the packets of a queue pair at an interface. If the namespace is replaced by one of the
/// same name, it counts there.
#[derive(Debug)]
pub struct QueuePairWatch {
    namespace: String,
    interface: String,
    filter: QueuePairFilter,
    way: Way,
    open: Option<Open>,
}

/// What counts in the namespace, which exists at least as long.
#[derive(Debug)]
struct Open {
    namespace: Namespace,
    inode: u64,
    ifindex: u32,
    counter: QueuePairCounter,
}

impl QueuePairWatch {
    /// Watches an interface, whether it exists already or not.
    #[must_use]
    pub fn new(
        namespace: impl Into<String>,
        interface: impl Into<String>,
        filter: QueuePairFilter,
        way: Way,
    ) -> Self {
        Self { namespace: namespace.into(), interface: interface.into(), filter, way, open: None }
    }

    /// How many packets came since the last call. A super-frame is one. The first call begins to
    /// count, and so does the one after an error.
    ///
    /// # Errors
    /// [`CountersError`], for example if there is no such namespace or interface now.
    pub fn count(&mut self) -> Result<u64, CountersError> {
        // What is open would keep a namespace or an interface that was deleted, and not see a new one.
        let open = self.open.take().filter(|open| self.is_current(open));
        let mut open = open.map_or_else(|| self.begin(), Ok)?;
        let count = open.counter.count()?;
        self.open = Some(open);
        Ok(count)
    }

    fn is_current(&self, open: &Open) -> bool {
        let ifindex = open.namespace.enter(|| if_nametoindex(self.interface.as_str()));
        open.namespace.inode().ok() == Some(open.inode)
            && matches!(ifindex, Ok(Ok(ifindex)) if ifindex == open.ifindex)
    }

    fn begin(&self) -> Result<Open, CountersError> {
        let namespace = Namespace::open(&self.namespace)?;
        let inode = namespace.inode()?;
        let open = || {
            let ifindex = if_nametoindex(self.interface.as_str()).map_err(io::Error::from)?;
            let counter = QueuePairCounter::open(ifindex, &self.filter, self.way)?;
            Ok::<_, io::Error>((ifindex, counter))
        };
        let (ifindex, counter) = namespace.enter(open)??;
        Ok(Open { namespace, inode, ifindex, counter })
    }
}
