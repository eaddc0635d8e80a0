//! Standalone: VNIs with access ports of their own, as the configuration file describes them.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

use control::StandaloneVni;
use nix::unistd::User;
use ports::TapSettings;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use wire::{MacAddr, Vni};

mod open;

pub use open::{Access, AccessError};

/// The UDP port of VXLAN (RFC 7348 section 5).
const UDP_PORT: u16 = 4789;
/// Default ageing time of a silent station: IEEE 802.1Q-2022 table 8-6, and the kernel's bridge.
const AGEING: Duration = Duration::from_secs(300);
/// Default MTU of a TAP: what fits an underlay of 1500 bytes.
const TAP_MTU: u32 = 1450;
/// Queues that a TAP may have (`MAX_TAP_QUEUES`, `drivers/net/tun.c`).
const QUEUES: std::ops::RangeInclusive<u16> = 1..=256;
/// `IFNAMSIZ`: the longest interface name, including the terminating zero.
const NAME: usize = 16;

/// One `[[standalone]]` table of the file.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Section {
    /// The VNI. Required.
    vni: u32,
    /// An IPv4 address of this namespace. vtepd takes its UDP port. Required.
    local: Ipv4Addr,
    /// UDP port of VXLAN. Default: 4789.
    udp_port: Option<u16>,
    /// The flood list: VTEPs that receive broadcast, unknown unicast and multicast. Frames from
    /// other VTEPs are dropped (`unknown_vtep`).
    #[serde(default)]
    remotes: BTreeSet<Ipv4Addr>,
    /// Static entries: `{ "MAC" = "VTEP" }`.
    #[serde(default)]
    macs: BTreeMap<String, Ipv4Addr>,
    /// Seconds until a silent station is forgotten; 0: never. Default: 300.
    ageing: Option<u64>,
    /// Access ports, a list of tables. Required.
    ports: Vec<PortSection>,
}

/// Reads the `[[standalone]]` tables. The error for a single `[standalone]` table names the missing
/// brackets.
pub(crate) fn sections<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Section>, D::Error> {
    struct Tables;
    impl<'de> Visitor<'de> for Tables {
        type Value = Vec<Section>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("[[standalone]] tables, with two brackets: one for each VNI")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut tables: A) -> Result<Self::Value, A::Error> {
            let mut sections = Vec::new();
            while let Some(section) = tables.next_element()? {
                sections.push(section);
            }
            Ok(sections)
        }
    }
    from.deserialize_any(Tables)
}

#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct PortSection {
    /// An Ethernet interface without an address. vtepd takes all of its frames.
    interface: Option<String>,
    /// Instead of `interface`: a TAP that vtepd makes, with the kernel's stack behind it.
    tap: Option<String>,
    /// User who may open the TAP, by name or number.
    owner: Option<Owner>,
    /// The TAP stays when vtepd ends. Default: `false`.
    persistent: Option<bool>,
    /// Queues of the TAP, 1 to 256. Default: 1.
    queues: Option<u16>,
    /// MTU of the TAP. Default: 1450.
    mtu: Option<u32>,
}

/// A user, by number or by name.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Owner {
    /// The number.
    Id(u32),
    /// The name, as passwd(5) has it.
    Name(String),
}

/// The standalone VNIs of the configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standalone {
    /// The VNIs, for the control task.
    pub vnis: Vec<StandaloneVni>,
    ports: Vec<Port>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    vni: Vni,
    ageing: Option<Duration>,
    kind: PortKind,
}

/// An access port, as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSummary {
    /// The VNI of the port.
    pub vni: Vni,
    /// How long silent stations of the VNI are kept; `None` means forever.
    pub ageing: Option<Duration>,
    /// The interface's name.
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PortKind {
    Interface(String),
    Tap(TapSettings),
}

impl PortKind {
    fn name(&self) -> &str {
        match self {
            Self::Interface(name) => name,
            Self::Tap(settings) => &settings.name,
        }
    }
}

