//! The gRPC service: one method for each request of the schema.

use std::net::IpAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

use api::v1;
use api::v1::vtepd_server::Vtepd;
use control::{Change, Journal, LeftToKernel};
use path::{Bins, Policy, SourcePortRange};
use pipeline::DropReason;
use tables::{PortChoice, Snapshot, VniTable};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use wire::{MacAddr, Vni};

use crate::api::capture::{self, Capture};
use crate::api::captured::Wanted;
use crate::api::flow::Flow;
use crate::api::{events, explain, pinned, show, status};
use crate::handle::Handle;
use crate::pinning::Shared;
use crate::privilege::Peer;

/// Implements the gRPC service on top of the [`Handle`], the journal and requests to the control
/// task.
#[derive(Debug)]
pub(crate) struct Service {
    handle: Arc<Handle>,
    requests: mpsc::Sender<control::Request>,
    journal: Journal,
    /// A place for each capture.
    captures: Arc<Semaphore>,
}

/// A streamed list with one message for each row, so that long lists never lie in one buffer.
type Rows<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
/// What a method answers.
type Answer<T> = Result<Response<T>, Status>;
type Listing<T> = Answer<Rows<T>>;

fn rows<T: Send + 'static>(rows: impl Iterator<Item = T> + Send + 'static) -> Response<Rows<T>> {
    Response::new(Box::pin(tokio_stream::iter(rows.map(Ok))))
}

