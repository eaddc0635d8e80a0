//! nftables: whether anybody has tables, and for what (`include/uapi/linux/netfilter/nf_tables.h`).

use crate::encode::Request;
use crate::error::Error;
use crate::request::{DUMP, REQUEST, Requests};

/// `NFNL_SUBSYS_NFTABLES`.
const NFTABLES: u16 = 10 << 8;
/// `NFT_MSG_NEWTABLE`.
const NEW_TABLE: u16 = NFTABLES;
/// `NFT_MSG_GETTABLE`.
const GET_TABLE: u16 = NFTABLES | 1;

/// What nftables has tables for, in a network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketFilters {
    /// Frames of bridges or of single interfaces (families `bridge` and `netdev`).
    pub frames: bool,
    /// IPv4 or IPv6 packets (families `ip`, `ip6` and `inet`).
    pub packets: bool,
}

/// What nftables has tables for in the calling thread's network namespace.
///
/// # Errors
/// When the kernel does not tell; one without nftables does not either.
pub fn packet_filters() -> Result<PacketFilters, Error> {
    let mut filters = PacketFilters::default();
    // `struct nfgenmsg`: family (any), version, resource.
    let request = Request::new(GET_TABLE, REQUEST | DUMP, &[0; 4]);
    Requests::open_netfilter()?.collect("read nftables tables", &request, |envelope| {
        if envelope.kind == NEW_TABLE {
            match envelope.payload.first() {
                // NFPROTO_NETDEV, NFPROTO_BRIDGE
                Some(5 | 7) => filters.frames = true,
                // NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6
                Some(1 | 2 | 10) => filters.packets = true,
                _ => {}
            }
        }
    })?;
    Ok(filters)
}
