//! Converts forwarding tables to messages.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use api::v1;
use configuration::PortSummary;
use control::{Host, Status};
use pipeline::counters::vtep_id;
use pipeline::{CachedFlow, Counters, Location, Station};
use tables::{NextHop, Snapshot, VniTable, Vtep, VtepIndex};
use wire::MacAddr;

/// Names of the uplinks, by interface index.
pub(super) struct Uplinks(BTreeMap<u32, String>);

impl Uplinks {
    /// The uplinks of the last publication.
    pub(super) fn of(status: &Status) -> Self {
        Self(
            status
                .plan
                .uplinks
                .iter()
                .map(|uplink| (uplink.ifindex, uplink.name.clone()))
                .collect(),
        )
    }

    /// An uplink's name, or its index if it has none any more.
    pub(super) fn name(&self, ifindex: u32) -> String {
        self.0.get(&ifindex).map_or_else(|| ifindex.to_string(), String::clone)
    }
}

fn vtep_address(snapshot: &Snapshot, index: VtepIndex) -> Option<String> {
    snapshot.vtep(index).map(|vtep| vtep.address.to_string())
}

/// Remote MAC addresses of these VNIs. With `mac`, only that address.
pub(super) fn fdb(
    snapshot: Arc<Snapshot>,
    tables: Vec<Arc<VniTable>>,
    mac: Option<MacAddr>,
) -> impl Iterator<Item = v1::FdbEntry> {
    tables.into_iter().flat_map(move |table| {
        let entries: Vec<(MacAddr, VtepIndex)> = match mac {
            Some(mac) => table.fdb.get(&mac).map(|vtep| (mac, *vtep)).into_iter().collect(),
            None => table.fdb.iter().collect(),
        };
        let snapshot = Arc::clone(&snapshot);
        entries.into_iter().map(move |(mac, vtep)| v1::FdbEntry {
            vni: table.tunnel.vni.get(),
            netdev: table.netdev.clone(),
            mac: mac.to_string(),
            vtep: vtep_address(&snapshot, vtep),
            ..v1::FdbEntry::default()
        })
    })
}

/// Stations of these VNIs that vtepd's own bridge has learned. With `mac`, only that address.
/// `ports` are the access ports, by their numbers.
pub(super) fn stations(
    stations: Vec<Station>,
    tables: &[Arc<VniTable>],
    mac: Option<MacAddr>,
    ports: &[PortSummary],
) -> Vec<v1::FdbEntry> {
    let wanted = |station: &Station| mac.is_none_or(|mac| mac == station.mac);
    let row = |station: Station| {
        let table = tables.iter().find(|table| table.tunnel.vni == station.vni)?;
        let (vtep, port) = match station.location {
            Location::Vtep(_, address) => (Some(address.to_string()), None),
            Location::Port(number) => {
                (None, ports.get(usize::from(number)).map(|port| port.name.clone()))
            }
        };
        Some(v1::FdbEntry {
            vni: station.vni.get(),
            netdev: table.netdev.clone(),
            mac: station.mac.to_string(),
            vtep,
            port,
            silent_seconds: Some(station.silent.as_secs()),
        })
    };
    stations.into_iter().filter(wanted).filter_map(row).collect()
}

/// The flows that workers remember, of one VNI or of all.
pub(super) fn flows(
    workers: Vec<(usize, Vec<CachedFlow>)>,
    vni: Option<u32>,
    snapshot: &Snapshot,
    uplinks: &Uplinks,
) -> Vec<v1::CachedFlow> {
    let row = |worker: usize, flow: CachedFlow| {
        // A VNI may be gone, and its flows with the next frames.
        let number = snapshot.vni(flow.slot)?.tunnel.vni.get();
        vni.is_none_or(|vni| vni == number).then(|| v1::CachedFlow {
            worker: worker as u32,
            vni: number,
            destination_mac: flow.destination_mac.to_string(),
            source: flow.source.to_string(),
            destination: flow.destination.to_string(),
            queue_pair: flow.queue_pair.get(),
            vtep: flow.vtep.to_string(),
            uplink: flow.path.map(|(ifindex, _)| uplinks.name(ifindex)).unwrap_or_default(),
            source_port: flow.path.map_or(0, |(_, port)| port.into()),
            age_ms: u64::try_from(flow.age.as_millis()).unwrap_or(u64::MAX),
            current: flow.is_current,
        })
    };
    let of_worker = |(worker, flows): (usize, Vec<CachedFlow>)| {
        flows.into_iter().filter_map(move |flow| row(worker, flow)).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> = workers.into_iter().flat_map(of_worker).collect();
    let addresses = |row: &v1::CachedFlow| (row.source.clone(), row.destination.clone());
    rows.sort_by_cached_key(|row| (row.worker, row.vni, addresses(row), row.queue_pair));
    rows
}

/// The flood lists of these VNIs.
pub(super) fn flood(
    snapshot: Arc<Snapshot>,
    tables: Vec<Arc<VniTable>>,
) -> impl Iterator<Item = v1::FloodEntry> {
    tables.into_iter().flat_map(move |table| {
        let entry = |vtep: &VtepIndex| v1::FloodEntry {
            vni: table.tunnel.vni.get(),
            netdev: table.netdev.clone(),
            vtep: vtep_address(&snapshot, *vtep).unwrap_or_default(),
        };
        table.flood.iter().map(entry).collect::<Vec<_>>()
    })
}

/// All next hops, without duplicates.
pub(super) fn next_hops(snapshot: &Snapshot, uplinks: &Uplinks) -> Vec<v1::Neighbour> {
    let hops = snapshot.vteps().flat_map(|vtep| vtep.paths.next_hops());
    let hops: BTreeMap<(u32, IpAddr), &NextHop> =
        hops.map(|hop| ((hop.ifindex, hop.gateway), hop)).collect();
    let neighbour = |hop: &NextHop| v1::Neighbour {
        kind: "next-hop".to_owned(),
        interface: uplinks.name(hop.ifindex),
        address: hop.gateway.to_string(),
        mac: hop.destination_mac.map(|mac| mac.to_string()),
        vni: None,
    };
    hops.into_values().map(neighbour).collect()
}

/// Names of the uplinks on which super-frames are not used, because a queueing discipline shapes or
/// impairs their traffic.
pub(super) fn impaired(snapshot: &Snapshot, uplinks: &Uplinks) -> Vec<String> {
    let hops = snapshot.vteps().flat_map(|vtep| vtep.paths.next_hops());
    let names: BTreeSet<String> =
        hops.filter(|hop| hop.impaired).map(|hop| uplinks.name(hop.ifindex)).collect();
    names.into_iter().collect()
}

/// A host whose MAC and IP addresses are both known.
pub(super) fn host(host: Host) -> v1::Neighbour {
    v1::Neighbour {
        kind: "host".to_owned(),
        interface: host.interface,
        address: host.address.to_string(),
        mac: Some(host.mac.to_string()),
        vni: Some(host.vni.get()),
    }
}

/// Whether a VTEP can be reached: `unreachable` without next hops, `unresolved` while no next hop
/// has a MAC address.
fn state(vtep: &Vtep) -> &'static str {
    match vtep.paths.next_hops() {
        [] => "unreachable",
        hops if hops.iter().all(|hop| hop.destination_mac.is_none()) => "unresolved",
        _ => "reachable",
    }
}