fn vni(number: u32) -> Result<Vni, Status> {
    Vni::try_from(number).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// Parses an optional text field.
fn parse<T: FromStr<Err: std::fmt::Display>>(
    field: &str,
    text: Option<&str>,
) -> Result<Option<T>, Status> {
    let parsed = text.map(str::parse).transpose();
    parsed.map_err(|error| Status::invalid_argument(format!("{field}: {error}")))
}

/// Refuses callers that may not change vtepd's state. `what` they ask for is a noun.
fn privileged<T>(request: &Request<T>, what: &str) -> Result<(), Status> {
    let unknown = || Err("the process that asks is unknown".to_owned());
    let checked = request.extensions().get::<Arc<Peer>>().map_or_else(unknown, |peer| peer.check());
    checked.map_err(|reason| {
        Status::permission_denied(format!("{what} needs CAP_NET_ADMIN, and {reason}"))
    })
}

impl Service {
    /// A service that answers from the handle and the journal, and asks the control task for the
    /// rest.
    pub(crate) fn new(
        handle: Arc<Handle>,
        requests: mpsc::Sender<control::Request>,
        journal: Journal,
    ) -> Self {
        let captures = Arc::new(Semaphore::new(capture::MOST));
        Self { handle, requests, journal, captures }
    }

    /// Sends a request to the control task and waits for the answer.
    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> control::Request,
    ) -> Result<T, Status> {
        let (answer, answered) = oneshot::channel();
        let ending = || Status::unavailable("vtepd is ending");
        self.requests.send(request(answer)).await.map_err(|_| ending())?;
        answered.await.map_err(|_| ending())
    }

    /// The row of a VNI. If several netdevs have it, one that is taken over comes first, and then
    /// the one of the configuration file. With `many`, a netdev that serves many VNIs also matches.
    async fn vni(&self, vni: u32, many: bool) -> Result<v1::Vni, Status> {
        let stations = self.handle.stations().await;
        let mut rows = status::vnis(&self.handle, &stations);
        rows.retain(|row| row.vni == vni || (many && row.external));
        rows.sort_by_key(|row| (row.external, row.left.is_some(), !row.standalone));
        rows.into_iter().next().ok_or_else(|| self.not_taken(vni))
    }

    /// Applies a change to a VNI and returns its new row.
    async fn change(&self, change: Change) -> Result<v1::Vni, Status> {
        let vni = change.vni().get();
        let many = matches!(change, Change::Policy { .. });
        self.vni(vni, many).await?;
        let refused = self.ask(|answer| control::Request::Change(change, answer)).await?;
        refused.map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.vni(vni, many).await
    }

    /// The first frame of a flow in a VNI.
    async fn frame(&self, vni: u32, flow: &Flow) -> Result<Vec<u8>, Status> {
        if let Some(mac) = flow.destination_mac {
            return flow.frame(mac);
        }
        let Some(address) = flow.destination else {
            return Err(Status::invalid_argument(
                "flow: the destination is missing: name its MAC address or its IP address",
            ));
        };
        let hosts = self.ask(control::Request::Hosts).await?;
        let text = address.to_string();
        let mut known: Vec<v1::Neighbour> = hosts.into_iter().map(show::host).collect();
        known.retain(|row| row.vni == Some(vni));
        let host = known.iter().find(|row| row.address == text);
        match host.and_then(|host| host.mac.as_ref()?.parse().ok()) {
            Some(mac) => flow.frame(mac),
            None => {
                let some: Vec<&str> = known.iter().take(4).map(|row| &*row.address).collect();
                let others = match some.len() {
                    0 => "and no other".to_owned(),
                    _ => format!("but {} ({})", known.len(), some.join(", ")),
                };
                Err(Status::not_found(format!(
                    "the kernel knows no host {address} in VNI {vni}, {others}: name its MAC address"
                )))
            }
        }
    }

    /// The tables of one VNI, or of all.
    fn tables(&self, snapshot: &Snapshot, vni: Option<u32>) -> Result<Vec<Arc<VniTable>>, Status> {
        let wanted = |table: &&Arc<VniTable>| vni.is_none_or(|vni| table.tunnel.vni.get() == vni);
        let tables: Vec<_> = snapshot.vnis().filter(wanted).cloned().collect();
        match vni {
            Some(vni) if tables.is_empty() => Err(self.not_taken(vni)),
            _ => Ok(tables),
        }
    }

    /// The netdev on which kernel VXLAN forwards a VNI, and how source ports are chosen there. It
    /// is the VNI's own netdev, or one that serves many VNIs.
    fn left(&self, vni: u32) -> Option<(LeftToKernel, Option<PortChoice>)> {
        let status = self.handle.status.borrow();
        let rows = || status.left.iter().filter(|left| !left.is_standalone());
        let left = rows()
            .find(|left| !left.reason.is_external() && left.vni == vni)
            .or_else(|| rows().find(|left| left.reason.is_external()))?;
        Some((left.clone(), status.plan.choice_of(left.source).cloned()))
    }

    /// Rows about the placement of queue pairs. There may be many: the control task does not wait for
    /// them.
    async fn placement_rows<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shared, &Snapshot, &show::Uplinks) -> Vec<T> + Send + 'static,
    ) -> Result<Response<Rows<T>>, Status> {
        let shared = Arc::clone(self.pinning()?);
        let uplinks = show::Uplinks::of(&self.handle.status.borrow());
        let snapshot = self.handle.snapshot();
        let read = spawn_blocking(move || read(&shared, &snapshot, &uplinks)).await;
        let read = read.map_err(|error| Status::internal(error.to_string()))?;
        Ok(rows(read.into_iter()))
    }

    /// The placement of queue pairs.
    fn pinning(&self) -> Result<&Arc<Shared>, Status> {
        self.handle.pinning.as_ref().ok_or_else(|| {
            Status::failed_precondition(
                "paths are not probed: set probing.key in the configuration file, the same on all leaves, and start \
                 vtepd again",
            )
        })
    }

    fn not_taken(&self, vni: u32) -> Status {
        match self.handle.status.borrow().left.iter().find(|left| left.vni == vni) {
            Some(left) => Status::failed_precondition(left.to_string()),
            None => Status::not_found(format!(
                "no vxlan netdev of this network namespace has VNI {vni} (`vtepctl vni` lists those there are)"
            )),
        }
    }
}

