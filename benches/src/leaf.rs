//! A leaf with two uplinks, and the RoCE frames that its hosts send.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use entropy::{Entropy, Policy, Settings};
use pipeline::{Batch, Checksum, Frame, Offload, VlanTag};
use tables::{
    DontFragment, NextHop, Paths, Slot, Snapshot, SnapshotBuilder, Tos, Ttl, Tunnel, VniTable, Vtep,
    VtepIndex,
};
use wire::number::{ETHERTYPE_IPV4, PORT_ROCE, PORT_VXLAN, PROTOCOL_UDP};
use wire::roce::Bth;
use wire::{Ethernet, Ipv4, MacAddr, QueuePair, Udp, Vni};

/// Inner frame lengths in bytes: the smallest, and RoCE's with 1,024 and 4,096 bytes of payload.
pub const LENGTHS: [usize; 4] = [64, 256, 1082, 4154];
/// Frames of a batch, and queue pairs among them.
pub const BATCH: usize = 64;
/// Tag of the VNI.
pub const SLOT: u16 = 1;

const ETHERNET_TO_BTH: usize = 14 + 20 + 8;
const HOSTS: u8 = 8;

fn host(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, number])
}

/// The forwarding state of `local`, with the hosts behind `remote`.
///
/// # Errors
/// None in practice: the settings are fixed.
pub fn snapshot(
    policy: Policy,
    local: Ipv4Addr,
    remote: Ipv4Addr,
) -> Result<Snapshot, Box<dyn std::error::Error>> {
    let hops = (1..=2u8).map(|uplink| NextHop {
        ifindex: u32::from(uplink),
        gateway: IpAddr::V4(Ipv4Addr::new(192, 168, uplink, 1)),
        source_mac: MacAddr([2, 1, 0, 0, 0, uplink]),
        destination_mac: Some(MacAddr([2, 2, 0, 0, 0, uplink])),
        mtu: 9500,
        weight: 1,
        by_default: false,
        path: u16::from(uplink),
    });
    let tunnel = Tunnel {
        vni: Vni::try_from(10_010)?,
        local,
        destination_port: PORT_VXLAN,
        ttl: Ttl::Fixed(64),
        tos: Tos::Inherit,
        df: DontFragment::Unset,
        udp_checksum: false,
    };
    let mut builder = SnapshotBuilder::new(1);
    builder.vni(Arc::new(VniTable {
        slot: Slot::new(SLOT).ok_or("slot")?,
        netdev: "vx10010".to_owned(),
        mac: None,
        tunnel,
        entropy: Entropy::new(Settings { policy, ..Settings::default() })?,
        fdb: (0..HOSTS).map(|number| (host(number), VtepIndex(0))).collect(),
        flood: vec![VtepIndex(0)],
        strict_vtep: false,
        learning: None,
    }));
    builder.vtep(VtepIndex(0), Vtep { address: remote, paths: Arc::new(Paths::new(hops.collect())) });
    Ok(builder.build())
}

/// One RoCE frame of `length` bytes, at least 58.
///
/// # Errors
/// If the length is too small.
pub fn roce(length: usize, queue_pair: u32, sequence: u32) -> Result<Vec<u8>, wire::WireError> {
    let mut frame = vec![0; length];
    let payload = length.saturating_sub(ETHERNET_TO_BTH);
    let to = host(queue_pair as u8 % HOSTS);
    let rest = Ethernet::new(to, MacAddr([2, 0, 0, 0, 0, 1]), ETHERTYPE_IPV4).write(&mut frame)?;
    let (source, destination) = (Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 1, 0, 2));
    let rest = Ipv4::new(source, destination, PROTOCOL_UDP, payload + 8)?.write(rest)?;
    let rest = Udp::new(49_152, PORT_ROCE, payload)?.write(rest)?;
    let queue_pair =
        QueuePair::try_from(queue_pair & QueuePair::MAX).unwrap_or(QueuePair::from_be_bytes([0; 3]));
    Bth::new(0x04, queue_pair, sequence).write(rest)?;
    wire::icrc::fill(frame.get_mut(14..).unwrap_or_default())?;
    Ok(frame)
}

/// A batch of frames of one length as they come from the bridge, each of another queue pair.
///
/// # Errors
/// If the length is too small.
pub fn batch(length: usize) -> Result<Batch, wire::WireError> {
    let mut batch = Batch::new(BATCH);
    for queue_pair in 0..BATCH as u32 {
        let data = roce(length, 0x100 + queue_pair, 1)?;
        let vlan = Some(VlanTag { tpid: wire::number::ETHERTYPE_SERVICE_VLAN, tci: SLOT });
        batch.copy(Frame { data: &data, vlan, offload: Offload::default() });
    }
    Ok(batch)
}

/// Frames as they come from an uplink.
#[must_use]
pub fn received(frames: &[Vec<u8>]) -> Batch {
    let mut batch = Batch::new(frames.len());
    for data in frames {
        let offload = Offload { checksum: Checksum::AsIs, gso: None };
        batch.copy(Frame { data, vlan: None, offload });
    }
    batch
}
