//! One method for each request of the schema.

use std::net::Ipv4Addr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

use api::v1;
use api::v1::vtepd_server::Vtepd;
use tables::{Snapshot, VniTable};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use wire::MacAddr;

use crate::api::{explain, show, tell};
use crate::shown::Shown;

/// See the module's description.
#[derive(Debug)]
pub struct Service {
    shown: Arc<Shown>,
}

/// A list, one message for each row: 100,000 of them never lie in one buffer.
type Rows<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn rows<T: Send + 'static>(rows: impl Iterator<Item = T> + Send + 'static) -> Response<Rows<T>> {
    Response::new(Box::pin(tokio_stream::iter(rows.map(Ok))))
}

/// A field that is text in the schema and more than text here.
fn parse<T: FromStr<Err: std::fmt::Display>>(field: &str, text: Option<&str>) -> Result<Option<T>, Status> {
    let parsed = text.map(str::parse).transpose();
    parsed.map_err(|error| Status::invalid_argument(format!("{field}: {error}")))
}

impl Service {
    /// Answers from what is shown.
    pub fn new(shown: Arc<Shown>) -> Self {
        Self { shown }
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

    fn not_taken(&self, vni: u32) -> Status {
        match self.shown.status.borrow().left.iter().find(|left| left.vni == vni) {
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

    async fn get_status(&self, _: Request<v1::GetStatusRequest>) -> Result<Response<v1::Status>, Status> {
        Ok(Response::new(tell::status(&self.shown)))
    }

    async fn list_vnis(
        &self,
        request: Request<v1::ListVnisRequest>,
    ) -> Result<Response<Self::ListVnisStream>, Status> {
        let mut vnis = tell::vnis(&self.shown);
        if let Some(vni) = request.into_inner().vni {
            vnis.retain(|row| row.vni == vni);
            if vnis.is_empty() {
                return Err(self.not_taken(vni));
            }
        }
        Ok(rows(vnis.into_iter()))
    }

    async fn list_fdb(
        &self,
        request: Request<v1::ListFdbRequest>,
    ) -> Result<Response<Self::ListFdbStream>, Status> {
        let v1::ListFdbRequest { vni, mac } = request.into_inner();
        let mac = parse::<MacAddr>("mac", mac.as_deref())?;
        let snapshot = self.shown.snapshot();
        let tables = self.tables(&snapshot, vni)?;
        Ok(rows(show::fdb(snapshot, tables, mac)))
    }

    async fn list_flood(
        &self,
        request: Request<v1::ListFloodRequest>,
    ) -> Result<Response<Self::ListFloodStream>, Status> {
        let snapshot = self.shown.snapshot();
        let tables = self.tables(&snapshot, request.into_inner().vni)?;
        Ok(rows(show::flood(snapshot, tables)))
    }

    async fn list_neighbours(
        &self,
        _: Request<v1::ListNeighboursRequest>,
    ) -> Result<Response<Self::ListNeighboursStream>, Status> {
        let uplinks = show::Uplinks::of(&self.shown.status.borrow());
        Ok(rows(show::next_hops(&self.shown.snapshot(), &uplinks).into_iter()))
    }

    async fn list_routes(
        &self,
        request: Request<v1::ListRoutesRequest>,
    ) -> Result<Response<Self::ListRoutesStream>, Status> {
        let vtep = parse::<Ipv4Addr>("vtep", request.into_inner().vtep.as_deref())?;
        let snapshot = self.shown.snapshot();
        if let Some(vtep) = vtep.filter(|vtep| !snapshot.knows_vtep(*vtep)) {
            return Err(Status::not_found(format!("no VNI that is taken over has a VTEP {vtep}")));
        }
        let uplinks = show::Uplinks::of(&self.shown.status.borrow());
        let vteps = snapshot.vteps().filter(|row| vtep.is_none_or(|vtep| row.address == vtep));
        let routes: Vec<_> = vteps.map(|vtep| show::route(vtep, &uplinks)).collect();
        Ok(rows(routes.into_iter()))
    }

    async fn list_peers(
        &self,
        _: Request<v1::ListPeersRequest>,
    ) -> Result<Response<Self::ListPeersStream>, Status> {
        Ok(rows(show::peers(&self.shown.snapshot()).into_iter()))
    }

    async fn get_counters(
        &self,
        _: Request<v1::GetCountersRequest>,
    ) -> Result<Response<v1::Counters>, Status> {
        Ok(Response::new(tell::counters(&self.shown)))
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::Explanation>, Status> {
        let v1::ExplainRequest { vni, frame } = request.into_inner();
        let snapshot = self.shown.snapshot();
        let tables = self.tables(&snapshot, Some(vni))?;
        let table = tables.first().ok_or_else(|| self.not_taken(vni))?;
        let uplinks = show::Uplinks::of(&self.shown.status.borrow());
        Ok(Response::new(explain::explain(&frame, table, &snapshot, &uplinks)))
    }
}
