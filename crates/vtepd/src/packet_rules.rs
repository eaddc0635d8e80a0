//! The rules of packet filters, of nftables and of legacy iptables.

use netlink::{RuleChain, RuleSet};

/// The chains of one kind, or why they could not be read.
type Rules = Result<Vec<RuleChain>, String>;

/// The packet filter rules of a network namespace, as they were read last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PacketRules {
    nftables: Rules,
    legacy: Rules,
}

impl PacketRules {
    /// Reads all rules in the calling thread's network namespace.
    #[must_use]
    pub(crate) fn read() -> Self {
        Self { nftables: nftables(), legacy: legacy() }
    }

    /// Reads the legacy iptables rules again and, if `nftables` is set, also those of nftables.
    #[must_use]
    pub(crate) fn read_again(self, nftables: bool) -> Self {
        let nftables = if nftables { self::nftables() } else { self.nftables };
        Self { nftables, legacy: legacy() }
    }

    /// Whether the nftables rules could not be read.
    pub(crate) const fn is_unread(&self) -> bool {
        self.nftables.is_err()
    }

    /// The filters in the form in which eligibility checks use them.
    #[must_use]
    pub(crate) fn filters(&self) -> RuleSet {
        let all = [&self.nftables, &self.legacy];
        let unread = all.iter().find_map(|rules| rules.as_ref().err().cloned());
        RuleSet::new(all.into_iter().flatten().flatten().cloned().collect(), unread)
    }
}

fn nftables() -> Rules {
    netlink::packet_rules()
        .map_err(|error| format!("the rules of nftables cannot be read ({error})"))
}

fn legacy() -> Rules {
    let unread = |reason: &str| format!("the rules of legacy iptables cannot be read ({reason})");
    let tables = bpf::iptables::legacy_tables().map_err(|error| unread(&error.to_string()))?;
    let mut chains = Vec::new();
    for table in &tables {
        let unknown = || unread(&format!("table {} has an unknown form", table.name));
        chains.extend(netlink::legacy_chains(table).ok_or_else(unknown)?);
    }
    Ok(chains)
}