#[tonic::async_trait]
impl Vtepd for Service {
    type ListVnisStream = Rows<v1::Vni>;
    type ListFdbStream = Rows<v1::FdbEntry>;
    type ListFloodStream = Rows<v1::FloodEntry>;
    type ListNeighboursStream = Rows<v1::Neighbour>;
    type ListRoutesStream = Rows<v1::Route>;
    type ListPeersStream = Rows<v1::Peer>;
    type ListPortsStream = Rows<v1::Port>;
    type ListPathsStream = Rows<v1::VtepPaths>;
    type ListQueuePairsStream = Rows<v1::QueuePair>;
    type ListFlowsStream = Rows<v1::CachedFlow>;
    type ListDroppedFramesStream = Rows<v1::DroppedFrame>;
    type CaptureStream = Rows<v1::Captured>;
    type WatchEventsStream = Rows<v1::Event>;

    async fn get_status(&self, _: Request<v1::GetStatusRequest>) -> Answer<v1::Status> {
        let stations = self.handle.stations().await;
        Ok(Response::new(status::status(&self.handle, &stations)))
    }

    async fn list_vnis(&self, request: Request<v1::ListVnisRequest>) -> Listing<v1::Vni> {
        let stations = self.handle.stations().await;
        let mut vnis = status::vnis(&self.handle, &stations);
        if let Some(vni) = request.into_inner().vni {
            vnis.retain(|row| row.vni == vni);
            if vnis.is_empty() {
                return Err(self.not_taken(vni));
            }
        }
        Ok(rows(vnis.into_iter()))
    }

    async fn list_fdb(&self, request: Request<v1::ListFdbRequest>) -> Listing<v1::FdbEntry> {
        let v1::ListFdbRequest { vni, mac } = request.into_inner();
        let mac = parse::<MacAddr>("mac", mac.as_deref())?;
        let snapshot = self.handle.snapshot();
        let tables = self.tables(&snapshot, vni)?;
        let learned =
            show::stations(self.handle.stations().await, &tables, mac, &self.handle.access);
        Ok(rows(show::fdb(snapshot, tables, mac).chain(learned)))
    }

    async fn list_flood(&self, request: Request<v1::ListFloodRequest>) -> Listing<v1::FloodEntry> {
        let snapshot = self.handle.snapshot();
        let tables = self.tables(&snapshot, request.into_inner().vni)?;
        Ok(rows(show::flood(snapshot, tables)))
    }

    async fn list_neighbours(
        &self,
        _: Request<v1::ListNeighboursRequest>,
    ) -> Listing<v1::Neighbour> {
        let uplinks = show::Uplinks::of(&self.handle.status.borrow());
        let hops = show::next_hops(&self.handle.snapshot(), &uplinks);
        let hosts = self.ask(control::Request::Hosts).await?;
        Ok(rows(hops.into_iter().chain(hosts.into_iter().map(show::host))))
    }

    async fn list_routes(&self, request: Request<v1::ListRoutesRequest>) -> Listing<v1::Route> {
        let vtep = parse::<IpAddr>("vtep", request.into_inner().vtep.as_deref())?;
        let snapshot = self.handle.snapshot();
        if let Some(vtep) = vtep.filter(|vtep| !snapshot.knows_vtep(*vtep)) {
            return Err(Status::not_found(format!("no VNI that is taken over has a VTEP {vtep}")));
        }
        let uplinks = show::Uplinks::of(&self.handle.status.borrow());
        let mut vteps: Vec<_> =
            snapshot.vteps().filter(|row| vtep.is_none_or(|vtep| row.address == vtep)).collect();
        vteps.sort_by_key(|vtep| vtep.address);
        let routes: Vec<_> = vteps.into_iter().map(|vtep| show::route(vtep, &uplinks)).collect();
        Ok(rows(routes.into_iter()))
    }

    async fn list_peers(&self, _: Request<v1::ListPeersRequest>) -> Listing<v1::Peer> {
        let stations = self.handle.stations().await;
        Ok(rows(
            show::peers(&self.handle.snapshot(), &stations, &self.handle.counters()).into_iter(),
        ))
    }

