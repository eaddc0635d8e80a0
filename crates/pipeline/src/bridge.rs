//! The bridge of standalone mode, for VNIs without a kernel bridge. It has access ports, and learns
//! and ages stations.
//!
//! It follows IEEE 802.1Q-2022 clauses 8.7 and 8.8, without VLANs. It learns each source address at
//! the port or VTEP that the frame came from. Frames for a known address go there. All others go to
//! every other port and to all remote VTEPs. Frames from a VTEP never go to a VTEP (split horizon),
//! because VTEPs form a full mesh (RFC 7348 section 4.2).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use frame::DropReason;
use tables::{Snapshot, VniTable, VtepIndex};
use wire::{MacAddr, Vni};

use crate::counters::Counters;

/// Aged stations are removed when a limit is reached, but at most this often. Until then, lookups
/// ignore them.
const SWEEP: Duration = Duration::from_secs(1);
/// They are also removed at this interval, to make room for bridges that share a limit.
const AGE: Duration = Duration::from_secs(10);
/// The interval over which the moves of a station are counted, in milliseconds.
const SECOND: u64 = 1000;

/// The settings of an access port: its VNI, and the limits of that VNI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessPortSettings {
    /// The VNI.
    pub vni: Vni,
    /// The VNI's local VTEP address.
    pub local: IpAddr,
    /// The VNI's UDP port.
    pub destination_port: u16,
    /// Limit of learned stations in the VNI.
    pub stations: usize,
    /// Ageing time of the VNI's stations; `None` if they do not age.
    pub ageing: Option<Duration>,
}

/// Limits that apply to all VNIs together, and to each station.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeLimits {
    /// Limit of learned stations in all VNIs, and in all bridges that share the limit.
    pub total: usize,
    /// Limit of moves of one station within a second. Further moves are ignored.
    pub moves: u32,
}

/// The location of a station.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// An access port, by its number.
    Port(u16),
    /// A remote VTEP. The address is needed because an index can be reused for another VTEP.
    Vtep(VtepIndex, IpAddr),
}

/// A learned station, as shown by the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Station {
    /// Its VNI.
    pub vni: Vni,
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its location.
    pub location: Location,
    /// Time since its last frame.
    pub silent: Duration,
}

/// A learned station. Times are in milliseconds since the bridge's first frame.
#[derive(Debug, Clone, Copy)]
struct StationEntry {
    location: Location,
    last: u64,
    /// Start of the interval in which moves are counted; `moves` is their number.
    moving: u64,
    moves: u32,
}

/// The stations and ports of one VNI.
#[derive(Debug)]
struct Segment {
    vni: Vni,
    /// Numbers of its access ports.
    ports: Vec<u16>,
    /// Limit of learned stations.
    limit: usize,
    ageing: Option<Duration>,
    /// The hash is randomly keyed, because the senders of frames choose the keys.
    stations: HashMap<MacAddr, StationEntry>,
}

/// The bridge of standalone mode: its access ports and learned stations.
#[derive(Debug)]
pub struct Bridge {
    pub(crate) ports: Vec<AccessPortSettings>,
    segments: Vec<Segment>,
    limits: BridgeLimits,
    /// Number of stations in all bridges that share the limit.
    all: Arc<AtomicUsize>,
    start: Option<Instant>,
    now: u64,
    swept: u64,
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    To(Location),
    /// All ports and remote VTEPs.
    Flood,
}

impl Bridge {
    /// A bridge with these access ports, numbered from 0. All ports of one VNI must have the same
    /// settings.
    #[must_use]
    pub fn new(ports: Vec<AccessPortSettings>, limits: BridgeLimits) -> Self {
        let mut segments: Vec<Segment> = Vec::new();
        for (settings, number) in ports.iter().zip(0u16..) {
            let index = segments.iter().position(|segment| segment.vni == settings.vni);
            let index = index.unwrap_or_else(|| {
                let AccessPortSettings { vni, stations: limit, ageing, .. } = *settings;
                segments.push(Segment {
                    vni,
                    ports: Vec::new(),
                    limit,
                    ageing,
                    stations: HashMap::new(),
                });
                segments.len() - 1
            });
            if let Some(segment) = segments.get_mut(index) {
                segment.ports.push(number);
            }
        }
        Self { ports, segments, limits, all: Arc::default(), start: None, now: 0, swept: 0 }
    }

    /// A bridge without limits, with ports of these VNIs and these stations, to explain a frame.
    pub(crate) fn with_stations(vnis: impl Iterator<Item = Vni>, stations: &[Station]) -> Self {
        let settings = |vni| AccessPortSettings {
            vni,
            local: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            destination_port: 0,
            stations: usize::MAX,
            ageing: None,
        };
        let limits = BridgeLimits { total: usize::MAX, moves: u32::MAX };
        let mut bridge = Self::new(vnis.map(settings).collect(), limits);
        for Segment { vni, stations: known, .. } in &mut bridge.segments {
            let own = stations.iter().filter(|station| station.vni == *vni);
            let entry = |location| StationEntry { location, last: 0, moving: 0, moves: 0 };
            known.extend(own.map(|station| (station.mac, entry(station.location))));
        }
        bridge
    }

    /// Shares the limit of stations with other bridges. Must be called before anything is learned.
    /// `all` counts the stations of all these bridges.
    #[must_use]
    pub fn sharing(self, all: &Arc<AtomicUsize>) -> Self {
        Self { all: Arc::clone(all), ..self }
    }

