//! The rules of packet filters, of nftables and of legacy iptables.

use control::PacketFilters;
use netlink::RuleChain;

/// Rules of one kind, or why they could not be read.
type Rules = Result<Vec<RuleChain>, String>;

/// See the module's description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketRules {
    nftables: Rules,
    legacy: Rules,
}

impl PacketRules {
    /// Reads them in the calling thread's network namespace.
    #[must_use]
    pub fn read() -> Self {
        Self { nftables: nftables(), legacy: legacy() }
    }

    /// Those of iptables as they are now, and those of nftables where wanted.
    #[must_use]
    pub fn read_again(self, nftables: bool) -> Self {
        let nftables = if nftables { self::nftables() } else { self.nftables };
        Self { nftables, legacy: legacy() }
    }

    /// Whether those of nftables could not be read.
    pub const fn is_unread(&self) -> bool {
        self.nftables.is_err()
    }

    /// What VNIs are compared with.
    #[must_use]
    pub fn filters(&self) -> PacketFilters {
        let all = [&self.nftables, &self.legacy];
        let unread = all.iter().find_map(|rules| rules.as_ref().err().cloned());
        PacketFilters::new(all.into_iter().flatten().flatten().cloned().collect(), unread)
    }
}

fn nftables() -> Rules {
    netlink::packet_rules()
        .map_err(|error| format!("the rules of nftables cannot be read ({error})"))
}

fn legacy() -> Rules {
    let unread = |reason: &str| format!("the rules of legacy iptables cannot be read ({reason})");
    let tables = ports::iptables::legacy_tables().map_err(|error| unread(&error.to_string()))?;
    let mut chains = Vec::new();
    for table in &tables {
        let unknown = || unread(&format!("table {} has an unknown form", table.name));
        chains.extend(netlink::legacy_chains(table).ok_or_else(unknown)?);
    }
    Ok(chains)
}
