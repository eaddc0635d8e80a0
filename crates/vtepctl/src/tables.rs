//! The tables of VNIs, MAC addresses, VTEPs and ports.

use std::io::{self, Write};

use api::v1;

use crate::output::Table;

/// The VNI of a vxlan netdev, or `external` if it has none of its own.
pub(crate) fn number(row: &v1::Vni) -> String {
    if row.external { "external".to_owned() } else { row.vni.to_string() }
}

/// Whether a VTEP can be reached, and whether only by a default route.
fn state(state: &str, default_route: bool) -> String {
    if default_route { format!("{state}, by default route") } else { state.to_owned() }
}

/// The cells of a VNI's row.
pub(crate) struct VniCells {
    pub vni: String,
    pub netdev: String,
    pub local: String,
    port: String,
    pub policy: String,
    source_ports: String,
    pub macs: String,
    pub flood: String,
    pub learning: String,
}

/// The cells of a VNI's row. Those that apply only to VNIs that are taken over are empty for
/// others.
pub(crate) fn vni_cells(row: &v1::Vni) -> VniCells {
    let taken = row.taken.clone().unwrap_or_default();
    let policy = policy_of(row);
    let of_taken = |text: String| if row.taken.is_some() { text } else { String::new() };
    VniCells {
        vni: number(row),
        netdev: row.netdev.clone(),
        local: taken.local,
        port: of_taken(taken.destination_port.to_string()),
        policy: match policy.bins {
            Some(bins) => format!("{} ({bins})", policy.name),
            None => policy.name,
        },
        source_ports: policy.source_ports,
        macs: of_taken(taken.remote_macs.to_string()),
        flood: of_taken(taken.flood_vteps.to_string()),
        learning: of_taken(match (taken.learning, taken.ageing_seconds) {
            (false, _) => "off".to_owned(),
            (true, None) => "for good".to_owned(),
            (true, Some(seconds)) => format!("{seconds} s"),
        }),
    }
}

/// The tables of `vtepctl vni`: VNIs that are taken over, within 80 columns, and why the others are
/// not.
pub(crate) fn vnis(out: &mut impl Write, rows: &[v1::Vni]) -> io::Result<()> {
    let (taken, left): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.left.is_none());
    let mut table = Table::of("vni|netdev|local|port|policy|source ports|macs|flood|ageing");
    for row in &taken {
        let VniCells { vni, netdev, local, port, policy, source_ports, macs, flood, learning } =
            vni_cells(row);
        table.row([vni, netdev, local, port, policy, source_ports, macs, flood, learning]);
    }
    if !taken.is_empty() || left.is_empty() {
        table.write(out, "")?;
    }
    let mut datapaths = Table::new(["vni", "netdev", "datapath", "why"]);
    for row in &taken {
        let VniCells { vni, netdev, .. } = vni_cells(row);
        let why = row.datapath_reason.clone().unwrap_or_default();
        datapaths.row([vni, netdev, row.datapath.clone(), why]);
    }
    if !taken.is_empty() {
        writeln!(out)?;
        datapaths.write(out, "")?;
    }
    if !taken.is_empty() && !left.is_empty() {
        writeln!(out)?;
    }
    let mut reasons = Table::new(["vni", "netdev", "datapath", "policy", "left to the kernel"]);
    for row in &left {
        let VniCells { vni, netdev, policy, .. } = vni_cells(row);
        reasons.row([vni, netdev, row.datapath.clone(), policy, why_left(row)]);
    }
    if left.is_empty() { Ok(()) } else { reasons.write(out, "") }
}

/// The policy for a VNI's source ports, also in the kernel datapath.
pub(crate) fn policy_of(row: &v1::Vni) -> v1::Policy {
    let taken = row.taken.as_ref().and_then(|taken| taken.policy.clone());
    let chosen = || row.chosen_port.as_ref().and_then(|chosen| chosen.policy.clone());
    taken.or_else(chosen).unwrap_or_default()
}

/// Why a VNI stays with the kernel: the sentence and its slug. Empty for a VNI that is taken over.
pub(crate) fn why_left(row: &v1::Vni) -> String {
    match (&row.left, &row.reason_slug) {
        (Some(sentence), Some(slug)) => format!("{sentence} [{slug}]"),
        // An older vtepd sends no slug.
        (sentence, _) => sentence.clone().unwrap_or_default(),
    }
}

/// The policy that applies now, or why the configured one does not.
pub(crate) fn policy_set(out: &mut impl Write, row: &v1::Vni) -> io::Result<()> {
    match &row.left {
        None => policies(std::slice::from_ref(row)).write(out, ""),
        Some(reason) if row.standalone => writeln!(
            out,
            "VNI {} is not forwarded: {reason}. The change is noted, and in force once it is attached",
            row.vni
        ),
        Some(_) if row.chosen_port.is_some() => policies(std::slice::from_ref(row)).write(out, ""),
        Some(reason) => writeln!(
            out,
            "VNI {} ({}) stays with the kernel: {reason}. The kernel chooses its source ports; the change is noted, and in \
             force once vtepd does",
            row.vni, row.netdev
        ),
    }
}

/// That a VNI is attached.
pub(crate) fn attached(row: &v1::Vni) -> String {
    let v1::Vni { vni, netdev, .. } = row;
    match row.standalone {
        true => format!("VNI {vni} is forwarded between its ports and remote VTEPs"),
        false => format!("VNI {vni} ({netdev}) is taken over"),
    }
}