    /// All stations that have not aged out.
    pub fn stations(&mut self, now: Instant) -> impl Iterator<Item = Station> + '_ {
        self.set_time(now);
        let now = self.now;
        self.segments.iter().flat_map(move |segment| {
            let alive = segment
                .stations
                .iter()
                .filter(move |(_, station)| !station.is_aged(now, segment.ageing));
            alive.map(move |(mac, station)| Station {
                vni: segment.vni,
                mac: *mac,
                location: station.location,
                silent: Duration::from_millis(now.saturating_sub(station.last)),
            })
        })
    }

    pub(crate) fn set_time(&mut self, now: Instant) {
        let start = *self.start.get_or_insert(now);
        self.now =
            u64::try_from(now.saturating_duration_since(start).as_millis()).unwrap_or(u64::MAX);
    }

    /// Numbers of the access ports of a VNI.
    pub(crate) fn ports_of(&self, vni: Vni) -> &[u16] {
        self.segments
            .iter()
            .find(|segment| segment.vni == vni)
            .map_or(&[], |segment| &segment.ports)
    }

    /// Learns that a frame from `mac` came from `location`.
    ///
    /// # Errors
    /// [`DropReason::StaticSource`] if the tables have the address elsewhere.
    pub(crate) fn learn(
        &mut self,
        table: &VniTable,
        mac: MacAddr,
        location: Location,
        counters: &Counters,
    ) -> Result<(), DropReason> {
        if let Some(owner) = table.fdb.get(&mac) {
            // The tables hold the static entries of the configuration.
            return match location {
                Location::Vtep(index, _) if index == *owner => Ok(()),
                _ => Err(DropReason::StaticSource),
            };
        }
        let (now, limits) = (self.now, self.limits);
        let full = self.all.load(Ordering::Relaxed) >= limits.total;
        let Some(segment) =
            self.segments.iter_mut().find(|segment| segment.vni == table.tunnel.vni)
        else {
            return Ok(());
        };
        let full = full || segment.stations.len() >= segment.limit;
        let ageing = segment.ageing;
        match segment.stations.entry(mac) {
            Entry::Occupied(mut entry) => {
                let station = entry.get_mut();
                if station.location != location {
                    if now.saturating_sub(station.moving) >= SECOND {
                        (station.moving, station.moves) = (now, 0);
                    }
                    if station.moves >= limits.moves && !station.is_aged(now, ageing) {
                        counters.stations.flapping.add(1);
                        return Ok(());
                    }
                    station.moves += 1;
                    station.location = location;
                    counters.stations.moved.add(1);
                }
                station.last = now;
            }
            Entry::Vacant(_) if full => {
                if self.sweep() {
                    return self.learn(table, mac, location, counters);
                }
                counters.stations.too_many.add(1);
            }
            Entry::Vacant(entry) => {
                entry.insert(StationEntry { location, last: now, moving: now, moves: 0 });
                self.all.fetch_add(1, Ordering::Relaxed);
                counters.stations.new.add(1);
            }
        }
        Ok(())
    }

    /// Removes aged stations if that is due, also in a bridge that sees no frames. Returns when to
    /// call this again; `None` if there are no stations.
    pub(crate) fn age(&mut self, now: Instant) -> Option<Duration> {
        if self.segments.iter().all(|segment| segment.stations.is_empty()) {
            return None;
        }
        self.set_time(now);
        if self.now.saturating_sub(self.swept) >= AGE.as_millis() as u64 {
            self.sweep();
        }
        Some(AGE)
    }

    /// Removes aged stations. Returns whether there were any.
    fn sweep(&mut self) -> bool {
        let now = self.now;
        if self.swept != 0 && now.saturating_sub(self.swept) < SWEEP.as_millis() as u64 {
            return false;
        }
        self.swept = now.max(1);
        let mut aged = 0;
        for Segment { stations, ageing, .. } in &mut self.segments {
            let before = stations.len();
            stations.retain(|_, station| !station.is_aged(now, *ageing));
            aged += before - stations.len();
        }
        self.all.fetch_sub(aged, Ordering::Relaxed);
        aged > 0
    }

    /// Looks up the destination address `to`.
    pub(crate) fn way(&self, table: &VniTable, to: MacAddr, snapshot: &Snapshot) -> Way {
        let fixed =
            table.fdb.get(&to).and_then(|index| Some((*index, snapshot.vtep(*index)?.address)));
        if let Some((index, address)) = fixed {
            return Way::To(Location::Vtep(index, address));
        }
        let segment = self.segments.iter().find(|segment| segment.vni == table.tunnel.vni);
        let station =
            segment.and_then(|segment| Some((segment.stations.get(&to)?, segment.ageing)));
        match station
            .filter(|(station, ageing)| !station.is_aged(self.now, *ageing))
            .map(|(station, _)| station.location)
        {
            Some(Location::Vtep(index, address))
                if snapshot.vtep(index).is_none_or(|vtep| vtep.address != address) =>
            {
                Way::Flood
            }
            Some(location) => Way::To(location),
            None => Way::Flood,
        }
    }
}

impl StationEntry {
    fn is_aged(&self, now: u64, ageing: Option<Duration>) -> bool {
        ageing.is_some_and(|ageing| u128::from(now.saturating_sub(self.last)) >= ageing.as_millis())
    }
}
