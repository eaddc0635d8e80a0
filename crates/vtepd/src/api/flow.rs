//! Builds the first frame of a flow. Only its headers matter, so checksums and payload are zero.

use std::net::IpAddr;
use std::str::FromStr;

use api::v1;
use tonic::Status;
use wire::number::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PORT_ROCE, PROTOCOL_TCP, PROTOCOL_UDP};
use wire::roce::{Bth, opcode};
use wire::{Ethernet, Ipv4, Ipv6, MacAddr, QueuePair, Tcp, Udp};

/// EtherType of a frame without IP addresses: local experimental (IEEE 802).
const ETHERTYPE_EXPERIMENT: u16 = 0x88b5;
/// The source MAC address if none is given; locally administered.
const SOURCE_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0]);
/// The ports if none are given; the destination is the discard service.
const SOURCE_PORT: u16 = 49_152;
const DESTINATION_PORT: u16 = 9;
const PAYLOAD: u16 = 64;

/// A flow with parsed fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    /// The destination MAC address, if it is given.
    pub destination_mac: Option<MacAddr>,
    /// The destination address, if it is given.
    pub destination: Option<IpAddr>,
    source_mac: MacAddr,
    source: Option<IpAddr>,
    queue_pair: Option<QueuePair>,
    protocol: u8,
    ports: (u16, u16),
    payload: u16,
}

fn wrong(field: &str, error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(format!("flow.{field}: {error}"))
}

/// Parses a text field.
fn text<T: FromStr<Err: std::fmt::Display>>(
    field: &str,
    text: Option<&String>,
) -> Result<Option<T>, Status> {
    text.map(|text| text.parse()).transpose().map_err(|error| wrong(field, error))
}

/// Checks that a number fits.
fn number<T: TryFrom<u32, Error: std::fmt::Display>>(
    field: &str,
    number: Option<u32>,
) -> Result<Option<T>, Status> {
    number.map(T::try_from).transpose().map_err(|error| wrong(field, error))
}

impl TryFrom<&v1::Flow> for Flow {
    type Error = Status;

    fn try_from(flow: &v1::Flow) -> Result<Self, Status> {
        let parsed = Self {
            destination_mac: text("destination_mac", flow.destination_mac.as_ref())?,
            destination: text("destination", flow.destination.as_ref())?,
            source_mac: text("source_mac", flow.source_mac.as_ref())?.unwrap_or(SOURCE_MAC),
            source: text("source", flow.source.as_ref())?,
            queue_pair: number("queue_pair", flow.queue_pair)?,
            protocol: number("protocol", flow.protocol)?.unwrap_or(PROTOCOL_UDP),
            ports: (
                number("source_port", flow.source_port)?.unwrap_or(SOURCE_PORT),
                number("destination_port", flow.destination_port)?.unwrap_or(DESTINATION_PORT),
            ),
            payload: number("payload", flow.payload)?.unwrap_or(PAYLOAD),
        };
        if parsed.queue_pair.is_some() && parsed.source.is_none() {
            return Err(wrong("queue_pair", "a RoCEv2 packet needs source and destination"));
        }
        Ok(parsed)
    }
}

impl Flow {
    /// The first frame, from the destination MAC address on.
    ///
    /// # Errors
    /// When no valid frame matches the description.
    pub(super) fn frame(&self, destination_mac: MacAddr) -> Result<Vec<u8>, Status> {
        let upper = self.transport()?;
        let protocol = self.protocol;
        let (ethertype, header) = match (self.source, self.destination) {
            (Some(IpAddr::V4(source)), Some(IpAddr::V4(destination))) => {
                let header = Ipv4::new(source, destination, protocol, upper.len())
                    .map_err(|error| wrong("payload", error))?;
                (ETHERTYPE_IPV4, header.as_bytes().to_vec())
            }
            (Some(IpAddr::V6(source)), Some(IpAddr::V6(destination))) => {
                let header = Ipv6::new(source, destination, protocol, upper.len())
                    .map_err(|error| wrong("payload", error))?;
                (ETHERTYPE_IPV6, header.as_bytes().to_vec())
            }
            (None, _) => (ETHERTYPE_EXPERIMENT, Vec::new()),
            (Some(_), None) => return Err(wrong("destination", "it is missing")),
            _ => return Err(wrong("destination", "it is of another IP version than the source")),
        };
        let ethernet = Ethernet::new(destination_mac, self.source_mac, ethertype);
        Ok([&ethernet.as_bytes()[..], &header, &upper].concat())
    }

