//! Builds a frame from the description of a flow. Only its headers matter, so checksums and payload
//! are zero.

use std::net::IpAddr;

use wire::number::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PORT_ROCE, PROTOCOL_TCP, PROTOCOL_UDP};
use wire::roce::{Bth, opcode};
use wire::{Ethernet, Ipv4, Ipv6, MacAddr, QueuePair, Tcp, Udp, WireError};

use crate::arguments::Flow;
use crate::output::Failure;

/// EtherType of a frame without IP addresses: local experimental (IEEE 802).
const ETHERTYPE_EXPERIMENT: u16 = 0x88b5;

/// The first frame of the flow, from the destination MAC address on.
///
/// # Errors
/// When no valid frame matches the description.
pub fn frame(flow: &Flow, destination: MacAddr) -> Result<Vec<u8>, Failure> {
    let wrong = |error: WireError| Failure::Input(error.to_string());
    let payload = vec![0; flow.payload.into()];
    let upper = transport(flow, payload)?;
    let (ethertype, header) = match (flow.src, flow.dst) {
        (Some(IpAddr::V4(source)), Some(IpAddr::V4(destination))) => {
            let header = Ipv4::new(source, destination, flow.proto, upper.len()).map_err(wrong)?;
            (ETHERTYPE_IPV4, header.as_bytes().to_vec())
        }
        (Some(IpAddr::V6(source)), Some(IpAddr::V6(destination))) => {
            let header = Ipv6::new(source, destination, flow.proto, upper.len()).map_err(wrong)?;
            (ETHERTYPE_IPV6, header.as_bytes().to_vec())
        }
        (None, None) => (ETHERTYPE_EXPERIMENT, Vec::new()),
        _ => return Err(Failure::Input("--src and --dst are of different IP versions".to_owned())),
    };
    let ethernet = Ethernet::new(destination, flow.src_mac, ethertype);
    Ok([&ethernet.as_bytes()[..], &header, &upper].concat())
}

/// The transport header and what follows it.
fn transport(flow: &Flow, payload: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let wrong = |error: WireError| Failure::Input(error.to_string());
    if flow.src.is_none() {
        return Ok(payload);
    }
    if let Some(queue_pair) = flow.qp {
        let queue_pair =
            QueuePair::try_from(queue_pair).map_err(|error| Failure::Input(error.to_string()))?;
        let bth = Bth::new(opcode::RC_SEND_ONLY, queue_pair, 0);
        let datagram = Bth::LENGTH + payload.len() + wire::icrc::LENGTH;
        let udp = Udp::new(flow.sport, PORT_ROCE, datagram).map_err(wrong)?;
        return Ok(
            [&udp.as_bytes()[..], bth.as_bytes(), &payload, &[0; wire::icrc::LENGTH]].concat()
        );
    }
    match flow.proto {
        PROTOCOL_UDP => {
            let udp = Udp::new(flow.sport, flow.dport, payload.len()).map_err(wrong)?;
            Ok([&udp.as_bytes()[..], &payload].concat())
        }
        PROTOCOL_TCP => {
            let mut tcp = Tcp::zeroed();
            tcp.set_source_port(flow.sport)
                .set_destination_port(flow.dport)
                .set_data_offset(5)
                .set_flags(Tcp::ACK);
            Ok([&tcp.as_bytes()[..], &payload].concat())
        }
        _ => Ok(payload),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn dissect(line: &str) -> wire::Dissection {
        let words = "vtepctl explain --vni 10 --dst-mac 02:00:00:00:00:02"
            .split(' ')
            .chain(line.split(' '));
        let Command::Explain(explain) =
            Arguments::parse_from(words.filter(|word| !word.is_empty())).command
        else {
            panic!("another command");
        };
        let flow = explain.flow;
        wire::dissect(&frame(&flow, flow.dst_mac.unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn a_queue_pair_is_a_roce_packet_in_both_ip_versions() {
        for addresses in ["--src 10.1.0.1 --dst 10.1.0.2", "--src fd00::1 --dst fd00::2"] {
            let found = dissect(&format!("{addresses} --qp 0x11 --sport 50000"));
            assert_eq!(found.roce.map(|roce| roce.destination.get()), Some(0x11), "{addresses}");
        }
    }

    #[test]
    fn ports_are_those_of_tcp_and_udp() {
        for (name, protocol) in [("tcp", 6), ("udp", 17)] {
            let found = dissect(&format!(
                "--src 10.1.0.1 --dst 10.1.0.2 --proto {name} --sport 7 --dport 80"
            ));
            let transport = found.transport.unwrap();
            assert_eq!((transport.protocol, transport.ports), (protocol, Some((7, 80))));
        }
        let icmp = dissect("--src 10.1.0.1 --dst 10.1.0.2 --proto icmp").transport.unwrap();
        assert_eq!((icmp.protocol, icmp.ports), (1, None));
        assert_eq!(dissect("").network, wire::Network::Other);
    }
}
