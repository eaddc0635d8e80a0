//! Checks that the forwarding programs (`programs/steering.bpf.c`) and the Rust code mean the same:
//! the layout of structs in maps, and constants. The C text is the source of what is expected.

use std::collections::{BTreeMap, BTreeSet};

use crate::bypass::PortEntry;
use crate::dropped::{self, DropCause, Sender};
use crate::mac_locations;
use crate::offload::entries::{self, AddressEntry, GroupEntry, HopEntry, VniEntry};
use crate::offload::pinned::{PINNED, PinnedEntry, PinnedKey, PinnedUsage};
use crate::offload::traffic::{self, OffloadPathTraffic, OffloadTraffic};
use crate::offload::{ADDRESSES, GROUPS, HOPS, MOVING, NO_HOPS, SINGLE, VNIS, VTEPS};
use crate::placed::{PLACED, PlacedKey};
use crate::port_counts::{Numbers, PortCounts};
use crate::programs::{STEER_ACCESS, STEER_PORT, STEER_PUNT, STEER_UPLINK, STEER_VXLAN, STEERS};
use crate::steering::apply::{TakenNetdev, TakenTunnel, TunnelEnd};
use crate::steering::chosen_port::{Key, PortChoiceEntry};
use crate::steering::counts;
use crate::steering::sources::CheckedSource;
use crate::watchdog::{CALLED, HEARTBEAT_WORD, IDLE, MOST_WORKERS, PuntSide, WORDS};

const SOURCES: [&str; 19] = [
    include_str!("../programs/common.bpf.h"),
    include_str!("../programs/steering.bpf.c"),
    include_str!("../programs/headers.bpf.h"),
    include_str!("../programs/dropped.bpf.h"),
    include_str!("../programs/bypass.bpf.h"),
    include_str!("../programs/watchdog.bpf.h"),
    include_str!("../programs/workers.bpf.h"),
    include_str!("../programs/chosen_port.bpf.h"),
    include_str!("../programs/punt.bpf.h"),
    include_str!("../programs/offload.bpf.h"),
    include_str!("../programs/pinned.bpf.h"),
    include_str!("../programs/placed_port.bpf.h"),
    include_str!("../programs/record.bpf.h"),
    include_str!("../programs/checksum.bpf.h"),
    include_str!("../programs/encapsulate.bpf.h"),
    include_str!("../programs/decapsulate.bpf.h"),
    include_str!("../programs/uplink_ipv6.bpf.h"),
    include_str!("../programs/segments.bpf.h"),
    include_str!("../programs/split.bpf.h"),
];

/// All sources of these programs, without comments.
fn code() -> String {
    let lines = SOURCES.iter().flat_map(|source| source.lines());
    lines.map(|line| line.split("//").next().unwrap().trim_end().to_owned() + "\n").collect()
}

