//! A leaf with two uplinks, and the RoCE frames that it receives from its hosts and peers.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use path::{Entropy, Policy, Settings};
use pipeline::{Batch, Counters, Frame, Offload, Pipeline, TxBatch, VlanTag};
use tables::{
    NextHop, Paths, Snapshot, SnapshotBuilder, Tos, Tunnel, VniIndex, VniTable, Vtep, VtepIndex,
};
use wire::number::{ETHERTYPE_IPV4, ETHERTYPE_SERVICE_VLAN, PORT_ROCE, PROTOCOL_UDP};
use wire::roce::Bth;
use wire::{Ethernet, Ipv4, MacAddr, QueuePair, Udp, Vni};

use crate::placed::pins;
use crate::stage::ORDERED;

/// Inner frame lengths in bytes: the shortest, a medium one, and RoCE with a payload of 1,024 and
/// 4,096 bytes.
pub const LENGTHS: [usize; 4] = [64, 256, 1082, 4154];
/// The number of frames in a batch.
pub const BATCH: usize = 64;

/// The time from one batch to the next one, if the rate counts: a million frames a second.
pub const PACE: Duration = Duration::from_micros(BATCH as u64);

const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const ETHERNET_TO_BTH: usize = 14 + 20 + 8;
/// The number of hosts that [`roce`] sends to.
const HOSTS: u32 = 8;
/// The VNI in the first slot.
const FIRST_VNI: u32 = 10_010;
/// The offset of the outer source address in an encapsulated frame.
const OUTER_SOURCE: usize = 14 + 12;

type Failure = Box<dyn std::error::Error>;

/// The size of a leaf's forwarding state.
#[derive(Debug, Clone, Copy)]
pub struct Leaf {
    /// The policy of all VNIs.
    pub policy: Policy,
    /// The number of remote MAC addresses, distributed over VNIs and VTEPs in turn.
    pub macs: u32,
    /// The number of VNIs, 1 to 4094.
    pub vnis: u32,
    /// The number of remote VTEPs, at least 1.
    pub vteps: u32,
    /// The number of queue pairs of its hosts.
    pub queue_pairs: u32,
}

impl Default for Leaf {
    fn default() -> Self {
        Self { policy: Policy::QpHash, macs: HOSTS, vnis: 1, vteps: 1, queue_pairs: BATCH as u32 }
    }
}

/// The MAC address of the remote host with this number: 02:00:00:00:01:00 and so on.
#[must_use]
pub const fn host(number: u32) -> MacAddr {
    let [a, b, c, d] = number.wrapping_add(0x100).to_be_bytes();
    MacAddr([2, 0, a, b, c, d])
}

const fn vtep(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a01_0000 + number)
}

/// A fixed pseudo-random sequence of numbers below `bound`.
fn shuffled(bound: u32) -> impl Iterator<Item = u32> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (((state >> 32) * u64::from(bound)) >> 32) as u32
    })
}

impl Leaf {
    /// The forwarding state of the leaf.
    ///
    /// # Errors
    /// If there are too many VNIs.
    pub fn snapshot(&self) -> Result<Snapshot, Failure> {
        let vteps: Vec<_> = (0..self.vteps).map(|number| vtep(number).into()).collect();
        self.forwarding(LOCAL.into(), &vteps)
    }

    /// The forwarding state of its first peer, for which the leaf is the only VTEP.
    ///
    /// # Errors
    /// As [`Leaf::snapshot`].
    pub fn peer(&self) -> Result<Snapshot, Failure> {
        self.forwarding(vtep(0).into(), &[LOCAL.into()])
    }

    fn forwarding(&self, local: IpAddr, vteps: &[IpAddr]) -> Result<Snapshot, Failure> {
        let hops = (1..=2u8).map(|uplink| NextHop {
            ifindex: u32::from(uplink),
            gateway: IpAddr::V4(Ipv4Addr::new(192, 168, uplink, 1)),
            identity: u64::from(uplink),
            source_mac: MacAddr([2, 1, 0, 0, 0, uplink]),
            destination_mac: Some(MacAddr([2, 2, 0, 0, 0, uplink])),
            mtu: 9500,
            weight: 1,
            by_default: false,
            impaired: false,
            path: u16::from(uplink),
        });
        let mut builder = SnapshotBuilder::new(1);
        let count = vteps.len() as u32;
        for number in 0..self.vnis {
            let hosts = (number..self.macs).step_by(self.vnis as usize);
            let vni = Vni::try_from(FIRST_VNI + number)?;
            let tunnel =
                Tunnel { tos: Tos::Inherit, udp_checksum: false, ..Tunnel::new(vni, local) };
            let index = VniIndex::new(number as u16 + 1).ok_or("too many VNIs")?;
            let entropy = Entropy::new(Settings { policy: self.policy, ..Settings::default() })?;
            builder.vni(Arc::new(VniTable {
                netdev: format!("vx{number}"),
                fdb: hosts
                    .map(|host_of| (host(host_of), VtepIndex(host_of / self.vnis % count)))
                    .collect(),
                flood: vec![VtepIndex(0)],
                ..VniTable::new(index, tunnel, entropy)
            }));
        }
        // VTEPs with the same paths share their next hops, as in the control task.
        let paths = Arc::new(Paths::new(hops.collect()));
        for (address, index) in vteps.iter().zip(0..) {
            builder.vtep(VtepIndex(index), Vtep { address: *address, paths: Arc::clone(&paths) });
        }
        Ok(builder.build())
    }