    async fn list_ports(&self, request: Request<v1::ListPortsRequest>) -> Listing<v1::Port> {
        let vni = request.into_inner().vni;
        // A VNI that is not taken over is an error. A VNI without ports is not.
        self.tables(&self.handle.snapshot(), vni)?;
        let mut ports = status::ports(&self.handle);
        ports.retain(|port| vni.is_none_or(|vni| port.vni == vni));
        Ok(rows(ports.into_iter()))
    }

    async fn list_paths(&self, request: Request<v1::ListPathsRequest>) -> Listing<v1::VtepPaths> {
        let vtep = parse::<IpAddr>("vtep", request.into_inner().vtep.as_deref())?;
        let paths = move |shared: &Shared, snapshot: &Snapshot, uplinks: &show::Uplinks| {
            pinned::paths(shared, snapshot, uplinks, vtep)
        };
        self.placement_rows(paths).await
    }

    async fn list_dropped_frames(
        &self,
        request: Request<v1::ListDroppedFramesRequest>,
    ) -> Listing<v1::DroppedFrame> {
        let reason = request.into_inner().reason.map(|label| {
            let reason = DropReason::ALL.iter().find(|reason| reason.label() == label);
            reason.copied().ok_or_else(|| {
                Status::invalid_argument(format!(
                    "there is no reason {label:?}: `vtepctl drops --all` lists those there are"
                ))
            })
        });
        Ok(rows(status::dropped_frames(&self.handle, reason.transpose()?).into_iter()))
    }

    async fn capture(&self, request: Request<v1::CaptureRequest>) -> Listing<v1::Captured> {
        privileged(&request, "a capture")?;
        let request = request.into_inner();
        let wanted = Wanted::try_from(&request)?;
        let place =
            Arc::clone(&self.captures).try_acquire_owned().map_err(|_| capture::too_many())?;
        let capture = Capture::open(Arc::clone(&self.handle), wanted, request.snap_length as usize);
        let packets = capture.and_then(|capture| capture.start(place)).map_err(capture::failed)?;
        Ok(Response::new(Box::pin(ReceiverStream::new(packets))))
    }

    async fn list_queue_pairs(
        &self,
        request: Request<v1::ListQueuePairsRequest>,
    ) -> Listing<v1::QueuePair> {
        let wanted = request.into_inner();
        let queue_pairs = move |shared: &Shared, snapshot: &Snapshot, uplinks: &show::Uplinks| {
            pinned::queue_pairs(shared, snapshot, uplinks, wanted)
        };
        self.placement_rows(queue_pairs).await
    }

    async fn list_flows(&self, request: Request<v1::ListFlowsRequest>) -> Listing<v1::CachedFlow> {
        let vni = request.into_inner().vni;
        let snapshot = self.handle.snapshot();
        self.tables(&snapshot, vni)?;
        let flows = self.handle.flows().await;
        let uplinks = show::Uplinks::of(&self.handle.status.borrow());
        Ok(rows(show::flows(flows, vni, &snapshot, &uplinks).into_iter()))
    }

