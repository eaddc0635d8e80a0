//! The next hops that the kernel chooses for the source ports of packets to a VTEP, as it tells by
//! route lookups. Kernel VXLAN sends by them.
//!
//! With the policy 3 (`fib_multipath_hash_policy`), lookups by netlink hash otherwise than VXLAN
//! does (`fib_multipath_custom_hash_skb()` and `fib_multipath_custom_hash_fl4()` in
//! `net/ipv4/route.c`). Those of a BPF program do not, but need an interface that forwards.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use bpf::RouteLookup;
use netlink::{Requests, SentPacket};
use path::{PathId, SourcePortRange, Version};
use pathmap::Prober;
use pathmap::placer::Target;

/// Lookups at once. They take a few milliseconds.
const AT_ONCE: usize = 256;
/// How often ports in use are looked up again, and one other port.
const AGAIN: Duration = Duration::from_secs(1);

/// The identities of next hops, by interface and gateway.
pub(super) type Gateways = BTreeMap<(u32, IpAddr), u64>;

/// What tells by which of several next hops VXLAN sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Netlink,
    Program,
    Nothing,
}

/// Asks the kernel.
#[derive(Debug)]
pub(super) struct Lookups {
    requests: Requests,
    program: Option<RouteLookup>,
    /// How many are left until [`Self::renew`].
    left: usize,
    /// What tells over IPv4 and over IPv6.
    by: [By; 2],
    looked: Duration,
}

/// What tells over this family, by the settings of the calling thread's network namespace.
fn by(family: &str, has_program: bool) -> By {
    let setting = |name: &str| {
        let value = std::fs::read_to_string(format!("/proc/sys/net/{family}/{name}"));
        value.unwrap_or_default().trim().to_owned()
    };
    // Without multipath routes, there is no policy.
    if setting("fib_multipath_hash_policy") != "3" {
        By::Netlink
    } else if has_program && setting("conf/lo/forwarding") == "1" {
        By::Program
    } else {
        By::Nothing
    }
}

impl Lookups {
    /// Opens a socket in the calling thread's network namespace.
    pub(super) fn open(program: Option<RouteLookup>) -> Result<Self, netlink::Error> {
        let (requests, by) = (Requests::open()?, [By::Netlink; 2]);
        Ok(Self { requests, program, left: AT_ONCE, by, looked: Duration::MAX })
    }

    /// Allows lookups again.
    pub(super) fn renew(&mut self, now: Duration) {
        self.left = AT_ONCE;
        if now.abs_diff(self.looked) < AGAIN {
            return;
        }
        self.looked = now;
        let has_program = self.program.is_some();
        let now = ["ipv4", "ipv6"].map(|family| by(family, has_program));
        let before = std::mem::replace(&mut self.by, now);
        for ((family, before), now) in ["ipv4", "ipv6"].into_iter().zip(before).zip(now) {
            if before != now && now == By::Nothing {
                tracing::warn!(
                    "net.{family}.fib_multipath_hash_policy is 3 and net.{family}.conf.lo.forwarding 0: the \
                     kernel does not tell by which of several next hops VXLAN sends, and qp-pin in the kernel \
                     datapath is qp-hash"
                );
            }
        }
    }

    /// Whether none is left until [`Self::renew`].
    pub(super) const fn are_used_up(&self) -> bool {
        self.left == 0
    }

    fn by(&self, target: Target) -> By {
        let [ipv4, ipv6] = self.by;
        if target.address.is_ipv4() { ipv4 } else { ipv6 }
    }

    fn next_hop(&mut self, by: By, packet: &SentPacket) -> Option<(u32, IpAddr)> {
        self.left = self.left.saturating_sub(1);
        let SentPacket { source, destination, ports, .. } = *packet;
        let found = match (by, &mut self.program) {
            (By::Program, Some(program)) => {
                program.next_hop((source, destination), ports).map_err(|error| error.to_string())
            }
            _ => self.requests.next_hop(packet).map_err(|error| error.to_string()),
        };
        found.unwrap_or_else(|error| {
            tracing::debug!("{error}");
            None
        })
    }
}

/// How kernel VXLAN sends packets to a VTEP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sender {
    /// The source ports that it can have.
    pub(super) range: SourcePortRange,
    /// The mark of its packets.
    pub(super) mark: u32,
}

/// The choices for one VTEP.
#[derive(Debug)]
pub(super) struct Choices {
    sender: Sender,
    gateways: Gateways,
    by_port: BTreeMap<u16, Option<u64>>,
    /// Ports to look up again.
    stale: BTreeSet<u16>,
    /// What told the choices.
    by: By,
    looked: Duration,
    /// What the prober knew when new ports were looked for.
    probed: Option<Version<Prober>>,
    /// The port that was looked up last without being in use.
    turn: u16,
    version: Version<Self>,
}

