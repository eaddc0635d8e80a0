//! From the file to scenarios.

use std::collections::BTreeSet;

use spray::Values;
use spray::order::Tiers;

use super::units::{BitRate, Time};
use super::{Fabric, FaultKind, FaultSettings, FeedbackName, File, Queue, Read, Traffic, Variant};
use crate::arrivals::{self, Sizes};
use crate::matrix::Matrix;
use crate::packet::FLOWS;
use crate::port::Limits;
use crate::scenario::{self, Damage, Scenario, Spraying, Transport};
use crate::sender::Feedback;
use crate::topology::{self, Lines, Topology};
use crate::traffic::{self, Flow};

impl Variant {
    /// How packets are sprayed in a fabric.
    fn spraying(&self, topology: &Topology) -> Result<Spraying, String> {
        let scheme = self.scheme.0;
        let feedback = match self.feedback {
            Some(FeedbackName::Acknowledged) => Feedback::Acknowledged,
            Some(FeedbackName::EachPacket) => Feedback::EachPacket,
            None if scheme == spray::Scheme::PrimeLike => Feedback::EachPacket,
            None => Feedback::Acknowledged,
        };
        if self.placed && (scheme, self.values) != (spray::Scheme::Ecmp, None) {
            return Err("'placed' is for the scheme ecmp without 'values'".to_owned());
        }
        match self.values {
            Some(values) => {
                let values = Values::new(values).map_err(|error| error.to_string())?;
                Ok(Spraying::hashed(scheme, values, feedback))
            }
            None => {
                let tiers = Tiers::new(&topology.uplinks).map_err(|error| {
                    format!("{error}; or give the variant {} 'values'", self.label())
                })?;
                Ok(match self.placed {
                    true => Spraying::placed(tiers),
                    false => Spraying::known(scheme, tiers, feedback),
                })
            }
        }
    }
}

/// The most ports of a fabric.
const PORTS: u128 = 1 << 22;
/// The most routes, from each switch to each leaf.
const ROUTES: u128 = 1 << 26;

/// What a fabric takes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) ports: u128,
    /// From each switch to each leaf.
    pub(super) routes: u128,
}

impl Size {
    /// What the fabric of a topology file takes.
    fn of(fabric: &Topology) -> Self {
        let leaves: BTreeSet<_> = (0..fabric.hosts).filter_map(|host| fabric.leaf(host)).collect();
        let [links, switches, leaves] =
            [fabric.links.len(), fabric.switches.len(), leaves.len()].map(|number| number as u128);
        Self { ports: 2 * links, routes: switches * leaves }
    }

    /// Why the fabric is too large, if it is.
    pub(super) const fn problem(self) -> Option<&'static str> {
        match self {
            Self { ports, .. } if ports > PORTS => {
                Some("'fabric' is too large: it may have 4 million ports")
            }
            Self { routes, .. } if routes > ROUTES => {
                Some("'fabric' is too large: switches times leaves may be 64 million")
            }
            _ => None,
        }
    }
}

impl Fabric {
    /// `read` gives the links of a topology file, a line for each.
    fn topology(&self, read: Read<'_>) -> Result<Topology, String> {
        let lines = |rate: BitRate, delay: Time| Lines { rate: rate.rate(), delay: delay.0 };
        Ok(match *self {
            Self::FatTree { pods, leaves, hosts, aggregations, cores, rate, delay } => {
                let tree = topology::FatTree { pods, leaves, hosts, aggregations, cores };
                Topology::fat_tree(&tree, lines(rate, delay))
            }
            Self::LeafSpine { leaves, hosts, spines, rate, delay } => {
                let numbers = topology::LeafSpine { leaves, hosts, spines };
                Topology::leaf_spine(&numbers, lines(rate, delay))
            }
            Self::TwoSites { leaves, hosts, spines, rate, delay, circuit_rate, circuit_delay } => {
                let numbers = topology::LeafSpine { leaves, hosts, spines };
                let circuits = lines(circuit_rate, circuit_delay);
                Topology::two_sites(&numbers, lines(rate, delay), circuits)
            }
            Self::Topology { ref file, rate, delay, circuit_rate, circuit_delay } => {
                let circuits = lines(circuit_rate.unwrap_or(rate), circuit_delay.unwrap_or(delay));
                let named = |error: String| format!("{}: {error}", file.display());
                let text = read(file).map_err(named)?;
                let fabric = Topology::of_links(&text, lines(rate, delay), circuits);
                let fabric = fabric.map_err(named)?;
                match Size::of(&fabric).problem() {
                    Some(problem) => return Err(named(problem.to_owned())),
                    None => fabric,
                }
            }
        })
    }