/// The route to a VTEP.
pub(super) fn route(vtep: &Vtep, uplinks: &Uplinks) -> v1::Route {
    let hop = |hop: &NextHop| v1::NextHop {
        uplink: uplinks.name(hop.ifindex),
        gateway: hop.gateway.to_string(),
        mac: hop.destination_mac.map(|mac| mac.to_string()),
        weight: hop.weight.into(),
        mtu: hop.mtu,
    };
    v1::Route {
        vtep: vtep.address.to_string(),
        state: state(vtep).to_owned(),
        next_hops: vtep.paths.next_hops().iter().map(hop).collect(),
        default_route: vtep.paths.by_default(),
    }
}

/// Traffic to and from a VTEP; `None` if the VTEP's index is too high for a counter of its own.
fn traffic(index: VtepIndex, snapshot: &Snapshot, counters: &Counters) -> Option<v1::PeerTraffic> {
    if index.0 as usize >= pipeline::counters::PEERS {
        return None;
    }
    let Some(counted) = counters.peer(vtep_id(index, snapshot)) else {
        return Some(v1::PeerTraffic::default());
    };
    Some(v1::PeerTraffic {
        sent_frames: counted.sent.frames.get(),
        sent_bytes: counted.sent.bytes.get(),
        received_frames: counted.received.frames.get(),
        received_bytes: counted.received.bytes.get(),
        default_route_frames: counted.by_default.get(),
    })
}

/// All remote VTEPs by address, with their MAC addresses, flood lists and traffic. `stations` are
/// those that vtepd's own bridge has learned.
pub(super) fn peers(
    snapshot: &Snapshot,
    stations: &[Station],
    counters: &Counters,
) -> Vec<v1::Peer> {
    let mut behind: BTreeMap<(IpAddr, u32), v1::PeerVni> = BTreeMap::new();
    for table in snapshot.vnis() {
        let vni = table.tunnel.vni.get();
        let mut count = |index: &VtepIndex, macs: u64, flood: bool| {
            if let Some(vtep) = snapshot.vtep(*index) {
                let row = behind.entry((vtep.address, vni)).or_insert(v1::PeerVni {
                    vni,
                    macs: 0,
                    flood: false,
                });
                row.macs += macs;
                row.flood |= flood;
            }
        };
        table.fdb.iter().for_each(|(_, vtep)| count(&vtep, 1, false));
        table.flood.iter().for_each(|vtep| count(vtep, 0, true));
        let learned = stations.iter().filter(|station| station.vni == table.tunnel.vni);
        for station in learned {
            if let Location::Vtep(vtep, _) = station.location {
                count(&vtep, 1, false);
            }
        }
    }
    let peer = |(index, vtep): (VtepIndex, &Vtep)| v1::Peer {
        vtep: vtep.address.to_string(),
        state: state(vtep).to_owned(),
        next_hops: u32::try_from(vtep.paths.next_hops().len()).unwrap_or(u32::MAX),
        vnis: behind
            .range((vtep.address, 0)..=(vtep.address, u32::MAX))
            .map(|(_, row)| *row)
            .collect(),
        traffic: traffic(index, snapshot, counters),
        default_route: vtep.paths.by_default(),
    };
    let indexed =
        snapshot.vteps().filter_map(|vtep| Some((snapshot.find_vtep(vtep.address)?, vtep)));
    let vteps: BTreeMap<IpAddr, (VtepIndex, &Vtep)> =
        indexed.map(|(index, vtep)| (vtep.address, (index, vtep))).collect();
    vteps.into_values().map(peer).collect()
}
