//! Requests of API clients, from their bytes to the answer.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use ::api::v1;
use ::api::v1::vtepd_server::Vtepd as _;
use bpf::Hook;
use configuration::Standalone;
use control::{Change, Journal, Namespace, Settings, State, Status, Update};
use futures_util::StreamExt as _;
use nix::sched::{CloneFlags, unshare};
use prost::Message;
use tables::SteeringDiff;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tonic::{Code, Request};
use worker::{Features, WorkerOptions};

use crate::frames::THERE;
use crate::vtepd::api::service::Service;
use crate::vtepd::handle::Handle;
use crate::vtepd::takeover::{SteeringOptions, Takeover};

/// A service over the tables of one VNI, and the channel of its requests to the control task.
struct Daemon {
    runtime: Runtime,
    service: Service,
    requests: Mutex<mpsc::Receiver<control::Request>>,
}

/// The only VNI of the tables.
const VNI: u32 = 10_010;

static DAEMON: LazyLock<Daemon> = LazyLock::new(|| {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (sender, requests) = mpsc::channel(16);
    let options = WorkerOptions { workers: 1, realtime: false, gso: true, busy_poll: false };
    let access = Standalone::default().open(&Settings::default(), 1).unwrap();
    let steering = SteeringOptions {
        hook: Hook::Tcx,
        features: Features::ALL,
        stall_limit: Duration::from_secs(1),
        expedited_rcu: false,
    };
    let takeover = Takeover::prepare(
        steering,
        (options, &pipeline::Pins::default()),
        &[],
        access,
        &sender,
        || {},
        || {},
    )
    .unwrap();
    let (status, seen) = watch::channel(Status::default());
    let handle = Handle::new(
        takeover,
        Vec::new(),
        Hook::Tcx,
        Features::ALL,
        (true, None),
        seen,
        Arc::default(),
    );
    // The fuzzer does not need the worker threads. The tables that the service shows remain.
    handle.stop().unwrap();
    let snapshot = Arc::new(THERE.clone());
    handle.apply(&Update { snapshot, ..Update::default() }, &SteeringDiff::default()).unwrap();
    drop(status);
    let service = Service::new(Arc::new(handle), sender, Journal::default());
    Daemon { runtime, service, requests: Mutex::new(requests) }
});

/// Requests of every kind. The first byte of an input selects the kind.
fn requests() -> Vec<Vec<u8>> {
    let frame = frames::leaf::roce(64, 0x11, 1).unwrap();
    let outer = crate::frames::encapsulated([0; 6], 0, &frame);
    let (vni, some) = (VNI, Some(VNI));
    let mac = Some("02:00:00:00:01:00".to_owned());
    vec![
        v1::ListVnisRequest { vni: some }.encode_to_vec(),
        v1::ListFdbRequest { vni: some, mac }.encode_to_vec(),
        v1::ListFloodRequest { vni: some }.encode_to_vec(),
        v1::ListRoutesRequest { vtep: Some("10.0.0.1".to_owned()) }.encode_to_vec(),
        v1::ListPortsRequest { vni: some }.encode_to_vec(),
        v1::ExplainRequest { vni, frame, flow: None }.encode_to_vec(),
        v1::ExplainReceivedRequest { frame: outer }.encode_to_vec(),
        v1::WatchEventsRequest { follow: false, after: 3, skip: true, since_ms: Some(u64::MAX) }
            .encode_to_vec(),
        v1::SetPolicyRequest {
            vni,
            policy: Some("qp-bins".to_owned()),
            bins: Some(4),
            source_ports: Some("50000-50999".to_owned()),
        }
        .encode_to_vec(),
        v1::AttachVniRequest { vni }.encode_to_vec(),
        v1::DetachVniRequest { vni }.encode_to_vec(),
    ]
}

/// One request of every kind, and some that are refused.
pub fn seeds() -> Vec<Vec<u8>> {
    let with_kind = |(kind, request): (u8, Vec<u8>)| [&[kind], &request[..]].concat();
    let mut seeds: Vec<_> = (0..).zip(requests()).map(with_kind).collect();
    let refused =
        v1::SetPolicyRequest { vni: VNI, bins: Some(0), ..v1::SetPolicyRequest::default() };
    seeds.push(with_kind((8, refused.encode_to_vec())));
    let short = v1::ExplainRequest { vni: VNI, frame: vec![2; 13], flow: None };
    seeds.push(with_kind((5, short.encode_to_vec())));
    let flow = v1::Flow {
        source: Some("192.168.10.1".to_owned()),
        destination: Some("192.168.10.2".to_owned()),
        queue_pair: Some(0x11),
        ..v1::Flow::default()
    };
    let described = v1::ExplainRequest { vni: VNI, frame: Vec::new(), flow: Some(flow) };
    seeds.push(with_kind((5, described.encode_to_vec())));
    seeds
}

/// Every request that can be decoded is answered, or refused with a message and a code that is not
/// an internal error.
pub fn api_request(data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let Daemon { runtime, service, requests } = &*DAEMON;
    let mut requests = requests.lock().unwrap();
    let answer = async {
        tokio::select! {
            refused = call(service, kind % 11, bytes) => refused,
            () = control_room(&mut requests) => unreachable!(),
        }
    };
    if let Some(refused) = runtime.block_on(answer) {
        let expected = matches!(
            refused.code(),
            Code::InvalidArgument
                | Code::NotFound
                | Code::FailedPrecondition
                | Code::PermissionDenied
        );
        assert!(expected && !refused.message().is_empty(), "{refused:?}");
    }
}

/// Answers requests as the control task does.
async fn control_room(requests: &mut mpsc::Receiver<control::Request>) {
    let mut state = State::new(Settings::default(), Namespace::default());
    while let Some(request) = requests.recv().await {
        match request {
            control::Request::Change(change, answer) => {
                assert_eq!(change.vni().get(), VNI, "only a VNI that is there is changed");
                if let Change::Policy { policy, bins, source_ports, .. } = change {
                    assert!(policy.is_some() || bins.is_some() || source_ports.is_some());
                }
                let _ = answer.send(state.change(&change));
            }
            control::Request::Hosts(answer) => drop(answer.send(Vec::new())),
            control::Request::Port(_, _, answer) => drop(answer.send(None)),
            _ => {}
        }
    }
    std::future::pending().await
}

fn decode<T: Message + Default>(bytes: &[u8]) -> Option<Request<T>> {
    T::decode(bytes).ok().map(Request::new)
}

/// Sends the request. Returns the error, if it is refused.
async fn call(service: &Service, kind: u8, bytes: &[u8]) -> Option<tonic::Status> {
    macro_rules! rows {
        ($method:ident) => {
            match service.$method(decode(bytes)?).await {
                Ok(rows) => {
                    let rows: Vec<_> = rows.into_inner().collect().await;
                    rows.into_iter().find_map(Result::err)
                }
                Err(refused) => Some(refused),
            }
        };
    }
    match kind {
        0 => rows!(list_vnis),
        1 => rows!(list_fdb),
        2 => rows!(list_flood),
        3 => rows!(list_routes),
        4 => rows!(list_ports),
        5 => service.explain(decode(bytes)?).await.err(),
        6 => service.explain_received(decode(bytes)?).await.err(),
        7 => {
            let mut request: Request<v1::WatchEventsRequest> = decode(bytes)?;
            request.get_mut().follow = false;
            service.watch_events(request).await.err()
        }
        8 => service.set_policy(decode(bytes)?).await.err(),
        9 => service.attach_vni(decode(bytes)?).await.err(),
        _ => service.detach_vni(decode(bytes)?).await.err(),
    }
}
