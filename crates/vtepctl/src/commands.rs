//! What each command asks, and its table.

use std::io::{self, BufWriter, Write};

use api::{Client, v1};
use clap::CommandFactory;
use serde::Serialize;
use tonic::Streaming;

use crate::arguments::{Arguments, Command, OfVni, Output, PolicyCommand};
use crate::output::{Failure, Table, json};
use crate::{bench, events, explain, status};

/// Asks, and prints the answer.
///
/// # Errors
/// When there is no daemon, it says no, or nobody reads.
pub async fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { socket, output, command } = arguments;
    if let Command::Manual { folder } = command {
        return Ok(manual::write(Arguments::command(), &folder)?);
    }
    let mut out = BufWriter::new(io::stdout().lock());
    if let Command::Bench(bench) = command {
        bench::run(bench, output, &mut out).await?;
        return Ok(out.flush()?);
    }
    let client = api::connect(&socket).await?;
    Asking { client, output, out: &mut out }.answer(command).await?;
    Ok(out.flush()?)
}

/// One question, and where the answer goes.
pub struct Asking<'a, W> {
    pub client: Client,
    pub output: Output,
    pub out: &'a mut W,
}

impl<W: Write> Asking<'_, W> {
    async fn answer(mut self, command: Command) -> Result<(), Failure> {
        match command {
            Command::Status => {
                let answer = self.client.get_status(v1::GetStatusRequest {}).await?.into_inner();
                self.print(&answer, |out| status::write(out, &answer))
            }
            Command::Vni(OfVni { vni }) => {
                let rows = all(self.client.list_vnis(v1::ListVnisRequest { vni }).await?).await?;
                self.print(&rows, |out| vnis(out, &rows))
            }
            Command::Fdb { of: OfVni { vni }, mac } => {
                let request = v1::ListFdbRequest { vni, mac: mac.map(|mac| mac.to_string()) };
                let mut rows = all(self.client.list_fdb(request).await?).await?;
                rows.sort_by(|a, b| (a.vni, &a.mac).cmp(&(b.vni, &b.mac)));
                self.print(&rows, |out| fdb(&rows).write(out, ""))
            }
            Command::Flood(OfVni { vni }) => {
                let rows = all(self.client.list_flood(v1::ListFloodRequest { vni }).await?).await?;
                self.print(&rows, |out| flood(&rows).write(out, ""))
            }
            Command::Neigh => {
                let rows =
                    all(self.client.list_neighbours(v1::ListNeighboursRequest {}).await?).await?;
                self.print(&rows, |out| neighbours(&rows).write(out, ""))
            }
            Command::Route { vtep } => {
                let request = v1::ListRoutesRequest { vtep: vtep.map(|vtep| vtep.to_string()) };
                let rows = all(self.client.list_routes(request).await?).await?;
                self.print(&rows, |out| routes(&rows).write(out, ""))
            }
            Command::Peer => {
                let rows = all(self.client.list_peers(v1::ListPeersRequest {}).await?).await?;
                self.print(&rows, |out| peers(out, &rows))
            }
            Command::Port(OfVni { vni }) => {
                let rows = all(self.client.list_ports(v1::ListPortsRequest { vni }).await?).await?;
                self.print(&rows, |out| ports(&rows).write(out, ""))
            }
            Command::Drops { all } => {
                let drops =
                    self.client.get_counters(v1::GetCountersRequest {}).await?.into_inner().drops;
                self.print(&drops, |out| drops_so_far(out, &drops, all))
            }
            Command::Counters { all } => {
                let answer =
                    self.client.get_counters(v1::GetCountersRequest {}).await?.into_inner();
                self.print(&answer, |out| counters(out, &answer, all))
            }
            Command::Events { follow, new, after } => {
                let request = v1::WatchEventsRequest { follow, after, skip: new };
                events::print(&mut self, request).await
            }
            Command::Policy(PolicyCommand::Show(OfVni { vni })) => {
                let mut rows =
                    all(self.client.list_vnis(v1::ListVnisRequest { vni }).await?).await?;
                rows.retain(|row| row.taken.is_some() || row.chosen_port.is_some());
                self.print(&rows, |out| policies(&rows).write(out, ""))
            }
            Command::Policy(PolicyCommand::Set { vni, policy, bins, source_ports }) => {
                let request = v1::SetPolicyRequest { vni, policy, bins, source_ports };
                let row = self.client.set_policy(request).await?.into_inner();
                self.print(&row, |out| policy_set(out, &row))
            }
            Command::Attach { vni } => {
                let row = self.client.attach_vni(v1::AttachVniRequest { vni }).await?.into_inner();
                self.print(&row, |out| match row.standalone {
                    true => {
                        writeln!(out, "VNI {vni} is forwarded between its ports and remote VTEPs")
                    }
                    false => writeln!(out, "VNI {vni} ({}) is taken over", row.netdev),
                })
            }
            Command::Detach { vni } => {
                let row = self.client.detach_vni(v1::DetachVniRequest { vni }).await?.into_inner();
                self.print(&row, |out| match row.standalone {
                    true => writeln!(
                        out,
                        "VNI {vni} is forwarded by nobody: its frames are dropped until `vtepctl attach {vni}`"
                    ),
                    false => writeln!(out, "VNI {vni} ({}) is the kernel's", row.netdev),
                })
            }
            Command::Bench(_) | Command::Manual { .. } => Ok(()),
            Command::Explain(explain) => explain::print(&mut self, explain).await,
        }
    }

    /// Writes an answer in the form that was asked for.
    ///
    /// # Errors
    /// When nobody reads any more.
    pub fn print(
        &mut self,
        answer: &impl Serialize,
        table: impl FnOnce(&mut W) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let written = match self.output {
            Output::Table => table(self.out),
            Output::Json => json(self.out, answer),
        };
        Ok(written?)
    }
}

