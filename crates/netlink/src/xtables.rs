//! Rules of iptables: tables of legacy iptables (`include/uapi/linux/netfilter_ipv4/ip_tables.h`),
//! and its matches and targets, which nftables can also call (`x_tables.h`, `xt_tcpudp.h`,
//! `xt_CT.h`).
//!
//! ```text
//! struct ipt_entry: offsets in bytes
//!   0 source  4 destination  8 their masks  16 interfaces (2 × 16)  48 their masks
//!  80 protocol (u16)  82 flags  83 inverted tests  88 offset of the target (u16)  90 of the next entry (u16)
//! 112 matches, then the target: size (u16), name (29), revision, and at 32 their data
//! ```

use std::collections::HashMap;

use crate::rules::{BaseChain, Effect, Field, NamePattern, PacketRule, RuleChain, RuleHook, Test};

/// The address family of these chains.
const FAMILY: &str = "iptables";
/// Bytes of a `struct ipt_entry` before its matches.
const ENTRY: usize = 112;
/// Bytes of a match or target before its data.
const EXTENSION: usize = 32;
/// `IPT_F_FRAG` and `IPT_F_GOTO`.
const FRAGMENTS: u8 = 0x01;
const GOTO: u8 = 0x02;
/// `-NF_ACCEPT - 1` and `XT_RETURN`.
const ACCEPT: i32 = -2;
const RETURN: i32 = -5;

/// A table of legacy iptables, in the kernel's format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegacyTable {
    /// Its name: `filter`, `nat`, `mangle`, `raw` or `security`.
    pub name: String,
    /// For each hook the byte offsets of the first entry of its chain and of its policy. `None` if
    /// the table has no chain there.
    pub hooks: [Option<(u32, u32)>; 5],
    /// The entries (`struct ipt_entry`).
    pub entries: Vec<u8>,
}

/// The chains of a table; `None` if its entries have an unknown form.
#[must_use]
pub fn legacy_chains(table: &LegacyTable) -> Option<Vec<RuleChain>> {
    let entries = entries(&table.entries)?;
    let names = chain_names(table, &entries)?;
    let mut chains: Vec<RuleChain> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if let Some(name) = names.get(&entry.offset) {
            let hook = hook_at(table, entry.offset);
            let base = hook.and_then(RuleHook::of_ipv4);
            // `of_ipv4` is `None` for the forward hook, whose packets are not from or to this host.
            let base = base.map(|hook| BaseChain { hook, devices: Vec::new(), drops: false });
            let (table, name) = (table.name.clone(), name.clone());
            chains.push(RuleChain { family: FAMILY, table, name, base, rules: Vec::new() });
        }
        let Some(chain) = chains.last_mut() else { continue };
        let is_policy =
            table.hooks.iter().flatten().any(|(_, policy)| usize_of(*policy) == entry.offset);
        if is_policy {
            if let Some(base) = &mut chain.base {
                base.drops = entry.verdict() != Some(ACCEPT);
            }
            continue;
        }
        // The entry only holds the name of the next chain.
        if entry.target_name() == "ERROR" {
            continue;
        }
        let following = entries.get(index.saturating_add(1)).map(|next| next.offset);
        let effect = entry.effect(following, &names)?;
        let handle = chain.rules.len().saturating_add(1) as u64;
        chain.rules.push(PacketRule { handle, tests: entry.tests(), effect });
    }
    Some(chains)
}

/// One entry of a table.
struct Entry<'a> {
    offset: usize,
    bytes: &'a [u8],
    target: usize,
}

fn entries(bytes: &[u8]) -> Option<Vec<Entry<'_>>> {
    let (mut found, mut offset) = (Vec::new(), 0);
    while offset < bytes.len() {
        let rest = bytes.get(offset..)?;
        let (target, next) = (usize::from(u16_at(rest, 88)?), usize::from(u16_at(rest, 90)?));
        let entry = rest
            .get(..next)
            .filter(|_| target >= ENTRY && next >= target.saturating_add(EXTENSION))?;
        found.push(Entry { offset, bytes: entry, target });
        offset = offset.checked_add(next)?;
    }
    Some(found)
}

fn hook_at(table: &LegacyTable, offset: usize) -> Option<u32> {
    let hooks = (0..).zip(table.hooks);
    hooks
        .filter_map(|(number, hook)| Some((number, hook?)))
        .find_map(|(number, (start, _))| (usize_of(start) == offset).then_some(number))
}