    /// The rate of a host, in bits per second.
    fn rate(&self) -> f64 {
        let (Self::FatTree { rate, .. }
        | Self::LeafSpine { rate, .. }
        | Self::TwoSites { rate, .. }
        | Self::Topology { rate, .. }) = self;
        rate.bits()
    }

    /// How large the fabric is; `None` if a number is 0. Products of three numbers do not overflow.
    pub(super) fn size(&self) -> Option<Size> {
        let wide = |numbers: &[u32]| numbers.iter().map(|&number| u128::from(number)).product();
        let size = |links: [u128; 3], switches: [u128; 3], leaves: u128| Size {
            ports: 2 * links.iter().sum::<u128>(),
            routes: switches.iter().sum::<u128>() * leaves,
        };
        let (least, size) = match *self {
            Self::FatTree { pods, leaves, hosts, aggregations, cores, .. } => {
                let own = [&[pods, leaves, hosts], &[pods, leaves, aggregations]];
                let [down, across] = own.map(|numbers| wide(numbers));
                let links = [down, across, wide(&[pods, aggregations, cores])];
                let (all, upper) = (wide(&[pods, leaves]), wide(&[pods, aggregations]));
                let least = pods.min(leaves).min(hosts).min(aggregations).min(cores);
                (least, size(links, [all, upper, wide(&[aggregations, cores])], all))
            }
            Self::LeafSpine { leaves, hosts, spines, .. } => {
                let links = [wide(&[leaves, hosts]), wide(&[leaves, spines]), 0];
                let switches = [leaves.into(), spines.into(), 0];
                (leaves.min(hosts).min(spines), size(links, switches, leaves.into()))
            }
            Self::TwoSites { leaves, hosts, spines, .. } => {
                let site = [wide(&[2, leaves, hosts]), wide(&[2, leaves, spines])];
                let links = [site[0], site[1], wide(&[spines, spines])];
                let switches = [wide(&[2, leaves]), wide(&[2, spines]), 0];
                (leaves.min(hosts).min(spines), size(links, switches, wide(&[2, leaves])))
            }
            // It is known when the file is read.
            Self::Topology { .. } => return Some(Size::default()),
        };
        (least > 0).then_some(size)
    }
}

impl Traffic {
    /// Whether the traffic suits so many hosts, and has no more flows than may be.
    fn fits(&self, hosts: u32) -> Result<(), String> {
        let in_groups = |group: u32, each: u64| {
            u64::from(hosts / group.max(1)).saturating_mul(group.into()).saturating_mul(each)
        };
        let number = match *self {
            Self::Ring { group, .. } | Self::AllToAll { group, .. } if group > hosts => {
                return Err(format!("'group' is {group}: there are {hosts} hosts"));
            }
            Self::Permutation { .. } if hosts < 2 => {
                return Err("a permutation needs two hosts".to_owned());
            }
            Self::Incast { senders, .. } if senders == 0 || senders >= hosts => {
                let most = hosts.saturating_sub(1);
                return Err(format!("'senders' is {senders}: use 1 to {most}, of {hosts} hosts"));
            }
            Self::Incast { senders, background: true, .. } if hosts - 1 - senders == 1 => {
                return Err("'background' has one host, and needs two or none".to_owned());
            }
            Self::Ring { group, .. } => in_groups(group, 2 * u64::from(group.saturating_sub(1))),
            Self::AllToAll { group, .. } => in_groups(group, u64::from(group.saturating_sub(1))),
            Self::Stream { flows, .. } => flows.into(),
            _ => 0,
        };
        if number < FLOWS.into() { Ok(()) } else { Err(too_many(number)) }
    }