impl Standalone {
    /// Checks the file's tables and converts them.
    ///
    /// # Errors
    /// The key with a wrong value, and the problem.
    pub(crate) fn parse(sections: &[Section]) -> Result<Self, (String, String)> {
        let mut standalone = Self::default();
        for (section, index) in sections.iter().zip(1..) {
            let vni = Vni::try_from(section.vni)
                .map_err(|error| (format!("standalone {index}: vni"), error.to_string()))?;
            let wrong =
                |key: &str, problem: String| (format!("standalone VNI {vni}: {key}"), problem);
            if standalone.vnis.iter().any(|other| other.vni == vni) {
                return Err(wrong("vni", "another table has it already".to_owned()));
            }
            if !is_station(section.local) {
                return Err(wrong("local", format!("{} is no address of a VTEP", section.local)));
            }
            if section.udp_port == Some(0) {
                return Err(wrong("udp-port", "a UDP port is 1 to 65535".to_owned()));
            }
            let targets = section.remotes.iter().chain(section.macs.values());
            if let Some(remote) =
                targets.into_iter().find(|ip| !is_station(**ip) || **ip == section.local)
            {
                return Err(wrong("remotes", format!("{remote} is no remote VTEP's address")));
            }
            let mut macs = BTreeMap::new();
            for (text, remote) in &section.macs {
                let mac: MacAddr = text
                    .parse()
                    .map_err(|_| wrong("macs", format!("'{text}' is no MAC address")))?;
                if mac.is_group() || mac == MacAddr::ZERO {
                    return Err(wrong("macs", format!("{mac} is no station's address")));
                }
                macs.insert(mac, IpAddr::V4(*remote));
            }
            if section.ports.is_empty() {
                return Err(wrong("ports", "at least one port is required".to_owned()));
            }
            let ageing = section.ageing.map_or(AGEING, Duration::from_secs);
            for port in &section.ports {
                let kind = port.kind().map_err(|problem| wrong("ports", problem))?;
                if standalone.ports.iter().any(|other| other.kind.name() == kind.name()) {
                    return Err(wrong("ports", format!("{} is a port already", kind.name())));
                }
                let ageing = Some(ageing).filter(|ageing| !ageing.is_zero());
                standalone.ports.push(Port { vni, ageing, kind });
            }
            standalone.vnis.push(StandaloneVni {
                vni,
                local: IpAddr::V4(section.local),
                destination_port: section.udp_port.unwrap_or(UDP_PORT),
                remotes: section.remotes.iter().copied().map(IpAddr::V4).collect(),
                macs,
            });
        }
        Ok(standalone)
    }

    /// Whether the file describes no VNIs. Then vtepd takes over netdevs instead.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.vnis.is_empty()
    }

    /// The ports in the order of their numbers.
    #[must_use]
    pub fn port_summaries(&self) -> Vec<PortSummary> {
        let summary = |port: &Port| PortSummary {
            vni: port.vni,
            ageing: port.ageing,
            name: port.kind.name().to_owned(),
        };
        self.ports.iter().map(summary).collect()
    }
}

impl fmt::Display for Standalone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("off");
        }
        for (vni, place) in self.vnis.iter().zip(0..) {
            let StandaloneVni { vni: number, local, destination_port, remotes, macs } = vni;
            let separator = if place > 0 { "; " } else { "" };
            write!(
                f,
                "{separator}VNI {number} of {local}:{destination_port} to {remotes:?}, {} fixed",
                macs.len()
            )?;
            for Port { kind, ageing, .. } in self.ports.iter().filter(|port| port.vni == *number) {
                write!(f, ", {} ({} s)", kind.name(), ageing.unwrap_or_default().as_secs())?;
            }
        }
        Ok(())
    }
}

impl PortSection {
    fn kind(&self) -> Result<PortKind, String> {
        let Self { interface, tap, owner, persistent, queues, mtu } = self;
        let fits = |name: &String| {
            let good = !name.is_empty() && name.len() < NAME && !name.contains(['/', ' ', '%']);
            if good {
                Ok(name.clone())
            } else {
                Err(format!("'{name}' is no name of an interface"))
            }
        };
        match (interface, tap) {
            (Some(name), None) => {
                if owner.is_some() || persistent.is_some() || queues.is_some() || mtu.is_some() {
                    return Err(format!(
                        "{name}: only a tap has an owner, persistent, queues or an mtu"
                    ));
                }
                Ok(PortKind::Interface(fits(name)?))
            }
            (None, Some(name)) => {
                let queues = queues.unwrap_or(1);
                if !QUEUES.contains(&queues) {
                    return Err(format!("{name}: a TAP has 1 to 256 queues"));
                }
                let mtu = mtu.unwrap_or(TAP_MTU);
                if !(68..=65_521).contains(&mtu) {
                    return Err(format!("{name}: an MTU is 68 to 65521"));
                }
                let owner = owner.as_ref().map(Owner::id).transpose()?;
                let persistent = persistent.unwrap_or(false);
                Ok(PortKind::Tap(TapSettings { name: fits(name)?, owner, persistent, queues, mtu }))
            }
            _ => Err("a port is { interface = \"NAME\" } or { tap = \"NAME\" }".to_owned()),
        }
    }
}