impl Choices {
    /// Nothing is known yet.
    pub(super) fn new(sender: Sender, gateways: Gateways) -> Self {
        let (by_port, stale, looked, probed) = Default::default();
        Self {
            sender,
            gateways,
            by_port,
            stale,
            by: By::Netlink,
            looked,
            probed,
            turn: 0,
            version: Version::NONE,
        }
    }

    /// Whether the choices are those for these next hops.
    pub(super) fn are_for(&self, sender: Sender, gateways: &Gateways) -> bool {
        self.sender == sender && self.gateways == *gateways
    }

    /// Whether the choices are those of this sender.
    pub(super) fn is_of(&self, sender: Sender) -> bool {
        self.sender == sender
    }

    /// Other next hops: all ports are looked up again, those in use first. Until then, they have the
    /// old ones.
    pub(super) fn set_gateways(&mut self, gateways: Gateways) {
        self.gateways = gateways;
        self.stale = self.by_port.keys().copied().collect();
    }

    /// A number that changes when a choice does.
    pub(super) const fn version(&self) -> Version<Self> {
        self.version
    }

    /// Whether the kernel sends packets with this port by this next hop.
    pub(super) fn has(&self, path: PathId) -> bool {
        self.by_port.get(&path.source_port) == Some(&Some(path.hop))
    }

    /// Whether the kernel sends packets with the port of this path by another next hop, or by none.
    pub(super) fn has_left(&self, path: PathId) -> bool {
        self.by_port.get(&path.source_port).is_some_and(|hop| *hop != Some(path.hop))
    }

    /// Looks up the next hop of a port.
    pub(super) fn look_up(
        &mut self,
        lookups: &mut Lookups,
        target: Target,
        port: u16,
    ) -> Option<u64> {
        let Sender { range, mark } = self.sender;
        let Target { local: source, address: destination, port: to, .. } = target;
        let packet = SentPacket { source, destination, ports: (port, to), mark };
        // A single next hop depends on no hash.
        let by = if self.gateways.len() <= 1 { By::Netlink } else { lookups.by(target) };
        let is_asked = by != By::Nothing && range.contains(port);
        let found = if is_asked { lookups.next_hop(by, &packet) } else { None };
        found.and_then(|by| self.gateways.get(&by).copied())
    }

    fn renew(&mut self, lookups: &mut Lookups, target: Target, port: u16) {
        let hop = self.look_up(lookups, target, port);
        self.stale.remove(&port);
        if self.by_port.insert(port, hop) != Some(hop) {
            self.version = self.version.next();
        }
    }

    /// Looks up what is not known of the ports that are probed, and from time to time what may have
    /// changed, as far as `lookups` allow. Resilient groups change choices without a new route.
    pub(super) fn follow(
        &mut self,
        lookups: &mut Lookups,
        target: Target,
        prober: &Prober,
        now: Duration,
    ) {
        let used = || prober.used().iter().map(|path| path.source_port);
        if std::mem::replace(&mut self.by, lookups.by(target)) != self.by {
            self.stale.extend(self.by_port.keys());
        }
        if now.saturating_sub(self.looked) >= AGAIN {
            self.looked = now;
            self.stale.extend(used());
            let next = self.by_port.range(self.turn.saturating_add(1)..).next();
            let next = next.or_else(|| self.by_port.first_key_value());
            self.turn = next.map_or(0, |(port, _)| *port);
            self.stale.extend(next.map(|(port, _)| *port));
        }
        let mut new = BTreeSet::new();
        if self.probed != Some(prober.version()) {
            // At most as many ports as may be probed are known: others are probed in place of some.
            let probed: BTreeSet<u16> = prober.paths().map(|path| path.source_port).collect();
            let in_use: BTreeSet<u16> = used().collect();
            self.by_port.retain(|port, _| probed.contains(port) || in_use.contains(port));
            self.stale.retain(|port| self.by_port.contains_key(port));
            new.extend(probed.into_iter().filter(|port| !self.by_port.contains_key(port)));
            // Otherwise it is done again.
            self.probed = (new.len() <= lookups.left).then(|| prober.version());
        }
        if new.is_empty() && self.stale.is_empty() {
            return;
        }
        let stale = || self.stale.iter().copied();
        let first: BTreeSet<u16> = used().filter(|port| self.stale.contains(port)).collect();
        let rest = stale().filter(|port| !first.contains(port));
        let all: Vec<u16> = first.iter().copied().chain(new).chain(rest).collect();
        for port in all.into_iter().take(lookups.left) {
            self.renew(lookups, target, port);
        }
    }
}
