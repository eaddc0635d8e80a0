//! A VTEP for each host of a run.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use path::{
    Agreed, Arrivals, Ends, Entropy, NextHop, PathId, Paths, Policy, Pool, Settings, SprayOptions,
    Spraying,
};
use sim::time::Picos;
use sim::vtep::{Data, Fate};
use sim::{Choice, Scenario};
use spray::Scheme;
use tables::{Snapshot, SnapshotBuilder, Tos, Tunnel, VniIndex, VniTable, Vtep, VtepIndex};
use wire::{MacAddr, Vni};

use crate::packet;
use crate::pair::{Pair, Times};
use crate::worker::{SLOT, Worker};

/// The most hosts.
pub const MOST_HOSTS: u32 = 16;
/// The UDP port of VXLAN (RFC 7348).
const VXLAN: u16 = 4789;
/// The source port of the first path.
const FIRST: u16 = 50_000;
/// The stream of random numbers that gives VTEPs their seeds.
const STREAM: u64 = 7 << 32;
/// The interface of the one uplink.
const UPLINK: u32 = 3;

/// Why a scenario cannot have VTEPs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It has too many hosts.
    #[error("{0} hosts are too many for real VTEPs: use at most {MOST_HOSTS}")]
    Hosts(u32),
    /// Its hosts are endpoints of RoCE.
    #[error("real VTEPs need the unordered transport: leave out 'transport.roce'")]
    Roce,
    /// It sprays over numbers that switches hash, or not at all.
    #[error("real VTEPs spray over known paths: use another scheme than ecmp, without 'values'")]
    Hashed,
    /// It has more paths than the policy `spray` uses.
    #[error("{0} paths are too many for real VTEPs: use at most {most}", most = path::MOST_PATHS)]
    Paths(u16),
    /// A table cannot be built.
    #[error("the tables of a VTEP: {0}")]
    Tables(String),
    /// Frames did not arrive as they were sent.
    #[error("{0} frames did not arrive as they were sent")]
    Changed(u64),
}

/// What became of frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Frames that hosts got, each byte as it was sent, but for ECN marks.
    pub right: u64,
    /// Frames that were changed, doubled or dropped by a VTEP.
    pub changed: u64,
}

/// A VTEP for each host.
#[derive(Debug)]
pub struct Vteps {
    workers: Vec<Worker>,
    pairs: BTreeMap<(u32, u32), Pair>,
    /// Packets that are on their way, by path. One may be there twice.
    under_way: BTreeMap<(Data, u16), VecDeque<Vec<u8>>>,
    bytes: Bytes,
}

/// The secret number of the VTEP of a host in a run.
#[must_use]
pub fn seed_of(seed: u64, host: u32) -> u64 {
    spray::Random::stream(seed, STREAM | u64::from(host)).next()
}

/// The address of the VTEP of a host.
fn address(host: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0001 + host).into()
}

fn hop() -> NextHop {
    NextHop {
        ifindex: UPLINK,
        gateway: address(255),
        identity: UPLINK.into(),
        source_mac: MacAddr([2, 1, 0, 0, 0, 1]),
        destination_mac: Some(MacAddr([2, 2, 0, 0, 0, 1])),
        mtu: 9_500,
        weight: 1,
        path: 1,
        by_default: false,
        impaired: false,
    }
}

/// What the VTEP of a host forwards by: one VNI, and the other hosts behind their VTEPs.
fn snapshot(own: u32, hosts: u32, vni: Vni, seed: u64) -> Result<Snapshot, Unfit> {
    let tables = |error: &dyn std::fmt::Display| Unfit::Tables(error.to_string());
    let settings = Settings { policy: Policy::Spray, seed, ..Settings::default() };
    let mut builder = SnapshotBuilder::new(1);
    let known = |host| (MacAddr(packet::mac(host)), VtepIndex(host));
    let index = VniIndex::new(SLOT).ok_or_else(|| tables(&"no such slot"))?;
    let entropy = Entropy::new(settings).map_err(|error| tables(&error))?;
    let tunnel =
        Tunnel { tos: Tos::Inherit, udp_checksum: false, ..Tunnel::new(vni, address(own)) };
    builder.vni(Arc::new(VniTable {
        netdev: "vx".to_owned(),
        mac: Some(MacAddr([2, 3, 0, 0, 0, 1])),
        fdb: (0..hosts).filter(|host| *host != own).map(known).collect(),
        ..VniTable::new(index, tunnel, entropy)
    }));
    for host in 0..hosts {
        let paths = Arc::new(Paths::new(vec![hop()]));
        builder.vtep(VtepIndex(host), Vtep { address: address(host), paths });
    }
    Ok(builder.build())
}

