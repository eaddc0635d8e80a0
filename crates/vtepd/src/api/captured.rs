//! What was decided about a captured packet, in words: by the tables that forward, and by the code
//! that explains.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use api::v1;
use path::PathId;
use pathmap::placer::{PathView, Target};
use pipeline::explain_received::Fate;
use pipeline::{DropReason, Frame, Offload};
use tables::VniTable;
use tonic::Status;
use wire::number::PROTOCOL_UDP;
use wire::{Dissection, MacAddr, QueuePair, Vni, Vxlan};

use crate::api::pinned::{self, Names};
use crate::api::show::Uplinks;
use crate::api::status;
use crate::handle::Handle;

/// For how long words are used again. Paths and tables change.
const CURRENT: Duration = Duration::from_millis(500);
/// The most words that are kept.
const MOST_WORDS: usize = 4096;
/// Bytes of an inner frame on which its fate may depend: addresses, EtherType, and the start of an IP
/// header with its protocol.
const INNER_HEAD: usize = 24;

/// A VXLAN packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tunnelled<'a> {
    packet: &'a [u8],
    source: IpAddr,
    destination: IpAddr,
    source_port: u16,
    port: u16,
    tos: u8,
    vni: Vni,
    /// The inner frame.
    pub inner: &'a [u8],
}

impl<'a> Tunnelled<'a> {
    /// A packet to one of these UDP ports. `None` if it is no VXLAN packet.
    pub(super) fn parse(packet: &'a [u8], ports: &[u16]) -> Option<Self> {
        let Dissection { network, transport, .. } = wire::dissect(packet)?;
        let (source, destination) = network.addresses()?;
        let transport = transport.filter(|transport| transport.protocol == PROTOCOL_UDP)?;
        let (source_port, port) = transport.ports.filter(|(_, port)| ports.contains(port))?;
        let (header, inner) =
            Vxlan::parse(packet.get(usize::from(transport.offset) + 8..)?).ok()?;
        let tos = network.traffic_class().unwrap_or_default();
        let vni = header.vni().ok()?;
        Some(Self { packet, source, destination, source_port, port, tos, vni, inner })
    }
}

/// Which inner frames are wanted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wanted {
    pub vni: Option<Vni>,
    pub queue_pair: Option<QueuePair>,
    pub mac: Option<MacAddr>,
}

impl TryFrom<&v1::CaptureRequest> for Wanted {
    type Error = Status;

    fn try_from(request: &v1::CaptureRequest) -> Result<Self, Status> {
        fn parsed<T, E: std::fmt::Display>(
            field: Option<Result<T, E>>,
        ) -> Result<Option<T>, Status> {
            field.transpose().map_err(|error| Status::invalid_argument(error.to_string()))
        }
        Ok(Self {
            vni: parsed(request.vni.map(Vni::try_from))?,
            queue_pair: parsed(request.queue_pair.map(QueuePair::try_from))?,
            mac: parsed(request.mac.as_deref().map(str::parse))?,
        })
    }
}

impl Wanted {
    /// Whether everything is, also what is no VXLAN packet.
    pub(super) const fn is_all(&self) -> bool {
        matches!(self, Self { vni: None, queue_pair: None, mac: None })
    }

    /// Whether a frame of this VNI is.
    pub(super) fn has(&self, vni: Option<Vni>, inner: &[u8]) -> bool {
        let Self { vni: wanted, queue_pair, mac } = self;
        let of_vni = wanted.is_none() || *wanted == vni;
        if queue_pair.is_none() && mac.is_none() {
            return of_vni;
        }
        of_vni
            && wire::dissect(inner).is_some_and(|frame| {
                let to = frame.roce.map(|roce| roce.destination);
                queue_pair.is_none_or(|wanted| to == Some(wanted))
                    && mac.is_none_or(|mac| [frame.source, frame.destination].contains(&mac))
            })
    }

    /// Whether a VXLAN packet is.
    pub(super) fn has_packet(&self, packet: &Tunnelled<'_>) -> bool {
        self.has(Some(packet.vni), packet.inner)
    }
}

/// What the words about a packet depend on, apart from the tables.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    sent_by: Option<u32>,
    addresses: (IpAddr, IpAddr),
    ports: (u16, u16),
    tos: u8,
    vni: u32,
    length: usize,
    head: [u8; INNER_HEAD],
}

/// Finds words about packets.
#[derive(Debug)]
pub(super) struct Words {
    known: HashMap<Key, (String, bool)>,
    since: Instant,
}

impl Words {
    /// Without any.
    pub(super) fn new() -> Self {
        Self { known: HashMap::new(), since: Instant::now() }
    }

