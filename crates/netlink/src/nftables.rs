//! Reads the rules of nftables (`include/uapi/linux/netfilter/nf_tables.h`).
//!
//! Rules of families that VXLAN packets over IPv4 do not pass are left out. Expressions that are
//! not understood are treated conservatively: a test may pass, and an action may change the packet.

use std::collections::HashMap;

use nix::libc::{EINVAL, EOPNOTSUPP};

use crate::attribute::{Attribute, Attributes};
use crate::encode::{DUMP, REQUEST, Request};
use crate::error::Error;
use crate::request::{ATTEMPTS, Requests};
use crate::rules::{BaseChain, Effect, Field, NamePattern, PacketRule, RuleChain, RuleHook, Test};
use crate::xtables;

/// `NFNL_SUBSYS_NFTABLES`.
const NFTABLES: u16 = 10 << 8;
const NEW_CHAIN: u16 = NFTABLES | 3;
const GET_CHAIN: u16 = NFTABLES | 4;
const NEW_RULE: u16 = NFTABLES | 6;
const GET_RULE: u16 = NFTABLES | 7;

/// The nftables rules in the calling thread's network namespace that IPv4 packets of this host may
/// pass. Empty if the kernel has no nftables.
///
/// # Errors
/// When the kernel refuses.
pub fn packet_rules() -> Result<Vec<RuleChain>, Error> {
    match read() {
        Err(error) if error.is_missing_protocol() => Ok(Vec::new()),
        // Without nftables, the nfnetlink subsystem is missing (`nfnetlink_rcv_msg()`).
        Err(error) if matches!(error.refusal(), Some(EINVAL | EOPNOTSUPP)) => Ok(Vec::new()),
        chains => chains,
    }
}

fn read() -> Result<Vec<RuleChain>, Error> {
    let mut requests = Requests::open_netfilter()?;
    let mut chains = dump_chains(&mut requests, |chains: &mut Vec<_>, payload| {
        chains.extend(chain(payload));
    })?;
    let kinds = (GET_RULE, NEW_RULE);
    let rules =
        dump(&mut requests, "read nftables rules", kinds, |rules: &mut Vec<_>, payload| {
            rules.extend(rule(payload));
        })?;
    let mut by_chain: HashMap<_, Vec<PacketRule>> = HashMap::new();
    for (key, rule) in rules {
        by_chain.entry(key).or_default().push(rule);
    }
    for chain in &mut chains {
        let key = (chain.family, chain.table.clone(), chain.name.clone());
        chain.rules = by_chain.remove(&key).unwrap_or_default();
    }
    Ok(chains)
}

/// What `add` makes of all chains: of each, it gets `struct nfgenmsg` and attributes.
pub(crate) fn dump_chains<T: Default>(
    requests: &mut Requests,
    add: impl Fn(&mut T, &[u8]),
) -> Result<T, Error> {
    dump(requests, "read nftables chains", (GET_CHAIN, NEW_CHAIN), add)
}

fn dump<T: Default>(
    requests: &mut Requests,
    operation: &str,
    (get, new): (u16, u16),
    add: impl Fn(&mut T, &[u8]),
) -> Result<T, Error> {
    // `struct nfgenmsg`: family (any), version, resource.
    let request = Request::new(get, REQUEST | DUMP, &[0; 4]);
    for _ in 0..ATTEMPTS {
        let mut found = T::default();
        let whole = requests.collect(operation, &request, |envelope| {
            if envelope.kind == new {
                add(&mut found, envelope.payload);
            }
        })?;
        if whole {
            return Ok(found);
        }
    }
    Err(Error::Interrupted { operation: operation.into(), attempts: ATTEMPTS })
}

/// `NFPROTO_INET`, `NFPROTO_IPV4` and `NFPROTO_NETDEV`.
const fn family_name(family: u8) -> Option<&'static str> {
    match family {
        1 => Some("inet"),
        2 => Some("ip"),
        5 => Some("netdev"),
        _ => None,
    }
}