impl Vteps {
    /// The VTEPs of a scenario's hosts. All agree to spray, each with a seed of its own.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn new(scenario: &Scenario, seed: u64) -> Result<Self, Unfit> {
        let (hosts, spraying) = (scenario.topology.hosts, scenario.spraying);
        let network = &scenario.transport.network;
        if hosts > MOST_HOSTS {
            return Err(Unfit::Hosts(hosts));
        }
        if scenario.roce.is_some() {
            return Err(Unfit::Roce);
        }
        if spraying.choice != Choice::Known || spraying.scheme == Scheme::Ecmp {
            return Err(Unfit::Hashed);
        }
        let number = spraying.tiers.paths();
        if usize::from(number) > path::MOST_PATHS {
            return Err(Unfit::Paths(number));
        }
        let vni = Vni::try_from(10_010).map_err(|error| Unfit::Tables(error.to_string()))?;
        // Hosts place packets out of order.
        let options = SprayOptions {
            scheme: spraying.scheme,
            restores_order: false,
            ..SprayOptions::default()
        };
        let times = Times {
            every: network.round_trip / 2,
            delay: network.round_trip / 2,
            lost: scenario.transport.timeout,
        };
        let mut pairs = BTreeMap::new();
        let mut workers = Vec::new();
        for own in 0..hosts {
            let state = Spraying::new(options, seed_of(seed, own));
            workers.push(Worker::new(snapshot(own, hosts, vni, seed)?, state));
            for other in (0..hosts).filter(|other| *other != own) {
                let id = |path| PathId { hop: hop().identity, source_port: FIRST + path };
                let ids = (0..number).map(id).collect();
                let pool = Pool::new(ids, spraying.tiers, network.round_trip / 1000);
                let pool = Arc::new(pool.ok_or(Unfit::Paths(number))?);
                let arrivals = Arc::new(Arrivals::new(times.lost / 1000));
                pairs.insert((own, other), Pair::new(pool, arrivals, times));
            }
        }
        for (own, worker) in (0..).zip(&workers) {
            let ends = |other: u32| -> Ends { (address(own), address(other), VXLAN) };
            let agreed = |pair: &Pair| Agreed { pool: Arc::clone(&pair.pool), vnis: [vni].into() };
            let of_pairs = pairs.iter();
            let to = of_pairs.clone().filter(|((from, _), _)| *from == own);
            let to = to.map(|((_, to), pair)| (ends(*to), agreed(pair)));
            worker.spraying.set_pools(to.collect());
            let from = of_pairs.filter(|((_, to), _)| *to == own);
            let from = from.map(|((from, _), pair)| (ends(*from), Arc::clone(&pair.arrivals)));
            worker.spraying.set_arrivals(from.collect());
        }
        Ok(Self { workers, pairs, under_way: BTreeMap::new(), bytes: Bytes::default() })
    }

    /// The paths from a host's VTEP to another one.
    #[must_use]
    pub fn pair(&self, source: u32, target: u32) -> Option<&Pair> {
        self.pairs.get(&(source, target))
    }

    /// The path that a VTEP chooses for a packet that the fabric never gets.
    pub fn choose(&mut self, now: Picos, data: Data) -> u16 {
        self.encapsulate(now, &data).map_or(0, |(path, _)| path)
    }

    /// What became of frames so far. Frames that the fabric has lost or trimmed do not count.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        let dropped: u64 = self.workers.iter().map(Worker::dropped).sum();
        Bytes { changed: self.bytes.changed + dropped, ..self.bytes }
    }

    /// Encapsulates a packet. Returns the number of its path, and the packet on the wire.
    fn encapsulate(&mut self, now: Picos, data: &Data) -> Option<(u16, Vec<u8>)> {
        let worker = self.workers.get_mut(data.source as usize)?;
        let sent = worker.encapsulate(now, &packet::frame(data, false))?;
        Some((packet::source_port(&sent)?.checked_sub(FIRST)?, sent))
    }

    /// What the target gets.
    fn decapsulate(&mut self, now: Picos, data: &Data, path: u16, marked: bool) -> Option<Vec<u8>> {
        let waiting = self.under_way.get_mut(&(*data, path))?;
        let mut sent = waiting.pop_front()?;
        if waiting.is_empty() {
            self.under_way.remove(&(*data, path));
        }
        if marked {
            packet::mark(&mut sent);
        }
        self.workers.get_mut(data.target as usize)?.decapsulate(now, &sent)
    }
}

impl sim::Vteps for Vteps {
    fn send(&mut self, now: Picos, data: Data) -> u16 {
        if let Some(pair) = self.pairs.get_mut(&(data.source, data.target)) {
            pair.advance(now);
        }
        match self.encapsulate(now, &data) {
            Some((path, sent)) => {
                self.under_way.entry((data, path)).or_default().push_back(sent);
                path
            }
            None => {
                self.bytes.changed += 1;
                0
            }
        }
    }

    fn receive(&mut self, now: Picos, data: Data, path: u16, fate: Fate) {
        let marked = fate == Fate::Marked;
        if fate == Fate::Trimmed {
            // Its bytes are gone.
            let full = self.under_way.keys().find(|(other, by)| {
                (other.flow, other.number, *by) == (data.flow, data.number, path)
            });
            if let Some(key) = full.copied() {
                self.under_way.remove(&key);
            }
            if let Some(pair) = self.pairs.get_mut(&(data.source, data.target)) {
                pair.trimmed(path);
            }
            return;
        }
        let got = self.decapsulate(now, &data, path, marked);
        match got.is_some_and(|got| got == packet::frame(&data, marked)) {
            true => self.bytes.right += 1,
            false => self.bytes.changed += 1,
        }
    }
}