/// All rows of a list.
///
/// # Errors
/// When the daemon ends in the middle.
pub async fn all<T>(answer: tonic::Response<Streaming<T>>) -> Result<Vec<T>, tonic::Status> {
    let mut stream = answer.into_inner();
    let mut rows = Vec::new();
    while let Some(row) = stream.message().await? {
        rows.push(row);
    }
    Ok(rows)
}

/// The VNI of a vxlan netdev, if it has one of its own.
pub fn number(row: &v1::Vni) -> String {
    if row.external { "external".to_owned() } else { row.vni.to_string() }
}

/// How a VTEP can be reached, and whether that is by a default route.
fn state(state: &str, default_route: bool) -> String {
    if default_route { format!("{state}, by default route") } else { state.to_owned() }
}

/// What is shown of a VNI.
pub struct VniCells {
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

/// What is shown of a VNI; only its name and number where it is not taken over.
pub fn vni_cells(row: &v1::Vni) -> VniCells {
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

/// The tables of `vtepctl vni`: those taken over within 80 columns, and the reasons of the others.
fn vnis(out: &mut impl Write, rows: &[v1::Vni]) -> io::Result<()> {
    let (taken, left): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.left.is_none());
    let headings =
        ["vni", "netdev", "local", "port", "policy", "source ports", "macs", "flood", "ageing"];
    let mut table = Table::new(headings);
    for row in &taken {
        let VniCells { vni, netdev, local, port, policy, source_ports, macs, flood, learning } =
            vni_cells(row);
        table.row([vni, netdev, local, port, policy, source_ports, macs, flood, learning]);
    }
    if !taken.is_empty() || left.is_empty() {
        table.write(out, "")?;
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

/// The policy of a VNI's source ports: also of what kernel VXLAN encapsulates.
fn policy_of(row: &v1::Vni) -> v1::Policy {
    let taken = row.taken.as_ref().and_then(|taken| taken.policy.clone());
    let chosen = || row.chosen_port.as_ref().and_then(|chosen| chosen.policy.clone());
    taken.or_else(chosen).unwrap_or_default()
}

/// Why a VNI stays with the kernel: the sentence and its slug. Empty for a VNI that is taken over.
pub fn why_left(row: &v1::Vni) -> String {
    match (&row.left, &row.reason_slug) {
        (Some(sentence), Some(slug)) => format!("{sentence} [{slug}]"),
        // A vtepd of an older version names no slug.
        (sentence, _) => sentence.clone().unwrap_or_default(),
    }
}

/// The policy that is in force now, or why the one that was set is not.
fn policy_set(out: &mut impl Write, row: &v1::Vni) -> io::Result<()> {
    match &row.left {
        None => policies(std::slice::from_ref(row)).write(out, ""),
        Some(reason) if row.standalone => writeln!(
            out,
            "VNI {} is forwarded by nobody: {reason}. The change is noted, and in force once it is attached",
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

fn policies(rows: &[v1::Vni]) -> Table<6> {
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

fn fdb(rows: &[v1::FdbEntry]) -> Table<4> {
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

fn flood(rows: &[v1::FloodEntry]) -> Table<3> {
    let mut table = Table::new(["vni", "netdev", "vtep"]);
    for row in rows {
        table.row([row.vni.to_string(), row.netdev.clone(), row.vtep.clone()]);
    }
    table
}

fn neighbours(rows: &[v1::Neighbour]) -> Table<5> {
    let mut table = Table::new(["kind", "interface", "address", "mac", "vni"]);
    for row in rows {
        let mac = row.mac.clone().unwrap_or_default();
        let vni = row.vni.map(|vni| vni.to_string()).unwrap_or_default();
        table.row([row.kind.clone(), row.interface.clone(), row.address.clone(), mac, vni]);
    }
    table
}

fn routes(rows: &[v1::Route]) -> Table<7> {
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

/// What goes to and fro, and what is behind each in each VNI.
fn peers(out: &mut impl Write, rows: &[v1::Peer]) -> io::Result<()> {
    let headings =
        ["vtep", "state", "next hops", "sent", "bytes", "received", "bytes", "by default route"];
    let mut traffic = Table::new(headings);
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

fn ports(rows: &[v1::Port]) -> Table<8> {
    let mut table = Table::new([
        "vni",
        "bridge",
        "port",
        "bypass",
        "by bypass",
        "to refresh",
        "by bridge",
        "why not",
    ]);
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

/// The reasons that frames were dropped for, or every one.
fn drops_so_far(out: &mut impl Write, rows: &[v1::Drop], all: bool) -> io::Result<()> {
    let some: Vec<v1::Drop> = rows.iter().filter(|row| all || row.frames > 0).cloned().collect();
    if some.is_empty() {
        return writeln!(out, "No frame has been dropped (--all lists the reasons that there are)");
    }
    dropped(&some).write(out, "")
}

fn dropped(rows: &[v1::Drop]) -> Table<3> {
    let mut table = Table::new(["frames", "reason", "meaning"]);
    for row in rows {
        table.row([row.frames.to_string(), row.reason.clone(), row.sentence.clone()]);
    }
    table
}

fn addresses(counters: &v1::Counters, all: bool) -> Table<2> {
    let mut table = Table::new(["remote MAC addresses", "count"]);
    let (moves, learning) =
        (counters.moves.unwrap_or_default(), counters.learning.unwrap_or_default());
    for (name, count) in [
        ("moves followed", moves.followed),
        ("moves that were over at once", moves.coalesced),
        ("began to move too often", moves.flapping),
        ("learned: new", learning.new),
        ("learned: moved", learning.moved),
        ("learned: refreshed", learning.refreshed),
        ("not learned: too many addresses", learning.too_many_addresses),
        ("not learned: too many VTEPs", learning.too_many_vteps),
        ("not learned: a VTEP that only the kernel can reach", learning.unreachable),
        ("not learned: the kernel refused", learning.refused),
        ("not learned: moves too often", learning.flapping),
        ("not learned: too many at once", learning.rate),
    ]
    .into_iter()
    .filter(|(_, count)| all || *count > 0)
    {
        table.row([name.to_owned(), count.to_string()]);
    }
    table
}

fn counters(out: &mut impl Write, counters: &v1::Counters, all: bool) -> io::Result<()> {
    let mut frames = Table::new(["all frames", "count"]);
    let steering = counters.steering.unwrap_or_default();
    for (name, count) in [
        ("received from the underlay", counters.received_underlay),
        ("received from bridges", counters.received_bridge),
        ("copied (flood lists, segments)", counters.copied),
        ("sent", counters.sent),
        ("sent in super-frames", counters.in_super_frames),
        ("super-frames", counters.super_frames),
        ("sent to hosts past bridges", counters.past_bridge),
        ("sent by a default route (inner frames)", counters.default_route_frames),
        ("dropped", counters.dropped),
        ("held for a next hop", counters.held),
        ("steering: redirected from uplinks", steering.uplink_redirected),
        ("steering: redirected from bridges", steering.vxlan_redirected),
        ("steering: too big, left to the kernel", steering.vxlan_too_big),
        ("kernel datapath: encapsulated with a chosen source port", steering.port_chosen),
        ("kernel datapath: not IP, with the kernel's source port", steering.port_kept),
        ("steering: handed to bridges", steering.punt_returned),
        ("steering: handed to hosts' ports", steering.punt_delivered),
        ("steering: for a VNI that is gone", steering.punt_unknown_slot),
        ("steering: for a port that is gone or too small", steering.punt_undeliverable),
        ("steering: TCP super-frames sent whole", steering.uplink_tunnelled),
        ("steering: TCP super-frames that the kernel did not take", steering.uplink_untunnelled),
        ("steering: from uplinks, left to the kernel as the worker hung", steering.uplink_stalled),
        ("steering: from bridges, left to the kernel as the worker hung", steering.vxlan_stalled),
        ("steering: from hosts, left to bridges as the worker hung", steering.port_stalled),
        ("times that the worker hung", counters.worker_stalls),
    ]
    .into_iter()
    .filter(|(_, count)| all || *count > 0)
    {
        frames.row([name.to_owned(), count.to_string()]);
    }
    frames.write(out, "")?;
    if !all {
        writeln!(out, "(what is 0 is left out; --all shows it)")?;
    }
    writeln!(out)?;
    if counters.workers.len() > 1 {
        let mut workers =
            Table::new(["worker", "received from the underlay", "received from bridges"]);
        for (number, worker) in counters.workers.iter().enumerate() {
            workers.row(
                [number as u64, worker.received_underlay, worker.received_bridge]
                    .map(|n| n.to_string()),
            );
        }
        workers.write(out, "")?;
        writeln!(out)?;
    }
    let addresses = addresses(counters, all);
    if !addresses.is_empty() {
        addresses.write(out, "")?;
        writeln!(out)?;
    }
    let mut vnis = Table::new([
        "vni",
        "netdev",
        "encapsulated",
        "bytes",
        "decapsulated",
        "bytes",
        "switched",
        "flooded",
        "unknown vtep",
        "dropped",
    ]);
    for row in &counters.vnis {
        vnis.row([
            row.vni.to_string(),
            row.netdev.clone(),
            row.encapsulated_frames.to_string(),
            row.encapsulated_bytes.to_string(),
            row.decapsulated_frames.to_string(),
            row.decapsulated_bytes.to_string(),
            row.switched_frames.to_string(),
            row.flooded.to_string(),
            row.unknown_vtep.to_string(),
            row.dropped.to_string(),
        ]);
    }
    vnis.write(out, "")?;
    writeln!(out)?;
    let mut paths = Table::new(["uplink", "gateway", "frames", "bytes"]);
    for row in &counters.paths {
        paths.row([
            row.uplink.clone(),
            row.gateway.clone(),
            row.frames.to_string(),
            row.bytes.to_string(),
        ]);
    }
    paths.write(out, "")?;
    writeln!(out)?;
    let some: Vec<v1::Drop> =
        counters.drops.iter().filter(|drop| drop.frames > 0).cloned().collect();
    dropped(&some).write(out, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_nothing_was_dropped_for_are_shown_if_wanted() {
        let drop = |reason: &str, frames| v1::Drop {
            reason: reason.to_owned(),
            frames,
            ..v1::Drop::default()
        };
        let said = |rows: &[v1::Drop], all| {
            let mut text = Vec::new();
            drops_so_far(&mut text, rows, all).unwrap();
            String::from_utf8(text).unwrap()
        };
        let rows = [drop("no_route", 0), drop("too_big", 3)];
        let lines = |all| said(&rows, all).lines().map(str::to_owned).collect::<Vec<_>>();
        assert!(
            lines(false).len() == 2 && lines(false)[1].contains("too_big"),
            "{:?}",
            lines(false)
        );
        assert_eq!(lines(true).len(), 3);
        assert!(said(&rows[..1], false).starts_with("No frame has been dropped"));
        assert!(said(&rows[..1], true).contains("no_route"));
    }
}