fn chain(payload: &[u8]) -> Option<RuleChain> {
    let (&[number, ..], attributes) = payload.split_first_chunk::<4>()?;
    let family = family_name(number)?;
    let (mut table, mut name, mut place, mut drops) = (String::new(), String::new(), None, false);
    for attribute in Attributes::new(attributes, 0).map_while(Result::ok) {
        match attribute.kind {
            1 => table = attribute.string(),
            3 => name = attribute.string(),
            4 => place = Some(attribute.nested()),
            // NF_DROP
            5 => drops = attribute.u32_network_order() == Ok(0),
            _ => {}
        }
    }
    let base = match place {
        None => None,
        Some(place) => {
            let (mut hook, mut devices) = (None, Vec::new());
            for attribute in place.map_while(Result::ok) {
                match attribute.kind {
                    1 => hook = attribute.u32_network_order().ok(),
                    3 => devices.push(NamePattern { text: attribute.string(), prefix: false }),
                    // NFTA_HOOK_DEVS: NFTA_DEVICE_NAME, NFTA_DEVICE_PREFIX
                    4 => devices.extend(attribute.nested().map_while(Result::ok).map(|device| {
                        NamePattern { text: device.string(), prefix: device.kind != 1 }
                    })),
                    _ => {}
                }
            }
            let hook = match (number, hook?) {
                (5, 0) | (1, 5) => RuleHook::Ingress,
                (5, _) => RuleHook::Egress,
                (_, hook) => RuleHook::of_ipv4(hook)?,
            };
            Some(BaseChain { hook, devices, drops })
        }
    };
    Some(RuleChain { family, table, name, base, rules: Vec::new() })
}

type ChainKey = (&'static str, String, String);

fn rule(payload: &[u8]) -> Option<(ChainKey, PacketRule)> {
    let (&[number, ..], attributes) = payload.split_first_chunk::<4>()?;
    let family = family_name(number)?;
    let (mut table, mut chain, mut handle) = (String::new(), String::new(), 0);
    let mut expressions = Attributes::new(&[], 0);
    for attribute in Attributes::new(attributes, 0).map_while(Result::ok) {
        match attribute.kind {
            1 => table = attribute.string(),
            2 => chain = attribute.string(),
            3 => {
                handle =
                    attribute.payload.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
            }
            4 => expressions = attribute.nested(),
            _ => {}
        }
    }
    let mut reader = Reader::default();
    let effect = expressions.map_while(Result::ok).find_map(|element| reader.expression(&element));
    let rule =
        PacketRule { handle, tests: reader.tests, effect: effect.unwrap_or(Effect::Nothing) };
    Some(((family, table, chain), rule))
}

/// The content of a register.
#[derive(Debug, Clone)]
enum Loaded {
    /// Bytes of a header, and the bits that a mask keeps.
    Payload {
        base: u32,
        offset: usize,
        mask: Vec<u8>,
    },
    Field(Field),
    Interface {
        received: bool,
    },
    InterfaceIndex {
        received: bool,
    },
}

/// Translates the expressions of a rule into tests and an effect.
#[derive(Debug, Default)]
struct Reader {
    registers: HashMap<u32, Loaded>,
    tests: Vec<Test>,
}

/// An attribute of an expression.
fn find<'a>(attributes: &Attributes<'a>, kind: u16) -> Option<Attribute<'a>> {
    attributes.clone().map_while(Result::ok).find(|attribute| attribute.kind == kind)
}

fn number(attributes: &Attributes<'_>, kind: u16) -> Option<u32> {
    find(attributes, kind)?.u32_network_order().ok()
}

/// The `NFTA_DATA_VALUE` inside an attribute.
fn data<'a>(attributes: &Attributes<'a>, kind: u16) -> Option<&'a [u8]> {
    find(&find(attributes, kind)?.nested(), 1).map(|value| value.payload)
}

impl Reader {
    /// Evaluates one expression. Returns the effect if it ends the rule.
    fn expression(&mut self, element: &Attribute<'_>) -> Option<Effect> {
        let element = element.nested();
        let name = find(&element, 1).map(|name| name.string()).unwrap_or_default();
        let of = find(&element, 2).map_or_else(|| Attributes::new(&[], 0), |data| data.nested());
        match name.as_str() {
            "counter" | "last" | "notrack" => {}
            // NFT_OBJECT_COUNTER
            "objref" if number(&of, 1) == Some(1) => {}
            "payload" => return self.payload(&of),
            "meta" => return self.meta(&of),
            "bitwise" => self.bitwise(&of),
            "cmp" => self.compare(&of),
            "range" => self.range(&of),
            "immediate" => return self.immediate(&of),
            // These expressions load values that are not tracked, so a later comparison is not
            // understood. `ct` can also write, and so can `exthdr`, which is not among them. The
            // attribute for the destination register differs between expressions, so all registers
            // are cleared.
            "rt" | "fib" | "socket" | "osf" | "hash" | "numgen" | "byteorder" => {
                self.registers.clear()
            }
            "ct" if find(&of, 4).is_none() => self.registers.clear(),
            "limit" | "quota" | "connlimit" => self.tests.push(Test::Unknown),
            // A map to verdicts (destination register 0) or to data, or a test for membership in a
            // set.
            "lookup" => match number(&of, 3) {
                Some(0) => return Some(Effect::Other),
                Some(register) => drop(self.registers.remove(&register)),
                None => self.tests.push(Test::Unknown),
            },
            "match" => {
                let (name, data) = extension(&of);
                xtables::add_tests(&mut self.tests, &name, data);
            }
            "target" => {
                let (name, data) = extension(&of);
                return Some(xtables::effect(&name, data))
                    .filter(|effect| *effect != Effect::Nothing);
            }
            _ => return Some(Effect::Other),
        }
        None
    }