fn number(text: &str) -> Option<u64> {
    let text = text.trim().trim_end_matches(['U', 'L']);
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The numbers of macros and of enumerations, by name.
fn constants(code: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for line in code.lines().filter_map(|line| line.strip_prefix("#define ")) {
        if let Some((name, value)) = line.split_once(' ')
            && let Some(value) = number(value)
        {
            found.insert(name.to_owned(), value);
        }
    }
    for list in code.split("enum {").skip(1).map(|rest| rest.split('}').next().unwrap()) {
        let mut next = 0;
        for member in list.split(',').map(str::trim).filter(|member| !member.is_empty()) {
            let (name, value) = member.split_once('=').unwrap_or((member, ""));
            next = number(value).unwrap_or(next);
            found.insert(name.trim().to_owned(), next);
            next += 1;
        }
    }
    found
}

/// The entries, flags, key and value of each map, by its name.
fn maps(code: &str) -> BTreeMap<&str, [&str; 4]> {
    let lines = code.lines().filter_map(|line| line.strip_prefix("MAP(")?.strip_suffix(");"));
    let map = lines.map(|line| {
        let parts: Vec<_> = line.split(", ").collect();
        (parts[1], parts[2..].try_into().unwrap_or_else(|_| panic!("MAP({line})")))
    });
    map.collect()
}

/// The fields of a struct with offset and size, and its size, all in bytes.
pub(crate) type Layout = (Vec<(String, usize, usize)>, usize);

/// The layout of a C struct of integers and arrays of them.
fn layout(code: &str, name: &str) -> Layout {
    let body = code.split_once(&format!("struct {name} {{\n")).unwrap_or_else(|| panic!("{name}"));
    let body = body.1.split_once("\n}").unwrap().0;
    let (mut fields, mut end, mut widest) = (Vec::new(), 0usize, 1);
    for field in body.split(';').map(str::trim).filter(|field| !field.is_empty()) {
        let (kind, field) = field.split_once(' ').unwrap();
        let bits: usize = kind.strip_prefix("__u").and_then(|bits| bits.parse().ok()).unwrap();
        let (field, count) = match field.trim_end_matches(']').split_once('[') {
            Some((field, count)) => (field, count.parse().unwrap()),
            None => (field, 1),
        };
        let offset = end.next_multiple_of(bits / 8);
        fields.push((field.to_owned(), offset, bits / 8 * count));
        end = offset + bits / 8 * count;
        widest = widest.max(bits / 8);
    }
    (fields, end.next_multiple_of(widest))
}

#[test]
fn structs_in_maps_have_the_same_layout() {
    let code = code();
    let expected = BTreeMap::from([
        ("bypass_port", PortEntry::layout()),
        ("mac_location", mac_locations::Key::layout()),
        ("location_entry", mac_locations::Entry::layout()),
        ("port_counts", PortCounts::layout()),
        ("tunnel_end", TunnelEnd::layout()),
        ("taken_tunnel", TakenTunnel::layout()),
        ("taken_netdev", TakenNetdev::layout()),
        ("checked_source", CheckedSource::layout()),
        ("port_key", Key::layout()),
        ("port_choice", PortChoiceEntry::layout()),
        ("placed_key", PlacedKey::layout()),
        ("pinned_key", PinnedKey::layout()),
        ("pinned", PinnedEntry::layout()),
        ("pinned_usage", PinnedUsage::layout()),
        ("offload_vni", VniEntry::layout()),
        ("offload_address", AddressEntry::layout()),
        ("offload_group", GroupEntry::layout()),
        ("offload_hop", HopEntry::layout()),
        ("offload_traffic", OffloadTraffic::layout()),
        ("offload_path_traffic", OffloadPathTraffic::layout()),
    ]);
    for (name, rust) in &expected {
        assert_eq!(&layout(&code, name), rust, "struct {name}: C and Rust");
    }
    // No struct in a map is left out, but those that the programs use alone.
    let used = maps(&code).into_values().flat_map(|[_, _, key, value]| [key, value]);
    let mut used: BTreeSet<_> = used.filter_map(|kind| kind.strip_prefix("struct ")).collect();
    assert!(["backlog", "chunk", "identification_block"].iter().all(|own| used.remove(own)));
    assert_eq!(used, expected.keys().copied().collect());
}

#[test]
fn constants_are_the_same() {
    let code = code();
    let constants = constants(&code);
    let mut expected = BTreeMap::from([
        ("WORKERS", MOST_WORKERS as u64),
        ("WORDS", WORDS as u64),
        ("IDLE", IDLE as u64),
        ("HEARTBEAT_WORD", HEARTBEAT_WORD as u64),
        ("CALLED", CALLED),
        ("UNDERLAY", PuntSide::Underlay as u64),
        ("BRIDGE", PuntSide::Bridge as u64),
        ("HOOK_UPLINK", STEER_UPLINK.0.into()),
        ("HOOK_VXLAN", STEER_VXLAN.0.into()),
        ("HOOK_PUNT", STEER_PUNT.0.into()),
        ("HOOK_PORT", STEER_PORT.0.into()),
        ("HOOK_ACCESS", STEER_ACCESS.0.into()),
        ("LOCATION_PORT", mac_locations::Key::PORT.into()),
        ("LOCATION_REMOTE", mac_locations::Key::REMOTE.into()),
        ("LOCATION_HOST", mac_locations::Key::HOST.into()),
        ("OFFLOAD_FIVE_TUPLE", entries::FIVE_TUPLE.into()),
        ("OFFLOAD_TOS_INHERIT", entries::TOS_INHERIT.into()),
        ("OFFLOAD_TTL_INHERIT", entries::TTL_INHERIT.into()),
        ("OFFLOAD_DF_SET", entries::DF_SET.into()),
        ("OFFLOAD_DF_INHERIT", entries::DF_INHERIT.into()),
        ("OFFLOAD_CHECKSUM", entries::CHECKSUM.into()),
        ("OFFLOAD_LEARNS", entries::LEARNS.into()),
        ("OFFLOAD_IPV6", entries::IPV6.into()),
        ("OFFLOAD_NO_CHECKSUM", entries::NO_CHECKSUM.into()),
        ("OFFLOAD_PINS", entries::PINS.into()),
        ("OFFLOAD_PORT_LABEL", entries::PORT_LABEL.into()),
        ("LEARN_UNIT_SHIFT", entries::LEARN_UNIT_SHIFT.into()),
        ("OFFLOAD_PINNED", PINNED.into()),
        ("PLACED", PLACED.into()),
        ("OFFLOAD_ADDRESSES", ADDRESSES.into()),
        ("OFFLOAD_VNIS", VNIS.into()),
        ("OFFLOAD_VTEPS", VTEPS.into()),
        ("OFFLOAD_GROUPS", GROUPS.into()),
        ("OFFLOAD_HOPS", HOPS.into()),
        ("OFFLOAD_PATHS", traffic::PATHS.into()),
        ("OFFLOAD_SINGLE", SINGLE.into()),
        ("OFFLOAD_MOVING", MOVING),
        ("OFFLOAD_NO_HOPS", NO_HOPS.into()),
        ("BUCKETS", path::BUCKETS as u64),
        ("SHORTEST_INNER", pipeline::SHORTEST_INNER as u64),
        ("PORT_ROCE", wire::number::PORT_ROCE.into()),
        ("COUNTS", counts::NAMES.len() as u64),
        ("DROPPED_HEADERS", dropped::HEADERS as u64),
        ("DROPPED_A_SECOND", dropped::A_SECOND),
        ("DROPPED_REASONS", dropped::REASONS as u64),
        ("DROPPED_FAILED", DropCause::Failed as u64),
        ("DROPPED_UNKNOWN_SLOT", DropCause::UnknownSlot as u64),
        ("DROPPED_OF_UPLINK", Sender::Uplink as u64),
        ("DROPPED_OF_HOST", Sender::Host as u64),
        ("DROPPED_OF_WORKER", Sender::Worker as u64),
    ]);
    let counts = counts::NAMES.iter().map(|name| format!("COUNT_{}", name.to_uppercase()));
    let counts: Vec<String> = counts.collect();
    expected.extend(counts.iter().map(String::as_str).zip(0..));
    for (name, rust) in &expected {
        assert_eq!(constants.get(*name), Some(rust), "{name}: C and Rust");
    }
    // None of these is left out.
    let of_kind = |name: &&str| {
        ["HOOK_", "COUNT_", "LOCATION_", "OFFLOAD_", "DROPPED_"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let all: BTreeSet<&str> = constants.keys().map(String::as_str).filter(of_kind).collect();
    assert_eq!(all, expected.keys().copied().filter(of_kind).collect());
    assert_eq!(STEERS.len(), all.iter().filter(|name| name.starts_with("HOOK_")).count());
}

/// Sizes of maps that Rust relies on.
#[test]
fn maps_have_room() {
    let code = code();
    let constants = constants(&code);
    let maps = maps(&code);
    let entries = |map: &str| {
        let sum = maps[map][0].split('+').map(|product| {
            let factor = |text| number(text).unwrap_or_else(|| constants[text.trim()]);
            product.split('*').map(factor).product::<u64>()
        });
        sum.sum::<u64>()
    };
    assert_eq!(entries("port_counts"), u64::from(Numbers::MOST));
    assert_eq!(entries("bypass_ports"), u64::from(Numbers::MOST));
    assert_eq!(entries("kill_switch"), STEERS.len() as u64);
    let words = WORDS * MOST_WORKERS + WORDS;
    assert_eq!(entries("waiting_since"), words as u64, "room for HEARTBEAT_WORD");
    assert_eq!(entries("offload_pinned"), u64::from(PINNED));
    assert_eq!(entries("placed_indices"), u64::from(PLACED));
    assert_eq!(entries("offload_vni_traffic"), u64::from(traffic::COUNTED));
    assert_eq!(entries("offload_vtep_traffic"), u64::from(traffic::COUNTED));
    let slots = u64::from(tables::VniIndex::MAX);
    assert!(
        ["slots", "offload_slots", "taken_netdevs", "taken_tunnels"]
            .iter()
            .all(|map| entries(map) > slots)
    );
}
