//! The request and the output of each command.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use api::v1;
use clap::CommandFactory;
use terminal::Escaped;
use wire::MacAddr;

use crate::arguments::{Arguments, Command, OfVni, Output, PolicyCommand};
use crate::counters::{all_drops, counters, drops_so_far};
use crate::output::Failure;
use crate::session::{Session, all};
use crate::tables::{
    attached, detached, fdb, flood, flows, neighbours, peers, policies, policy_set, ports, routes,
    vnis,
};
use crate::{capture, drops, events, explain, pinned, status, top};

/// Sends the request of a command and prints the answer.
///
/// # Errors
/// When no daemon runs, it refuses the request, or the output cannot be written.
pub(crate) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { socket, output, command } = arguments;
    if let Command::Manual { folder } = command {
        return Ok(manual::write(Arguments::command(), &folder)?);
    }
    if let Command::Top(of) = command {
        return top::run(of, &socket, output).await;
    }
    let client = api::connect(&socket).await?;
    let mut out = Escaped(BufWriter::new(io::stdout().lock()));
    Session { client, output, out: &mut out }.answer(command).await?;
    Ok(out.flush()?)
}

impl<W: Write> Session<'_, W> {
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
            Command::Fdb { of: OfVni { vni }, mac } => self.fdb(vni, mac).await,
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
            Command::Path { vtep, csv } => {
                let request = v1::ListPathsRequest { vtep: vtep.map(|vtep| vtep.to_string()) };
                let rows = all(self.client.list_paths(request).await?).await?;
                self.print(&rows, |out| pinned::write_paths(out, &rows, csv))
            }
            Command::Qp { number, of: OfVni { vni }, gone, csv } => {
                let gone = gone || number.is_some();
                let request = v1::ListQueuePairsRequest { vni, gone, queue_pair: number };
                self.queue_pairs(request, csv).await
            }
            Command::Flow(OfVni { vni }) => {
                let rows = all(self.client.list_flows(v1::ListFlowsRequest { vni }).await?).await?;
                self.print(&rows, |out| flows(&rows).write(out, ""))
            }
            Command::Peer => {
                let rows = all(self.client.list_peers(v1::ListPeersRequest {}).await?).await?;
                self.print(&rows, |out| peers(out, &rows))
            }
            Command::Port(OfVni { vni }) => {
                let rows = all(self.client.list_ports(v1::ListPortsRequest { vni }).await?).await?;
                self.print(&rows, |out| ports(&rows).write(out, ""))
            }
            Command::Drops { frames: true, reason, write, .. } => self.dropped(reason, write).await,
            Command::Capture(of) => capture::run(&mut self, of).await,
            Command::Drops { all, .. } => {
                let drops = all_drops(&self.counters().await?);
                self.print(&drops, |out| drops_so_far(out, &drops, all))
            }
            Command::Counters { all } => {
                let answer = self.counters().await?;
                self.print(&answer, |out| counters(out, &answer, all))
            }
            Command::Events { follow, new, after, since } => {
                let since_ms = since.map(|since| since.as_millis() as u64);
                let request = v1::WatchEventsRequest { follow, after, skip: new, since_ms };
                events::print(&mut self, request).await
            }
            Command::Policy(PolicyCommand::Show(OfVni { vni })) => {
                let mut rows =
                    all(self.client.list_vnis(v1::ListVnisRequest { vni }).await?).await?;
                rows.retain(|row| row.taken.is_some() || row.chosen_port.is_some());
                self.print(&rows, |out| policies(&rows).write(out, ""))
            }
            Command::Policy(PolicyCommand::Set { .. })
            | Command::Attach { .. }
            | Command::Detach { .. } => self.change(command).await,
            Command::Manual { .. } | Command::Top(_) => Ok(()),
            Command::Explain(explain) => explain::print(&mut self, explain).await,
        }
    }

    async fn fdb(mut self, vni: Option<u32>, mac: Option<MacAddr>) -> Result<(), Failure> {
        let request = v1::ListFdbRequest { vni, mac: mac.map(|mac| mac.to_string()) };
        let mut rows = all(self.client.list_fdb(request).await?).await?;
        if let (Some(mac), true, Output::Table) = (mac, rows.is_empty(), self.output) {
            return Err(Failure::Input(format!(
                "{mac} is in no VNI that is taken over, as that of a remote host ('bridge fdb' lists all)"
            )));
        }
        rows.sort_by(|a, b| (a.vni, &a.mac).cmp(&(b.vni, &b.mac)));
        self.print(&rows, |out| fdb(&rows).write(out, ""))
    }

    async fn counters(&mut self) -> Result<v1::Counters, Failure> {
        Ok(self.client.get_counters(v1::GetCountersRequest {}).await?.into_inner())
    }

    async fn queue_pairs(
        mut self,
        request: v1::ListQueuePairsRequest,
        csv: bool,
    ) -> Result<(), Failure> {
        let rows = all(self.client.list_queue_pairs(request).await?).await?;
        if let Some(number) = request.queue_pair.filter(|_| rows.is_empty()) {
            return Err(Failure::Input(format!(
                "queue pair {number:#x} is not placed here, and none of this number has gone in the last hour"
            )));
        }
        self.print(&rows, |out| pinned::write_queue_pairs(out, &rows, csv))
    }

    async fn dropped(
        mut self,
        reason: Option<String>,
        write: Option<PathBuf>,
    ) -> Result<(), Failure> {
        let request = v1::ListDroppedFramesRequest { reason: reason.clone() };
        let frames = all(self.client.list_dropped_frames(request).await?).await?;
        if let Some(path) = write {
            return drops::save(&frames, &path);
        }
        let frames: Vec<drops::Shown> = frames.into_iter().map(Into::into).collect();
        let mut counted = self.counters().await?.drops;
        counted.retain(|drop| reason.as_ref().is_none_or(|reason| *reason == drop.reason));
        self.print(&frames, |out| drops::write(out, &frames, &counted))
    }

    /// Commands that change how vtepd forwards a VNI.
    async fn change(mut self, command: Command) -> Result<(), Failure> {
        match command {
            Command::Policy(PolicyCommand::Set { vni, policy, bins, source_ports }) => {
                let request = v1::SetPolicyRequest { vni, policy, bins, source_ports };
                let row = self.client.set_policy(request).await?.into_inner();
                self.print(&row, |out| policy_set(out, &row))
            }
            Command::Attach { vni } => {
                let row = self.client.attach_vni(v1::AttachVniRequest { vni }).await?.into_inner();
                self.print(&row, |out| writeln!(out, "{}", attached(&row)))
            }
            Command::Detach { vni } => {
                let row = self.client.detach_vni(v1::DetachVniRequest { vni }).await?.into_inner();
                self.print(&row, |out| writeln!(out, "{}", detached(&row)))
            }
            _ => Ok(()),
        }
    }
}