/// The offset and the name of each chain.
fn chain_names(table: &LegacyTable, entries: &[Entry<'_>]) -> Option<HashMap<usize, String>> {
    let mut names = HashMap::new();
    let known = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
    for (hook, name) in table.hooks.iter().zip(known) {
        if let Some((start, _)) = hook {
            names.insert(usize_of(*start), name.to_owned());
        }
    }
    for (header, first) in entries.iter().zip(entries.iter().skip(1)) {
        if header.target_name() == "ERROR" {
            let name = header.bytes.get(header.target.checked_add(EXTENSION)?..)?;
            names.insert(first.offset, text(name));
        }
    }
    Some(names)
}

impl Entry<'_> {
    fn target_name(&self) -> String {
        self.bytes.get(self.target..).map(extension_name).unwrap_or_default()
    }

    /// The verdict of the standard target.
    fn verdict(&self) -> Option<i32> {
        let data = self.bytes.get(self.target.checked_add(EXTENSION)?..)?;
        Some(i32::from_ne_bytes(*data.first_chunk()?))
    }

    fn effect(&self, following: Option<usize>, chains: &HashMap<usize, String>) -> Option<Effect> {
        let target = self.bytes.get(self.target..)?;
        let name = extension_name(target);
        if !name.is_empty() {
            return Some(self::effect(&name, target.get(EXTENSION..)?));
        }
        let goto = self.bytes.get(82)? & GOTO != 0;
        Some(match self.verdict()? {
            ACCEPT => Effect::Accept,
            RETURN => Effect::Return,
            verdict => match usize::try_from(verdict).ok() {
                None => Effect::Other,
                Some(to) if !goto && Some(to) == following => Effect::Nothing,
                Some(to) if goto => Effect::Goto(chains.get(&to)?.clone()),
                Some(to) => Effect::Jump(chains.get(&to)?.clone()),
            },
        })
    }

    fn tests(&self) -> Vec<Test> {
        let header = || {
            let flags = (*self.bytes.get(82)?, *self.bytes.get(83)?);
            let mut tests = Vec::new();
            for (field, address, mask, inverted) in
                [(Field::Source, 0, 8, 0x08), (Field::Destination, 4, 12, 0x10)]
            {
                let (value, mask) = (u32_be_at(self.bytes, address)?, u32_be_at(self.bytes, mask)?);
                let negated = flags.1 & inverted != 0;
                if mask != 0 || negated {
                    tests.push(Test::Field {
                        field,
                        mask,
                        low: value & mask,
                        high: value & mask,
                        negated,
                    });
                }
            }
            for (received, name, mask, inverted) in [(true, 16, 48, 0x01), (false, 32, 64, 0x02)] {
                let end = |start: usize| start.checked_add(16);
                let (name, mask) =
                    (self.bytes.get(name..end(name)?)?, self.bytes.get(mask..end(mask)?)?);
                let counted = mask.iter().take_while(|byte| **byte == 0xff).count();
                let negated = flags.1 & inverted != 0;
                if counted > 0 || negated {
                    let text = text(name.get(..counted)?);
                    // If the whole name is compared, the terminating zero is compared as well.
                    let pattern = NamePattern { prefix: text.len() >= counted, text };
                    tests.push(Test::Interface { received, pattern, negated });
                }
            }
            let protocol = u16_at(self.bytes, 80)?;
            if protocol != 0 {
                tests.push(Test::equals(Field::Protocol, u32::from(protocol), flags.1 & 0x40 != 0));
            }
            if flags.0 & FRAGMENTS != 0 {
                tests.push(Test::Unknown);
            }
            Some(tests)
        };
        let mut tests = header().unwrap_or_else(|| vec![Test::Unknown]);
        let mut matches = self.bytes.get(ENTRY..self.target).unwrap_or_default();
        while !matches.is_empty() {
            let size = u16_at(matches, 0).map_or(0, usize::from);
            let Some((this, rest)) = matches.split_at_checked(size).filter(|_| size >= EXTENSION)
            else {
                tests.push(Test::Unknown);
                break;
            };
            add_tests(&mut tests, &extension_name(this), this.get(EXTENSION..).unwrap_or_default());
            matches = rest;
        }
        tests
    }
}

/// Adds the tests of an iptables match.
pub(crate) fn add_tests(tests: &mut Vec<Test>, name: &str, data: &[u8]) {
    match name {
        "comment" => {}
        // `struct xt_udp`: lowest and highest source port, then the same for destination ports, in
        // host byte order; then flags for which of the two tests are inverted.
        "udp" => {
            let ranges = || {
                let inverted = *data.get(8)?;
                let mut found = Vec::new();
                for (field, at, bit) in [(Field::SourcePort, 0, 1), (Field::DestinationPort, 4, 2)]
                {
                    let (low, high) = (u16_at(data, at)?, u16_at(data, at.checked_add(2)?)?);
                    let negated = inverted & bit != 0;
                    if (low, high, negated) != (0, u16::MAX, false) {
                        let (low, high) = (u32::from(low), u32::from(high));
                        found.push(Test::Field { field, mask: u32::MAX, low, high, negated });
                    }
                }
                Some(found)
            };
            tests.extend(ranges().unwrap_or_else(|| vec![Test::Unknown]));
        }
        _ => tests.push(Test::Unknown),
    }
}