    /// What was decided about a packet that an uplink with this index received or, if `outgoing`, sent;
    /// and whether the frame in it passed the leaf.
    pub(super) fn about(
        &mut self,
        handle: &Handle,
        (uplink, outgoing): (u32, bool),
        packet: &Tunnelled<'_>,
    ) -> (String, bool) {
        if self.since.elapsed() > CURRENT || self.known.len() >= MOST_WORDS {
            self.known.clear();
            self.since = Instant::now();
        }
        let key = key(uplink, outgoing, packet);
        let (text, passed) = match key.as_ref().and_then(|key| self.known.get(key)) {
            Some(known) => known.clone(),
            None => {
                let found = if outgoing {
                    (sent(handle, uplink, packet), true)
                } else {
                    received(handle, packet)
                };
                if let Some(key) = key {
                    self.known.insert(key, found.clone());
                }
                found
            }
        };
        let roce = wire::dissect(packet.inner).and_then(|frame| frame.roce);
        let queue_pair =
            roce.map(|roce| format!(", qp {:#x}", roce.destination.get())).unwrap_or_default();
        (text + &queue_pair, passed)
    }
}

/// `None` if the checksum of the packet decides, too.
fn key(uplink: u32, outgoing: bool, packet: &Tunnelled<'_>) -> Option<Key> {
    let Tunnelled { source, destination, source_port, port, tos, vni, inner, .. } = *packet;
    let mut head = [0; INNER_HEAD];
    let (sent_by, source_port) = if outgoing {
        (Some(uplink), source_port)
    } else {
        head = *inner.first_chunk()?;
        // Before the inner frame are 8 bytes of VXLAN, and before them those of the UDP checksum.
        let checksum = packet.packet.len().checked_sub(inner.len() + 8 + 2)?;
        let is_without = packet.packet.get(checksum..)?.first_chunk::<2>()? == &[0, 0];
        if !is_without || !is_intact(packet.packet) {
            return None;
        }
        (None, 0)
    };
    let (addresses, ports) = ((source, destination), (source_port, port));
    let (vni, length) = (vni.get(), inner.len());
    Some(Key { sent_by, addresses, ports, tos, vni, length, head })
}

/// Whether the packet has no IPv4 header with a wrong checksum.
fn is_intact(packet: &[u8]) -> bool {
    let header = packet.get(14..34).unwrap_or_default();
    packet.get(12..14) != Some(&[8, 0]) || wire::checksum::Sum::new().bytes(header).is_intact()
}

/// About a packet that an uplink sent.
fn sent(handle: &Handle, uplink: u32, packet: &Tunnelled<'_>) -> String {
    let Tunnelled { source, destination, source_port, port, vni, .. } = *packet;
    let snapshot = handle.snapshot();
    let uplinks = Uplinks::of(&handle.status.borrow());
    let name = uplinks.name(uplink);
    let table = snapshot.terminate(source, port, vni);
    let by = match table {
        Some(table) => by(table),
        None => "sent by the kernel".to_owned(),
    };
    let target =
        Target { local: source, address: destination, port, by_kernel: table.is_none() }.vtep();
    let names = Names::of(&snapshot, &uplinks);
    let is_it = |path: &PathId| path.source_port == source_port && names.of_path(*path) == name;
    let takes = |view: &PathView| view.paths.iter().any(is_it);
    let known = handle.pinning.as_ref().and_then(|shared| {
        shared.read(|placer| placer.paths(target)).into_iter().find(|view| takes(view))
    });
    let routers = known.map(|view| pinned::routers(&view.links)).unwrap_or_default();
    let path: String = routers.iter().map(|router| format!(" > {router}")).collect();
    format!("{by}: VNI {vni}, VTEP {destination}, port {source_port}, {name}{path}")
}

fn by(table: &VniTable) -> String {
    let datapath = status::datapath(table).name();
    format!("sent by vtepd ({datapath}, {})", table.entropy.policy())
}

/// About a packet that an uplink received, and whether its frame is delivered.
fn received(handle: &Handle, packet: &Tunnelled<'_>) -> (String, bool) {
    let Tunnelled { packet, source, vni, .. } = *packet;
    let (snapshot, open) = (handle.snapshot(), handle.open_ports());
    let frame = Frame { data: packet, vlan: None, offload: Offload::default() };
    let reception = pipeline::explain_received(&frame, &snapshot, &open, Instant::now());
    let (fate, passed) = match reception.fate {
        Fate::Bridge(_) => ("to the bridge".to_owned(), true),
        Fate::Host { port, .. } => {
            let status = handle.status.borrow();
            let name = status.plan.ports.get(&port).map_or("", |port| port.name.as_str());
            (format!("to the host port {name}, past the bridge"), true)
        }
        Fate::Kernel(reason) => (format!("left to the kernel: {}", because(reason)), false),
        Fate::Dropped(reason) => (format!("dropped: {}", because(reason)), false),
    };
    (format!("received: VNI {vni}, VTEP {source}, {fate}"), passed)
}

/// A reason, and its sentence.
pub(super) fn because(reason: DropReason) -> String {
    format!("{}: {}", reason.label(), reason.sentence().trim())
}

/// A packet for the reader.
pub(super) fn message(
    interface: &str,
    outgoing: Option<bool>,
    time: Duration,
    (data, length): (&[u8], usize),
    comment: String,
) -> v1::CapturedPacket {
    v1::CapturedPacket {
        interface: interface.to_owned(),
        direction: match outgoing {
            Some(true) => "out",
            Some(false) => "in",
            None => "",
        }
        .to_owned(),
        time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        length: u32::try_from(length).unwrap_or(u32::MAX),
        data: data.to_vec(),
        comment,
    }
}
