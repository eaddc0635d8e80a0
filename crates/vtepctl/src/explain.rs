//! `vtepctl explain`: which frame is asked about.

use std::io::Write;

use api::v1;
use wire::number::{PORT_VXLAN, PROTOCOL_UDP};
use wire::{Ethernet, Ipv4Packet, MacAddr, UdpDatagram, Vxlan};

use crate::arguments::{Explain, Flow, Output};
use crate::commands::{Asking, all};
use crate::output::Failure;
use crate::{explained, flow, pcap};

/// Asks about a captured frame, or about one of a flow.
///
/// # Errors
/// When there is no such frame, or the daemon says no.
pub async fn print<W: Write>(asking: &mut Asking<'_, W>, explain: Explain) -> Result<(), Failure> {
    let Explain { vni, pcap, received, frame: number, flow } = explain;
    if let (true, Some(file)) = (received, &pcap) {
        let request = v1::ExplainReceivedRequest { frame: pcap::frame(file, number)? };
        let answer = asking.client.explain_received(request).await?.into_inner();
        return asking.print(&answer, |out| explained::received(out, &answer));
    }
    let mut sent_by = None;
    let (vni, frame) = match (pcap, vni) {
        (Some(file), vni) => {
            let frame = pcap::frame(&file, number)?;
            match (decapsulate(&frame), vni) {
                (_, Some(vni)) => (vni, frame),
                (Some(packet), None) => {
                    sent_by = Some(packet.source_port);
                    (packet.vni, packet.inner)
                }
                (None, None) => {
                    let text = "the captured frame is no VXLAN packet to port 4789: say with --vni which VNI it is sent in";
                    return Err(Failure::Input(text.to_owned()));
                }
            }
        }
        (None, Some(vni)) => {
            let destination = destination(asking, vni, &flow).await?;
            (vni, flow::frame(&flow, destination)?)
        }
        (None, None) => return Err(Failure::Input("which VNI? Name it with --vni".to_owned())),
    };
    let answer = asking.client.explain(v1::ExplainRequest { vni, frame }).await?.into_inner();
    asking.print(&answer, |out| explained::write(out, &answer))?;
    if let (Some(port), Output::Table) = (sent_by, asking.output) {
        let same = answer.copies.iter().all(|copy| copy.source_port == u32::from(port));
        let verdict = if same { "the same" } else { "another one: another policy, seed or sender" };
        writeln!(asking.out, "\nThe captured packet has outer source port {port}: {verdict}")?;
    }
    Ok(())
}

/// The destination MAC address: as said, or the one that the kernel knows for the address in this VNI.
async fn destination<W: Write>(
    asking: &mut Asking<'_, W>,
    vni: u32,
    flow: &Flow,
) -> Result<MacAddr, Failure> {
    if let Some(mac) = flow.dst_mac {
        return Ok(mac);
    }
    let unknown = |why: &str| Failure::Input(format!("{why}: name its MAC address with --dst-mac"));
    let address = flow.dst.ok_or_else(|| unknown("to whom?"))?.to_string();
    let known = all(asking.client.list_neighbours(v1::ListNeighboursRequest {}).await?).await?;
    let host = known.into_iter().find(|row| row.vni == Some(vni) && row.address == address);
    let mac = host.and_then(|host| host.mac?.parse().ok());
    mac.ok_or_else(|| unknown(&format!("the kernel knows no host {address} in VNI {vni}")))
}

/// What is in a VXLAN packet.
struct Packet {
    source_port: u16,
    vni: u32,
    inner: Vec<u8>,
}

fn decapsulate(frame: &[u8]) -> Option<Packet> {
    let (_, packet) = Ethernet::parse(frame).ok()?;
    let ip = Ipv4Packet::parse(packet).ok()?;
    if ip.header.protocol() != PROTOCOL_UDP {
        return None;
    }
    let udp = UdpDatagram::parse(ip.payload).ok()?;
    if udp.header.destination_port() != PORT_VXLAN {
        return None;
    }
    let (vxlan, inner) = Vxlan::parse(udp.payload).ok()?;
    Some(Packet {
        source_port: udp.header.source_port(),
        vni: vxlan.vni().ok()?.get(),
        inner: inner.to_vec(),
    })
}