impl FromStr for Owner {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Id))
    }
}

impl Owner {
    /// The user's number.
    pub(crate) fn id(&self) -> Result<u32, String> {
        let name = match self {
            Self::Id(id) => return Ok(*id),
            Self::Name(name) => name,
        };
        match User::from_name(name) {
            Ok(Some(user)) => Ok(user.uid.as_raw()),
            Ok(None) => Err(format!("there is no user '{name}'")),
            Err(error) => Err(format!("the user '{name}' cannot be looked up: {error}")),
        }
    }
}

fn is_station(address: Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_broadcast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::load;

    const PORTS: &str =
        "ports = [{ interface = \"eth1\" }, { tap = \"tap0\", owner = 7, queues = 2 }]\n";

    fn table(more: &str) -> String {
        format!("[[standalone]]\nvni = 10\nlocal = \"10.0.0.1\"\n{more}")
    }

    #[test]
    fn tables_become_vnis_and_ports() {
        let macs = "macs = { \"02:00:00:00:00:07\" = \"10.0.0.3\" }\n";
        let text = table(&format!("remotes = [\"10.0.0.2\"]\nageing = 0\n{macs}{PORTS}"));
        let configuration = load(&text, &[]).unwrap();
        let [vni] = configuration.settings.standalone.as_slice() else {
            panic!("{configuration:?}")
        };
        assert_eq!((vni.vni.get(), vni.destination_port), (10, 4789));
        assert_eq!(vni.remotes, BTreeSet::from([IpAddr::from([10, 0, 0, 2])]));
        assert_eq!(
            vni.macs,
            BTreeMap::from([(MacAddr([2, 0, 0, 0, 0, 7]), IpAddr::from([10, 0, 0, 3]))])
        );
        assert_eq!(configuration.fpm.address, None, "nobody has anything to say of netdevs");
        let Standalone { ports, .. } = &configuration.standalone;
        assert!(ports.iter().all(|port| port.ageing.is_none()), "0 is never");
        let settings = TapSettings {
            name: "tap0".to_owned(),
            owner: Some(7),
            persistent: false,
            queues: 2,
            mtu: TAP_MTU,
        };
        assert_eq!(ports[1].kind, PortKind::Tap(settings));
        assert_eq!(load(&table(PORTS), &[]).unwrap().standalone.ports[0].ageing, Some(AGEING));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let twice = format!("{}{}", table(PORTS), table("ports = [{ interface = \"eth2\" }]\n"));
        for (text, words) in [
            (table(""), "missing field `ports`"),
            (
                table(&format!("udp-port = 0\n{PORTS}")),
                "standalone VNI 10: udp-port: a UDP port is 1 to 65535",
            ),
            (
                table(PORTS).replace("[[standalone]]", "[standalone]"),
                "expected [[standalone]] tables, with two",
            ),
            (table("ports = []\n"), "standalone VNI 10: ports: at least one port"),
            (table("ports = [{}]\n"), "a port is { interface"),
            (table("ports = [{ interface = \"a\", tap = \"b\" }]\n"), "a port is { interface"),
            (table("ports = [{ interface = \"a\", mtu = 9000 }]\n"), "only a tap has"),
            (table("ports = [{ tap = \"a\", queues = 0 }]\n"), "1 to 256 queues"),
            (table("ports = [{ tap = \"a\", mtu = 67 }]\n"), "an MTU is 68"),
            (table("ports = [{ tap = \"sixteen-letters-\" }]\n"), "no name of an interface"),
            (
                table("ports = [{ tap = \"a\", owner = \"no such user\" }]\n"),
                "there is no user 'no such user'",
            ),
            (table("ports = [{ tap = \"a\" }, { interface = \"a\" }]\n"), "a is a port already"),
            (table(&format!("remotes = [\"10.0.0.1\"]\n{PORTS}")), "10.0.0.1 is no remote VTEP's"),
            (
                table(&format!("macs = {{ \"x\" = \"10.0.0.2\" }}\n{PORTS}")),
                "'x' is no MAC address",
            ),
            (table(PORTS).replace("vni = 10", "vni = 0"), "standalone 1: vni"),
            (table(PORTS).replace("10.0.0.1", "239.1.1.1"), "239.1.1.1 is no address of a VTEP"),
            (twice, "another table has it"),
        ] {
            let error = load(&text, &[]).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