    fn payload(&mut self, of: &Attributes<'_>) -> Option<Effect> {
        if find(of, 5).is_some() {
            return Some(Effect::Other);
        }
        // A load may overlap earlier ones under another number (32-bit and 128-bit registers).
        self.registers.clear();
        if let (Some(register), Some(base), Some(offset), Some(length @ 1..=64)) =
            (number(of, 1), number(of, 2), number(of, 3), number(of, 4))
        {
            let loaded = Loaded::Payload {
                base,
                offset: offset as usize,
                mask: vec![0xff; length as usize],
            };
            self.registers.insert(register, loaded);
        }
        None
    }

    fn meta(&mut self, of: &Attributes<'_>) -> Option<Effect> {
        if find(of, 3).is_some() {
            return Some(Effect::Other);
        }
        self.registers.clear();
        let loaded = match number(of, 2) {
            Some(1) => Loaded::Field(Field::EtherType),
            Some(4) => Loaded::InterfaceIndex { received: true },
            Some(5) => Loaded::InterfaceIndex { received: false },
            Some(6) => Loaded::Interface { received: true },
            Some(7) => Loaded::Interface { received: false },
            Some(15) => Loaded::Field(Field::Family),
            Some(16) => Loaded::Field(Field::Protocol),
            _ => return None,
        };
        if let Some(register) = number(of, 1) {
            self.registers.insert(register, loaded);
        }
        None
    }

    fn bitwise(&mut self, of: &Attributes<'_>) {
        let source = number(of, 1).and_then(|register| self.registers.remove(&register));
        self.registers.clear();
        // NFTA_BITWISE_OP 0: (source & mask) ^ xor
        let plain = number(of, 6).unwrap_or(0) == 0;
        let xor = data(of, 5).is_none_or(|xor| xor.iter().all(|byte| *byte == 0));
        if let (Some(Loaded::Payload { base, offset, mask }), Some(and), Some(to), true, true) =
            (source, data(of, 4), number(of, 2), plain, xor)
        {
            let mask = mask.iter().zip(and).map(|(a, b)| a & b).collect();
            self.registers.insert(to, Loaded::Payload { base, offset, mask });
        }
    }

    fn compare(&mut self, of: &Attributes<'_>) {
        let loaded = number(of, 1).and_then(|register| self.registers.get(&register).cloned());
        let (Some(loaded), Some(operation), Some(value)) = (loaded, number(of, 2), data(of, 3))
        else {
            return self.tests.push(Test::Unknown);
        };
        match (loaded, operation) {
            (Loaded::Interface { received }, 0 | 1) => {
                let end = value.iter().position(|byte| *byte == 0);
                let text = String::from_utf8_lossy(
                    value.get(..end.unwrap_or(value.len())).unwrap_or_default(),
                );
                let pattern = NamePattern { text: text.into_owned(), prefix: end.is_none() };
                self.tests.push(Test::Interface { received, pattern, negated: operation == 1 });
            }
            (Loaded::InterfaceIndex { received }, 0 | 1) => {
                let test =
                    value.first_chunk().map_or(Test::Unknown, |ifindex| Test::InterfaceIndex {
                        received,
                        ifindex: u32::from_ne_bytes(*ifindex),
                        negated: operation == 1,
                    });
                self.tests.push(test);
            }
            (loaded, 0 | 1) => self.equals(&loaded, value, operation == 1),
            (loaded, 2..=5) => match (whole_field(&loaded, value.len()), big_endian(value)) {
                (Some(field), Some(value)) => {
                    let (low, high, negated) = match operation {
                        2 => (value, u32::MAX, true),
                        3 => (0, value, false),
                        4 => (0, value, true),
                        _ => (value, u32::MAX, false),
                    };
                    self.tests.push(Test::Field { field, mask: u32::MAX, low, high, negated });
                }
                _ => self.tests.push(Test::Unknown),
            },
            _ => self.tests.push(Test::Unknown),
        }
    }