    /// `rate`: of a host, in bits per second.
    fn flows(
        &self,
        (topology, rate): (&Topology, f64),
        seed: u64,
        read: Read<'_>,
    ) -> Result<Vec<Flow>, String> {
        let hosts = topology.hosts;
        self.fits(hosts)?;
        Ok(match self {
            Self::Permutation { bytes, ordered } => {
                traffic::permutation(hosts, seed, *bytes, *ordered)
            }
            Self::Incast { bytes, senders, background } => {
                traffic::incast(hosts, seed, *bytes, *senders, *background)
            }
            Self::Ring { bytes, group } => traffic::ring(hosts, seed, *bytes, *group),
            Self::AllToAll { bytes, group, window } => {
                traffic::all_to_all(hosts, seed, *bytes, *group, *window)
            }
            Self::Random { sizes, load, until } => {
                let sizes = Sizes::new(&Vec::from_iter(
                    sizes.iter().map(|(bytes, share)| (bytes.0, *share)),
                ))?;
                let rate = load * rate * f64::from(hosts);
                if !(*load > 0.0 && *load <= 1.0) {
                    return Err("'load' needs a share above 0, up to 1".to_owned());
                }
                let gap = sizes.mean() * 8.0 / rate * 1e12;
                let number = until.0 as f64 / gap;
                if number > f64::from(FLOWS) / 2.0 {
                    return Err(format!(
                        "{number:.0} flows are too many: use larger 'sizes', less 'load' or an \
                         earlier 'until'"
                    ));
                }
                arrivals::poisson(hosts, seed, &sizes, gap, until.0)
            }
            Self::Stream { from, to, flows, bytes } => {
                let host = |name: &String| {
                    topology
                        .find_host(name)
                        .ok_or_else(|| format!("'{name}' is no host: use names such as host0"))
                };
                let ends = (host(from)?, host(to)?);
                if ends.0 == ends.1 || *flows == 0 {
                    return Err("a stream needs two hosts, and at least 1 of 'flows'".to_owned());
                }
                (1..=*flows).map(|id| Flow::new(id, ends, *bytes)).collect()
            }
            Self::Matrix { file } => {
                let named = |error: String| format!("{}: {error}", file.display());
                let text = read(file).map_err(named)?;
                let matrix = Matrix::parse(&text).map_err(|error| named(error.to_string()))?;
                if matrix.nodes > hosts {
                    let nodes = matrix.nodes;
                    return Err(named(format!("{nodes} nodes, and the fabric has {hosts} hosts")));
                }
                matrix.flows
            }
        })
    }
}

impl FaultSettings {
    /// The faults of the ports.
    fn faults(&self, topology: &Topology) -> Result<Vec<scenario::Fault>, String> {
        if self.until.is_some_and(|until| until.0 <= self.at.0) {
            return Err("'until' of a fault is a time after 'at'".to_owned());
        }
        let damage = match self.kind {
            FaultKind::Slow => Damage::Slow(self.share),
            FaultKind::Dead => Damage::Dead,
            FaultKind::Silent => Damage::Silent,
        };
        let port = topology.find_port(&self.from, &self.to).ok_or_else(|| {
            format!(
                "no link leads from '{}' to '{}': use names such as host0, leaf0, spine0, agg0 and \
                 core0",
                self.from, self.to
            )
        })?;
        let ports = if self.both { vec![port, port ^ 1] } else { vec![port] };
        let until = self.until.map(|time| time.0);
        let fault = |port| scenario::Fault { port, damage, at: self.at.0, until };
        Ok(ports.into_iter().map(fault).collect())
    }
}

