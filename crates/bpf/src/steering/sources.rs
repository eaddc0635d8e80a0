//! Uplinks with a reverse path filter, and the source addresses whose packets pass it there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use aya::Ebpf;
use aya::maps::{HashMap, MapData, MapError};

use crate::error::SteeringError;
use crate::maps::{map, remove, set};

type Checked = BTreeMap<u32, BTreeSet<Ipv4Addr>>;

shared! {
    /// `struct checked_source` of the programs: an interface, and a source address in network byte
    /// order.
    /// Source 0 marks the interface itself as checked.
    pub(crate) struct CheckedSource {
        pub(crate) ifindex: u32,
        pub(crate) source: u32,
    }
}

const NAME: &str = "checked_sources";
const ANY: &str = "sources_are_checked";

/// Changes the map from `before` to `after`. Packets of sources that do not fit the map are left to
/// the kernel.
pub(super) fn apply(
    ebpf: &mut Ebpf,
    before: &Checked,
    after: &Checked,
) -> Result<(), SteeringError> {
    if before == after {
        return Ok(());
    }
    let failed = |error| SteeringError::Map(NAME, error);
    let empty = BTreeSet::new();
    let mut sources: HashMap<&mut MapData, CheckedSource, u8> = map(ebpf, NAME)?;
    for (&ifindex, now) in after {
        for source in now.difference(before.get(&ifindex).unwrap_or(&empty)) {
            let checked = CheckedSource { ifindex, source: u32::from_ne_bytes(source.octets()) };
            sources.insert(checked, 1, 0).or_else(full).map_err(failed)?;
        }
        sources.insert(CheckedSource { ifindex, source: 0 }, 1, 0).map_err(failed)?;
    }
    set(ebpf, ANY, 0, u32::from(!after.is_empty()))?;
    for (&ifindex, then) in before {
        if !after.contains_key(&ifindex) {
            remove::<_, u8>(ebpf, NAME, &CheckedSource { ifindex, source: 0 })?;
        }
        for source in then.difference(after.get(&ifindex).unwrap_or(&empty)) {
            let checked = CheckedSource { ifindex, source: u32::from_ne_bytes(source.octets()) };
            remove::<_, u8>(ebpf, NAME, &checked)?;
        }
    }
    Ok(())
}

fn full(error: MapError) -> Result<(), MapError> {
    match error {
        MapError::SyscallError(error) if error.io_error.raw_os_error() == Some(libc::E2BIG) => {
            Ok(())
        }
        error => Err(error),
    }
}
