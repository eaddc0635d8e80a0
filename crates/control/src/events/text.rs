//! The sentences of events.

use std::fmt;
use std::iter::repeat;

use path::Entropy;
use tables::BUCKETS;
use wire::Vni;

use crate::eligibility::ineligible::LeftToKernel;
use crate::events::event::Event;
use crate::sources::fpm_session::FpmSweep;
use crate::sources::resync::Resync;
use crate::stores::overlay::MacChange;

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached { vni, netdev } => write!(f, "VNI {vni} ({netdev}) is taken over"),
            Self::Detached { vni, netdev } => {
                write!(f, "VNI {vni} ({netdev}) is no longer taken over")
            }
            Self::Left(left) => fmt_left(f, left),
            Self::Source { name, state } => write!(f, "source {name} is {state}"),
            Self::Resynced(dumps) => fmt_dumps(f, dumps),
            Self::FpmSwept(FpmSweep { entries, returned: true }) => {
                write!(
                    f,
                    "zebra is back and has not repeated {entries} entries, which were removed"
                )
            }
            Self::FpmSwept(FpmSweep { entries, returned: false }) => {
                write!(
                    f,
                    "zebra has not come back, and the {entries} entries that it had sent were removed"
                )
            }
            Self::Mac { vni, netdev, change } => fmt_mac(f, *vni, netdev, change),
            Self::Flapping { vni, netdev, mac, vtep, over } => {
                write!(f, "{mac} in VNI {vni} ({netdev}) ")?;
                fmt_flapping(f, *over)?;
                match vtep {
                    Some(vtep) => write!(f, "; it is behind {vtep}"),
                    None => f.write_str("; its location is unknown"),
                }
            }
            Self::Flood { vni, netdev, vtep, added } => {
                write!(
                    f,
                    "flood list of VNI {vni} ({netdev}): {vtep} {}",
                    if *added { "joined" } else { "left" }
                )
            }
            Self::Policy { vni, netdev, entropy } => {
                write!(f, "policy of VNI {vni} ({netdev}): ")?;
                fmt_policy(f, entropy)
            }
            Self::NextHop { uplink, gateway, up } => {
                write!(
                    f,
                    "next hop {gateway} on {uplink} is {}",
                    if *up { "used" } else { "no longer used" }
                )
            }
            Self::Placement { buckets, vtep, vteps, reduced } => {
                write!(f, "{buckets} of {BUCKETS} buckets of VTEP {vtep}")?;
                if *vteps > 1 {
                    write!(f, " and of {} more VTEPs", vteps - 1)?;
                }
                f.write_str(" have another next hop")?;
                f.write_str(if *reduced { ", while next hops are missing" } else { "" })
            }
            Self::ByDefault { vtep, begins: true } => {
                write!(f, "only the default route leads to VTEP {vtep}")
            }
            Self::ByDefault { vtep, begins: false } => {
                write!(f, "VTEP {vtep} is no longer reached by the default route")
            }
            Self::Impaired { uplink, begins: true } => write!(
                f,
                "uplink {uplink} is impaired: its queueing discipline acts on single packets, so frames leave one by \
                 one there"
            ),
            Self::Impaired { uplink, begins: false } => {
                write!(f, "uplink {uplink} is no longer impaired: frames may leave together there")
            }
            Self::Stalled { waited, dropped } => write!(
                f,
                "the worker hung, and the kernel forwarded meanwhile: {dropped} frames, which had waited for {waited:.1?}, \
                 were dropped"
            ),
            Self::Reloaded => f.write_str("the configuration was read again"),
            Self::Warning(text) => f.write_str(text),
        }
    }
}

fn fmt_dumps(f: &mut fmt::Formatter<'_>, dumps: &[(&str, Resync)]) -> fmt::Result {
    f.write_str("read from the kernel")?;
    for ((what, Resync { dumped, swept }), mark) in
        dumps.iter().zip([":"].into_iter().chain(repeat(",")))
    {
        write!(f, "{mark} {dumped} {what}")?;
        if *swept > 0 {
            write!(f, " ({swept} gone)")?;
        }
    }
    Ok(())
}

fn fmt_mac(
    f: &mut fmt::Formatter<'_>,
    vni: Vni,
    netdev: &str,
    MacChange { mac, from, to, local }: &MacChange,
) -> fmt::Result {
    write!(f, "{mac} in VNI {vni} ({netdev}) is behind ")?;
    match (from, to) {
        (Some(from), None) if *local => {
            write!(f, "{from} no more: it is on a port of the bridge")
        }
        (None, Some(to)) => write!(f, "{to}"),
        (Some(from), Some(to)) => write!(f, "{to}, not {from} any more"),
        (Some(from), None) => write!(f, "{from} no more"),
        (None, None) => f.write_str("nobody"),
    }
}

fn fmt_left(f: &mut fmt::Formatter<'_>, left: &LeftToKernel) -> fmt::Result {
    let LeftToKernel { name, vni, reason, .. } = left;
    if reason.is_external() {
        write!(f, "{name} (external) stays with the kernel: {reason} [{}]", reason.slug())
    } else if left.is_standalone() {
        write!(f, "VNI {vni} ({name}) is not forwarded: {reason}")
    } else {
        write!(f, "VNI {vni} ({name}) stays with the kernel: {reason} [{}]", reason.slug())
    }
}

fn fmt_flapping(f: &mut fmt::Formatter<'_>, over: Option<u64>) -> fmt::Result {
    match over {
        None => f.write_str("moves too often: its moves are no longer reported one by one"),
        Some(moves) => write!(f, "stopped moving after {moves} moves"),
    }
}

fn fmt_policy(f: &mut fmt::Formatter<'_>, entropy: &Entropy) -> fmt::Result {
    write!(f, "{}", entropy.policy())?;
    if let Some(bins) = entropy.bins() {
        write!(f, " with {} bins", bins.get())?;
    }
    write!(f, ", outer source ports {}", entropy.range())
}