impl File {
    /// The scenario of a variant and a seed. `read` reads a traffic matrix.
    ///
    /// # Errors
    /// A sentence if values do not fit together, or a traffic matrix cannot be read.
    pub fn scenario(
        &self,
        variant: &Variant,
        seed: u64,
        read: Read<'_>,
    ) -> Result<Scenario, String> {
        let topology = self.fabric.topology(read)?;
        let mut transport = Transport::new(&topology, self.transport.packet);
        transport.acknowledge = self.transport.acknowledge;
        let mut limits = Limits::of_product(&transport.network);
        if self.queue.bytes.is_some() || self.queue.ecn != Queue::default().ecn {
            let bytes = self.queue.bytes.unwrap_or(limits.bytes);
            let share = |share: f64| (f64::from(bytes) * share) as u32;
            let [from, all] = self.queue.ecn;
            (limits.bytes, limits.mark_from, limits.mark_all) = (bytes, share(from), share(all));
        }
        transport.timeout = match self.transport.timeout {
            Some(Time(timeout)) if timeout <= transport.network.round_trip => {
                let least = transport.network.round_trip as f64 / 1e6;
                return Err(format!(
                    "'transport.timeout': use more than the round trip time, {least:.2}us"
                ));
            }
            Some(timeout) => timeout.0,
            None => Transport::default_timeout(&topology, limits.bytes),
        };
        let mut roce = self.transport.roce.clone();
        if let Some(roce) = &mut roce {
            if roce.rate == 0 {
                roce.rate = self.fabric.rate() as u64;
            }
            roce.check().map_err(|error| format!("'transport.roce': {error}"))?;
        }
        limits.trim = self.queue.trim && roce.is_none();
        let (mut flows, mut numbers) = (Vec::new(), Numbers::default());
        for (job, traffic) in (0..).zip(&self.traffic) {
            let hosts = (&topology, self.fabric.rate());
            flows.extend(numbers.after_earlier(traffic.flows(hosts, seed, read)?, job)?);
            if flows.len() >= FLOWS as usize {
                return Err(too_many(flows.len() as u64));
            }
        }
        // A connection has two of the 2²⁴ numbers of queue pairs.
        if roce.is_some() && flows.len() >= FLOWS as usize / 2 - 1 {
            return Err(format!("{} flows are too many for RoCE: use 8,388,606", flows.len()));
        }
        let mut faults = Vec::new();
        for fault in &self.faults {
            faults.extend(fault.faults(&topology)?);
        }
        let spraying = variant.spraying(&topology)?;
        Ok(Scenario { topology, limits, transport, roce, spraying, faults, flows, end: self.end.0 })
    }
}

fn too_many(flows: u64) -> String {
    format!("{flows} flows are too many: use fewer than {FLOWS}")
}

/// The largest numbers of the flows and triggers of jobs so far.
#[derive(Debug, Clone, Copy, Default)]
struct Numbers {
    flow: u32,
    trigger: u32,
}

impl Numbers {
    /// The flows of a job with numbers and triggers that no earlier one has.
    fn after_earlier(&mut self, mut flows: Vec<Flow>, job: u32) -> Result<Vec<Flow>, String> {
        let too_large =
            || "the numbers of flows and triggers are too large: use smaller ones".to_owned();
        let add = |own: u32, first: u32| own.checked_add(first).ok_or_else(too_large);
        let before = *self;
        for flow in &mut flows {
            flow.job = job;
            flow.id = add(flow.id, before.flow)?;
            flow.fires = flow.fires.map(|own| add(own, before.trigger)).transpose()?;
            if let traffic::Start::On(own) = &mut flow.start {
                *own = add(*own, before.trigger)?;
            }
            self.flow = self.flow.max(flow.id);
            self.trigger = self.trigger.max(flow.fires.unwrap_or_default());
        }
        Ok(flows)
    }
}
