//! Reverse path filters (`rp_filter`).

use std::collections::BTreeMap;

use netlink::{Message, Operation, ReversePathFilter};

/// `NETCONFA_IFINDEX_ALL`.
const ALL: i32 = -1;

/// The values of `rp_filter` that are not 0, by interface index.
#[derive(Debug, Default)]
pub(crate) struct ReversePaths(BTreeMap<i32, i32>);

impl ReversePaths {
    /// Applies a value from the kernel. Returns whether it changed.
    pub(crate) fn apply(&mut self, operation: Operation, filter: ReversePathFilter) -> bool {
        let ReversePathFilter { ifindex, value } = filter;
        if operation == Operation::New && value > 0 {
            self.0.insert(ifindex, value) != Some(value)
        } else {
            self.0.remove(&ifindex).is_some()
        }
    }

    /// Applies a dump of all values. Returns whether any changed.
    pub(crate) fn resync(&mut self, dump: Vec<Message>) -> bool {
        let mut now = Self::default();
        for message in dump {
            if let Message::ReversePathFilter(operation, filter) = message {
                now.apply(operation, filter);
            }
        }
        std::mem::replace(&mut self.0, now.0) != self.0
    }

    /// Whether the filter of an interface is on.
    pub(crate) fn is_on(&self, ifindex: u32) -> bool {
        let own = i32::try_from(ifindex).is_ok_and(|ifindex| self.0.contains_key(&ifindex));
        own || self.0.contains_key(&ALL)
    }
}