/// That a VNI is detached.
pub(crate) fn detached(row: &v1::Vni) -> String {
    let v1::Vni { vni, netdev, .. } = row;
    match row.standalone {
        true => format!(
            "VNI {vni} is not forwarded: its frames are dropped until `vtepctl attach {vni}`"
        ),
        false => format!("VNI {vni} ({netdev}) is the kernel's"),
    }
}

pub(crate) fn policies(rows: &[v1::Vni]) -> Table<6> {
    let mut table = Table::new(["vni", "netdev", "policy", "bins", "source ports", "seed"]);
    for row in rows {
        let policy = policy_of(row);
        table.row([
            number(row),
            row.netdev.clone(),
            policy.name,
            policy.bins.map(|bins| bins.to_string()).unwrap_or_default(),
            policy.source_ports,
            policy.seed.to_string(),
        ]);
    }
    table
}

pub(crate) fn fdb(rows: &[v1::FdbEntry]) -> Table<4> {
    let mut table = Table::new(["vni", "netdev", "mac", "vtep"]);
    for row in rows {
        let behind = row
            .port
            .as_ref()
            .map(|port| format!("port {port}"))
            .or_else(|| row.vtep.clone())
            .unwrap_or_default();
        table.row([row.vni.to_string(), row.netdev.clone(), row.mac.clone(), behind]);
    }
    table
}

pub(crate) fn flood(rows: &[v1::FloodEntry]) -> Table<3> {
    let mut table = Table::new(["vni", "netdev", "vtep"]);
    for row in rows {
        table.row([row.vni.to_string(), row.netdev.clone(), row.vtep.clone()]);
    }
    table
}

pub(crate) fn neighbours(rows: &[v1::Neighbour]) -> Table<5> {
    let mut table = Table::new(["kind", "interface", "address", "mac", "vni"]);
    for row in rows {
        let mac = row.mac.clone().unwrap_or_default();
        let vni = row.vni.map(|vni| vni.to_string()).unwrap_or_default();
        table.row([row.kind.clone(), row.interface.clone(), row.address.clone(), mac, vni]);
    }
    table
}

pub(crate) fn routes(rows: &[v1::Route]) -> Table<7> {
    let mut table = Table::new(["vtep", "state", "uplink", "gateway", "mac", "weight", "mtu"]);
    for row in rows {
        let start = || (row.vtep.clone(), state(&row.state, row.default_route));
        for hop in &row.next_hops {
            let (vtep, state) = start();
            let mac = hop.mac.clone().unwrap_or_default();
            let (weight, mtu) = (hop.weight.to_string(), hop.mtu.to_string());
            table.row([vtep, state, hop.uplink.clone(), hop.gateway.clone(), mac, weight, mtu]);
        }
        if row.next_hops.is_empty() {
            let (vtep, state) = start();
            let none = String::new;
            table.row([vtep, state, none(), none(), none(), none(), none()]);
        }
    }
    table
}

/// The traffic of each VTEP, and the MAC addresses behind it in each VNI.
pub(crate) fn peers(out: &mut impl Write, rows: &[v1::Peer]) -> io::Result<()> {
    let mut traffic = Table::of("vtep|state|next hops|sent|bytes|received|bytes|by default route");
    let mut behind = Table::new(["vtep", "vni", "macs", "flood"]);
    for row in rows {
        let counted = |read: fn(&v1::PeerTraffic) -> u64| {
            row.traffic.as_ref().map(|traffic| read(traffic).to_string()).unwrap_or_default()
        };
        traffic.row([
            row.vtep.clone(),
            state(&row.state, row.default_route),
            row.next_hops.to_string(),
            counted(|traffic| traffic.sent_frames),
            counted(|traffic| traffic.sent_bytes),
            counted(|traffic| traffic.received_frames),
            counted(|traffic| traffic.received_bytes),
            counted(|traffic| traffic.default_route_frames),
        ]);
        for vni in &row.vnis {
            let flood = if vni.flood { "yes" } else { "no" };
            behind.row([
                row.vtep.clone(),
                vni.vni.to_string(),
                vni.macs.to_string(),
                flood.to_owned(),
            ]);
        }
    }
    traffic.write(out, "")?;
    writeln!(out)?;
    behind.write(out, "")
}

/// The table of `vtepctl flow`.
pub(crate) fn flows(rows: &[v1::CachedFlow]) -> Table<10> {
    let mut table = Table::of("worker|vni|source|destination|qp|vtep|uplink|port|age s|current");
    for row in rows {
        let is_sprayed = row.source_port == 0;
        table.row([
            row.worker.to_string(),
            row.vni.to_string(),
            row.source.clone(),
            row.destination.clone(),
            format!("{:#x}", row.queue_pair),
            row.vtep.clone(),
            if is_sprayed { "sprayed".to_owned() } else { row.uplink.clone() },
            if is_sprayed { "-".to_owned() } else { row.source_port.to_string() },
            (row.age_ms / 1000).to_string(),
            if row.current { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table
}

pub(crate) fn ports(rows: &[v1::Port]) -> Table<8> {
    let mut table = Table::of("vni|bridge|port|bypass|by bypass|to refresh|by bridge|why not");
    for row in rows {
        let frames = row.frames.unwrap_or_default();
        let count = |n: u64| if row.bypass { n.to_string() } else { String::new() };
        table.row([
            row.vni.to_string(),
            row.bridge.clone(),
            row.port.clone(),
            if row.bypass { "yes" } else { "no" }.to_owned(),
            count(frames.bypass),
            count(frames.refreshed),
            count(frames.passed + frames.stalled),
            row.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}