/// The effect of an iptables target.
pub(crate) fn effect(name: &str, data: &[u8]) -> Effect {
    match name {
        "NOTRACK" => Effect::Nothing,
        // Only `XT_CT_NOTRACK` is set.
        "CT" if u16_at(data, 0) == Some(1) => Effect::Nothing,
        _ => Effect::Other,
    }
}

fn extension_name(bytes: &[u8]) -> String {
    bytes.get(2..31).map(text).unwrap_or_default()
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

fn u32_be_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

const fn usize_of(offset: u32) -> usize {
    offset as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry with this protocol, match and target.
    fn entry(protocol: u16, matched: &[u8], target: &[u8]) -> Vec<u8> {
        let target_offset = ENTRY + matched.len();
        let mut bytes = vec![0; ENTRY];
        bytes[80..82].copy_from_slice(&protocol.to_ne_bytes());
        bytes[88..90].copy_from_slice(&(target_offset as u16).to_ne_bytes());
        bytes[90..92].copy_from_slice(&((target_offset + target.len()) as u16).to_ne_bytes());
        [bytes.as_slice(), matched, target].concat()
    }

    fn extension(name: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; EXTENSION];
        bytes[..2].copy_from_slice(&((EXTENSION + data.len()) as u16).to_ne_bytes());
        bytes[2..2 + name.len()].copy_from_slice(name.as_bytes());
        [bytes.as_slice(), data].concat()
    }

    fn verdict(number: i32) -> Vec<u8> {
        extension("", &[number.to_ne_bytes(), [0; 4]].concat())
    }

    /// INPUT with a rule for UDP port 4789 that jumps to the chain `own`, and with policy DROP.
    fn table() -> LegacyTable {
        let ports: Vec<u8> =
            [0u16, 0xffff, 4789, 4789, 0].iter().flat_map(|port| port.to_ne_bytes()).collect();
        let udp = extension("udp", &[ports.as_slice(), &[0; 6]].concat());
        let sizes = |parts: &[Vec<u8>]| parts.iter().map(Vec::len).sum::<usize>() as i32;
        let policy = entry(0, &[], &verdict(-1));
        let name = |name: &str| {
            let mut data = vec![0; 32];
            data[..name.len()].copy_from_slice(name.as_bytes());
            entry(0, &[], &extension("ERROR", &data))
        };
        let length = entry(17, &udp, &verdict(0)).len() as i32;
        let own = length + sizes(&[policy.clone(), name("own")]);
        let parts = [
            entry(17, &udp, &verdict(own)),
            policy,
            name("own"),
            entry(0, &[], &extension("LOG", &[0; 8])),
            entry(0, &[], &verdict(RETURN)),
            name("ERROR"),
        ];
        let hooks = [None, Some((0, length as u32)), None, None, None];
        LegacyTable { name: "filter".to_owned(), hooks, entries: parts.concat() }
    }

    #[test]
    fn chains_are_read() {
        let chains = legacy_chains(&table()).unwrap();
        let [input, own] = chains.as_slice() else { panic!("{chains:?}") };
        assert!(input.base.as_ref().is_some_and(|base| base.hook == RuleHook::Input && base.drops));
        let port = Test::equals(Field::DestinationPort, 4789, false);
        let rule = &input.rules[0];
        assert_eq!(rule.tests, [Test::equals(Field::Protocol, 17, false), port]);
        assert_eq!((&rule.effect, input.rules.len()), (&Effect::Jump("own".to_owned()), 1));
        assert_eq!((own.name.as_str(), &own.base), ("own", &None));
        let effects: Vec<_> = own.rules.iter().map(|rule| &rule.effect).collect();
        assert_eq!(effects, [&Effect::Other, &Effect::Return]);
    }

    /// Truncated entries have an unknown form, unless the end is at an entry's boundary. Nothing
    /// panics.
    #[test]
    fn damaged_tables_are_no_tables() {
        let whole = table();
        let boundaries: Vec<usize> =
            entries(&whole.entries).unwrap().iter().map(|entry| entry.offset).collect();
        for length in 0..whole.entries.len() {
            let cut = LegacyTable { entries: whole.entries[..length].to_vec(), ..whole.clone() };
            assert!(legacy_chains(&cut).is_none() || boundaries.contains(&length), "{length}");
        }
        for index in 0..whole.entries.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged.entries[index] = value;
                let _ = legacy_chains(&damaged);
            }
        }
    }
}