    /// Batches of frames of one length as they come from the bridge, to pseudo-random hosts and
    /// queue pairs.
    ///
    /// # Errors
    /// If the length is too small.
    pub fn from_bridge(
        &self,
        length: usize,
        batches: usize,
    ) -> Result<Vec<Batch<'static>>, Failure> {
        let mut numbers = shuffled(self.macs).zip(shuffled(self.queue_pairs).skip(7));
        let mut sequences = BTreeMap::new();
        let mut batch_of = || -> Result<Batch<'static>, Failure> {
            let mut batch = Batch::new(BATCH);
            for (to, queue_pair) in numbers.by_ref().take(BATCH) {
                let sequence = sequences.entry(queue_pair).or_insert(0);
                let data = roce_to(host(to), length, 0x100 + queue_pair, *sequence)?;
                *sequence += 1;
                let vlan = Some(VlanTag {
                    tpid: ETHERTYPE_SERVICE_VLAN,
                    tci: (to % self.vnis) as u16 + 1,
                });
                // The frames are kept until the program ends.
                batch.push(Frame { data: data.leak(), vlan, offload: Offload::default() });
            }
            Ok(batch)
        };
        (0..batches).map(|_| batch_of()).collect()
    }

    /// The same frames as they come from an uplink, each from one of the remote VTEPs.
    ///
    /// # Errors
    /// As [`Leaf::from_bridge`].
    pub fn from_underlay(
        &self,
        length: usize,
        batches: usize,
    ) -> Result<Vec<Batch<'static>>, Failure> {
        let (peer, mut vteps) = (self.peer()?, shuffled(self.vteps));
        let mut pipeline = Pipeline::new(Arc::new(Counters::new()));
        let (mut out, mut now) = (TxBatch::new(), Instant::now());
        let mut received = Vec::new();
        let batches = self.from_bridge(length, batches)?;
        if self.policy == Policy::Spray {
            pipeline.set_pins(pins(&peer, now).ok_or("no paths")?);
            now = Instant::now();
            // The peer has sent at its rate for a while.
            for batch in batches.iter().cycle().take(ORDERED) {
                now += PACE;
                out.clear();
                pipeline.encapsulate(batch, &peer, now, &mut out);
            }
        }
        for batch in batches {
            now += PACE;
            out.clear();
            pipeline.encapsulate(&batch, &peer, now, &mut out);
            let mut encapsulated = Batch::new(BATCH);
            for transmit in &out {
                let mut data = transmit.to_vec(&batch);
                let source = vtep(vteps.next().unwrap_or(0));
                send_from(&mut data, source).ok_or("no outer header")?;
                encapsulated.push(Frame {
                    data: data.leak(),
                    vlan: None,
                    offload: Offload::default(),
                });
            }
            received.push(encapsulated);
        }
        Ok(received)
    }
}

/// Replaces the outer source address of an encapsulated frame.
fn send_from(frame: &mut [u8], source: Ipv4Addr) -> Option<()> {
    frame.get_mut(OUTER_SOURCE..OUTER_SOURCE + 4)?.copy_from_slice(&source.octets());
    frame.get_mut(24..26)?.fill(0);
    let sum = wire::checksum::checksum(frame.get(14..34)?);
    frame.get_mut(24..26)?.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// A RoCE frame of `length` bytes, at least 58, to one of eight hosts.
///
/// # Errors
/// If the length is too small.
pub fn roce(length: usize, queue_pair: u32, sequence: u32) -> Result<Vec<u8>, wire::WireError> {
    roce_to(host(queue_pair % HOSTS), length, queue_pair, sequence)
}

fn roce_to(
    to: MacAddr,
    length: usize,
    queue_pair: u32,
    sequence: u32,
) -> Result<Vec<u8>, wire::WireError> {
    let mut frame = vec![0; length];
    let payload = length.saturating_sub(ETHERNET_TO_BTH);
    let rest = Ethernet::new(to, MacAddr([2, 0, 0, 0, 0, 1]), ETHERTYPE_IPV4).write(&mut frame)?;
    let (source, destination) = (Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 1, 0, 2));
    let rest = Ipv4::new(source, destination, PROTOCOL_UDP, payload + 8)?.write(rest)?;
    let rest = Udp::new(49_152, PORT_ROCE, payload)?.write(rest)?;
    let queue_pair = QueuePair::try_from(queue_pair & QueuePair::MAX)
        .unwrap_or(QueuePair::from_be_bytes([0; 3]));
    Bth::new(0x04, queue_pair, sequence).write(rest)?;
    wire::icrc::fill(frame.get_mut(14..).unwrap_or_default())?;
    Ok(frame)
}