    /// The transport header and what follows it.
    fn transport(&self) -> Result<Vec<u8>, Status> {
        let payload = vec![0; self.payload.into()];
        let (source, destination) = self.ports;
        if self.source.is_none() {
            return Ok(payload);
        }
        if let Some(queue_pair) = self.queue_pair {
            let bth = Bth::new(opcode::RC_SEND_ONLY, queue_pair, 0);
            let length = Bth::LENGTH + payload.len() + wire::icrc::LENGTH;
            let udp = Udp::new(source, PORT_ROCE, length).map_err(|e| wrong("payload", e))?;
            let icrc = [0; wire::icrc::LENGTH];
            return Ok([&udp.as_bytes()[..], bth.as_bytes(), &payload, &icrc].concat());
        }
        match self.protocol {
            PROTOCOL_UDP => {
                let udp = Udp::new(source, destination, payload.len());
                let udp = udp.map_err(|error| wrong("payload", error))?;
                Ok([&udp.as_bytes()[..], &payload].concat())
            }
            PROTOCOL_TCP => {
                let mut tcp = Tcp::zeroed();
                tcp.set_source_port(source)
                    .set_destination_port(destination)
                    .set_data_offset(5)
                    .set_flags(Tcp::ACK);
                Ok([&tcp.as_bytes()[..], &payload].concat())
            }
            _ => Ok(payload),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn flow(source: &str, destination: &str) -> v1::Flow {
        v1::Flow {
            source: Some(source.to_owned()),
            destination: Some(destination.to_owned()),
            ..v1::Flow::default()
        }
    }

    fn dissect(flow: &v1::Flow) -> wire::Dissection {
        wire::dissect(&Flow::try_from(flow).unwrap().frame(MAC).unwrap()).unwrap()
    }

    #[test]
    fn a_queue_pair_is_a_roce_packet_in_both_ip_versions() {
        for (source, destination) in [("10.1.0.1", "10.1.0.2"), ("fd00::1", "fd00::2")] {
            let found = dissect(&v1::Flow {
                queue_pair: Some(0x11),
                source_port: Some(50_000),
                ..flow(source, destination)
            });
            assert_eq!(found.roce.map(|roce| roce.destination.get()), Some(0x11), "{source}");
        }
    }

    #[test]
    fn ports_are_those_of_tcp_and_udp() {
        let base = flow("10.1.0.1", "10.1.0.2");
        for protocol in [6, 17] {
            let ports = v1::Flow {
                protocol: Some(protocol),
                source_port: Some(7),
                destination_port: Some(80),
                ..base.clone()
            };
            let transport = dissect(&ports).transport.unwrap();
            assert_eq!((u32::from(transport.protocol), transport.ports), (protocol, Some((7, 80))));
        }
        let icmp = dissect(&v1::Flow { protocol: Some(1), ..base }).transport.unwrap();
        assert_eq!((icmp.protocol, icmp.ports), (1, None));
        assert_eq!(dissect(&v1::Flow::default()).network, wire::Network::Other);
    }

    #[test]
    fn a_flow_that_cannot_be_names_its_field() {
        let said = |flow: v1::Flow| {
            let frame = Flow::try_from(&flow).and_then(|flow| flow.frame(MAC));
            frame.unwrap_err().message().to_owned()
        };
        let base = flow("10.1.0.1", "10.1.0.2");
        let pair = |queue_pair| v1::Flow { queue_pair: Some(queue_pair), ..base.clone() };
        assert!(said(pair(1 << 24)).starts_with("flow.queue_pair: "));
        let alone = v1::Flow { queue_pair: Some(1), ..v1::Flow::default() };
        assert!(said(alone).starts_with("flow.queue_pair: "));
        assert!(said(flow("10.1.0.1", "fd00::2")).starts_with("flow.destination: "));
        assert!(said(flow("10.1.0.1", "there")).starts_with("flow.destination: "));
        let port = v1::Flow { source_port: Some(65_536), ..base.clone() };
        assert!(said(port).starts_with("flow.source_port: "));
        let long = v1::Flow { payload: Some(65_535), ..base };
        assert!(said(long).starts_with("flow.payload: "));
    }
}