    fn range(&mut self, of: &Attributes<'_>) {
        let loaded = number(of, 1).and_then(|register| self.registers.get(&register));
        let test = || {
            let (from, to) = (data(of, 3)?, data(of, 4)?);
            let field = whole_field(loaded?, from.len())?;
            let (low, high) = (big_endian(from)?, big_endian(to)?);
            Some(Test::Field { field, mask: u32::MAX, low, high, negated: number(of, 2)? == 1 })
        };
        let test = test().unwrap_or(Test::Unknown);
        self.tests.push(test);
    }

    /// Adds tests for compared bytes, field by field.
    fn equals(&mut self, loaded: &Loaded, value: &[u8], negated: bool) {
        let (base, offset, mask) = match loaded {
            Loaded::Payload { base, offset, mask } => (*base, *offset, mask),
            Loaded::Field(field) => {
                let test = big_endian(value)
                    .map_or(Test::Unknown, |value| Test::equals(*field, value, negated));
                return self.tests.push(test);
            }
            Loaded::Interface { .. } | Loaded::InterfaceIndex { .. } => {
                return self.tests.push(Test::Unknown);
            }
        };
        let mut tests = Vec::new();
        let mut covered = 0;
        for (field, of, start, length) in FIELDS {
            let (mut bits, mut wanted, mut any) = (0u32, 0u32, false);
            for byte in start..start + length {
                let index = byte.checked_sub(offset).filter(|_| of == base);
                let pair = index.and_then(|index| Some((*mask.get(index)?, *value.get(index)?)));
                any |= pair.is_some();
                covered += usize::from(pair.is_some());
                let (byte_mask, byte_value) = pair.unwrap_or((0, 0));
                bits = bits << 8 | u32::from(byte_mask);
                wanted = wanted << 8 | u32::from(byte_value);
            }
            if any {
                tests.push(Test::Field { field, mask: bits, low: wanted, high: wanted, negated });
            }
        }
        let all = covered == value.len() && value.len() <= mask.len();
        match tests.as_slice() {
            // The negation of a conjunction cannot be expressed as a list of tests.
            [_] if all => self.tests.append(&mut tests),
            _ if negated => self.tests.push(Test::Unknown),
            _ => {
                self.tests.append(&mut tests);
                if !all {
                    self.tests.push(Test::Unknown);
                }
            }
        }
    }

    fn immediate(&mut self, of: &Attributes<'_>) -> Option<Effect> {
        if number(of, 1) != Some(0) {
            self.registers.clear();
            return None;
        }
        let verdict = find(of, 2).and_then(|data| find(&data.nested(), 2));
        let Some(verdict) = verdict.map(|verdict| verdict.nested()) else {
            return Some(Effect::Other);
        };
        let chain = find(&verdict, 2).map(|chain| chain.string());
        Some(match (number(&verdict, 1).unwrap_or(0).cast_signed(), chain) {
            (1, _) => Effect::Accept,
            // NFT_CONTINUE and NFT_BREAK
            (-1 | -2, _) => Effect::Nothing,
            (-3, Some(chain)) => Effect::Jump(chain),
            (-4, Some(chain)) => Effect::Goto(chain),
            (-5, _) => Effect::Return,
            _ => Effect::Other,
        })
    }
}

/// The name and the data of an iptables extension.
fn extension<'a>(of: &Attributes<'a>) -> (String, &'a [u8]) {
    let name = find(of, 1).map(|name| name.string()).unwrap_or_default();
    (name, find(of, 3).map_or(&[], |data| data.payload))
}

/// Fields with their header (`NFT_PAYLOAD_NETWORK_HEADER`, `_TRANSPORT_HEADER`), offset and length
/// in bytes.
const FIELDS: [(Field, u32, usize, usize); 5] = [
    (Field::Protocol, 1, 9, 1),
    (Field::Source, 1, 12, 4),
    (Field::Destination, 1, 16, 4),
    (Field::SourcePort, 2, 0, 2),
    (Field::DestinationPort, 2, 2, 2),
];

/// The field that the loaded bytes represent completely and without a mask.
fn whole_field(loaded: &Loaded, length: usize) -> Option<Field> {
    let Loaded::Payload { base, offset, mask } = loaded else { return None };
    let unmasked = mask.len() == length && mask.iter().all(|byte| *byte == 0xff);
    let found =
        FIELDS.iter().find(|(_, of, start, size)| (of, start, *size) == (base, offset, length));
    found.filter(|_| unmasked).map(|(field, ..)| *field)
}

fn big_endian(bytes: &[u8]) -> Option<u32> {
    (bytes.len() <= 4).then(|| bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
}
