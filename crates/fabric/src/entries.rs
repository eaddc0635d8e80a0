//! Which entries the kernels' forwarding databases need, and which of them are missing.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use wire::MacAddr;

/// How many leaves a message names, and how many entries of each.
const NAMED: usize = 6;

/// An entry that a VXLAN netdev needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The node of the netdev.
    pub node: String,
    /// The VNI of the netdev.
    pub vni: u32,
    /// The MAC address; `None` in the flood list.
    pub mac: Option<MacAddr>,
    /// The remote VTEP.
    pub vtep: IpAddr,
}

/// The entries of one kind that a fabric needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// How many there should be.
    pub expected: usize,
    /// In the order of nodes and VNIs.
    pub missing: Vec<Entry>,
}

impl Entries {
    /// Adds an entry that there should be.
    pub(crate) fn see(&mut self, entry: Entry, found: bool) {
        self.expected += 1;
        if !found {
            self.missing.push(entry);
        }
    }

    /// Whether no entry is missing.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.missing.is_empty()
    }
}

impl fmt::Display for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.expected - self.missing.len(), self.expected)
    }
}

/// Names the leaves that lack entries, with the first entries of each.
pub(crate) fn list<'a>(missing: impl IntoIterator<Item = &'a Entry>) -> String {
    let mut leaves: BTreeMap<(&str, u32), Vec<String>> = BTreeMap::new();
    for Entry { node, vni, mac, vtep } in missing {
        let entry = match mac {
            None => format!("VTEP {vtep} in the flood list"),
            Some(mac) => format!("{mac} at VTEP {vtep}"),
        };
        leaves.entry((node, *vni)).or_default().push(entry);
    }
    let leaf = |((node, vni), entries): ((&str, u32), Vec<String>)| {
        format!("{node} lacks {} (VNI {vni})", first(entries))
    };
    first(leaves.into_iter().map(leaf).collect())
}

/// Joins the first items, and says how many there are beyond.
pub(crate) fn first(mut items: Vec<String>) -> String {
    let more = items.len().saturating_sub(NAMED);
    items.truncate(NAMED);
    let mut text = items.join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flood(node: &str, vtep: u8) -> Entry {
        let vtep = IpAddr::from([10, 0, 1, vtep]);
        Entry { node: node.to_owned(), vni: 10, mac: None, vtep }
    }

    #[test]
    fn what_is_missing_is_counted_and_named() {
        let mut floods = Entries::default();
        floods.see(flood("leaf1", 2), true);
        assert!(floods.complete());
        floods.see(flood("leaf1", 3), false);
        floods.see(flood("leaf2", 3), false);
        assert!(!floods.complete());
        assert_eq!(floods.to_string(), "1/3");
        let host = Entry { mac: Some(MacAddr([2, 0, 0, 0, 0, 7])), ..flood("leaf1", 3) };
        assert_eq!(
            list(floods.missing.iter().chain([&host])),
            "leaf1 lacks VTEP 10.0.1.3 in the flood list, 02:00:00:00:00:07 at VTEP 10.0.1.3 \
             (VNI 10), leaf2 lacks VTEP 10.0.1.3 in the flood list (VNI 10)"
        );
    }

    #[test]
    fn a_long_list_is_cut() {
        let missing: Vec<Entry> = (1..=9).map(|vtep| flood("leaf1", vtep)).collect();
        let text = list(&missing);
        assert!(text.contains("10.0.1.6 in") && !text.contains("10.0.1.7"), "{text}");
        assert!(text.ends_with("in the flood list and 3 more (VNI 10)"), "{text}");
    }
}