    async fn get_counters(&self, _: Request<v1::GetCountersRequest>) -> Answer<v1::Counters> {
        Ok(Response::new(status::counters(&self.handle)))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Answer<v1::Explanation> {
        let v1::ExplainRequest { vni, frame, flow } = request.into_inner();
        let frame = match flow {
            Some(flow) if frame.is_empty() => self.frame(vni, &Flow::try_from(&flow)?).await?,
            Some(_) => return Err(Status::invalid_argument("either a frame or a flow, not both")),
            None => frame,
        };
        let snapshot = self.handle.snapshot();
        let tables = self.tables(&snapshot, Some(vni)).or_else(|error| match self.left(vni) {
            Some(_) => Ok(Vec::new()),
            None => Err(error),
        })?;
        let (pins, shared) = (self.handle.known_pins(), self.handle.pinning.as_deref());
        let uplinks = show::Uplinks::of(&self.handle.status.borrow());
        let leaf = explain::Leaf { snapshot: &snapshot, uplinks: &uplinks, pins: &pins, shared };
        let Some(table) = tables.first() else {
            let (left, choice) = self.left(vni).ok_or_else(|| self.not_taken(vni))?;
            let explanation =
                explain::encapsulated_by_kernel(&frame, vni, &left, choice.as_ref(), leaf)?;
            return Ok(Response::new(explanation));
        };
        let ports = &self.handle.access;
        let stations = self.handle.stations().await;
        if ports.is_empty()
            && let Some(mac) = explain::unknown(&frame, table)
            && let Some(port) =
                self.ask(|answer| control::Request::Port(table.index, mac, answer)).await?
        {
            return Ok(Response::new(explain::local(mac, port, table)));
        }
        Ok(Response::new(if ports.is_empty() {
            explain::explain(&frame, table, leaf)
        } else {
            explain::switched(&frame, table, leaf, &stations, ports)
        }))
    }

    async fn watch_events(&self, request: Request<v1::WatchEventsRequest>) -> Listing<v1::Event> {
        let v1::WatchEventsRequest { follow, after, skip, since_ms } = request.into_inner();
        let reader = self.journal.read_after(if skip { self.journal.last() } else { after });
        let since = since_ms.and_then(events::before_now);
        Ok(Response::new(if follow {
            Box::pin(events::follow(reader, since))
        } else {
            Box::pin(events::so_far(reader, since))
        }))
    }

    async fn set_policy(&self, request: Request<v1::SetPolicyRequest>) -> Answer<v1::Vni> {
        privileged(&request, "a change")?;
        let v1::SetPolicyRequest { vni: number, policy, bins, source_ports } = request.into_inner();
        let vni = vni(number)?;
        let policy = parse::<Policy>("policy", policy.as_deref())?;
        if policy.is_some_and(Policy::places_queue_pairs) {
            self.pinning()?;
        }
        let bins = bins.map(|bins| {
            let parsed: Result<Bins, _> = bins.to_string().parse();
            parsed.map_err(|error| Status::invalid_argument(format!("bins: {error}")))
        });
        let bins = bins.transpose()?;
        let source_ports = parse::<SourcePortRange>("source_ports", source_ports.as_deref())?;
        if policy.is_none() && bins.is_none() && source_ports.is_none() {
            return Err(Status::invalid_argument(
                "nothing to change: give a policy, bins or source ports",
            ));
        }
        let row = self.vni(number, true).await?;
        let chosen = row.chosen_port.and_then(|chosen| chosen.policy);
        let now = row.taken.and_then(|taken| taken.policy).or(chosen).map(|policy| policy.name);
        if bins.is_some()
            && policy.map_or(now, |policy| Some(policy.to_string()))
                != Some(Policy::QpBins.to_string())
        {
            return Err(Status::invalid_argument("only qp-bins has bins: name it as the policy"));
        }
        let row = self.change(Change::Policy { vni, policy, bins, source_ports }).await?;
        Ok(Response::new(row))
    }

    async fn explain_received(
        &self,
        request: Request<v1::ExplainReceivedRequest>,
    ) -> Answer<v1::ReceivedExplanation> {
        let frame = request.into_inner().frame;
        let (snapshot, open) = (self.handle.snapshot(), self.handle.open_ports());
        let ports = &self.handle.status.borrow().plan.ports;
        Ok(Response::new(explain::received(&frame, &snapshot, &open, ports)))
    }

    async fn attach_vni(&self, request: Request<v1::AttachVniRequest>) -> Answer<v1::Vni> {
        privileged(&request, "a change")?;
        let row = self.change(Change::Attach(vni(request.into_inner().vni)?)).await?;
        // The VNI is configured to be taken over, but may not be eligible.
        match &row.left {
            Some(reason) => Err(Status::failed_precondition(format!(
                "{} (VNI {}) stays with kernel VXLAN: {reason}; it is taken over once that is no longer so",
                row.netdev, row.vni
            ))),
            None => Ok(Response::new(row)),
        }
    }

    async fn detach_vni(&self, request: Request<v1::DetachVniRequest>) -> Answer<v1::Vni> {
        privileged(&request, "a change")?;
        let row = self.change(Change::Detach(vni(request.into_inner().vni)?)).await?;
        Ok(Response::new(row))
    }
}
