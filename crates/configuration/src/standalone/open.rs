//! Opens access ports and claims UDP ports.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use control::Settings;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{setsockopt, sockopt};
use pipeline::{AccessPortSettings, Bridge, BridgeLimits};
use ports::AccessPort;
use wire::Vni;
use worker::WorkerPorts;

use super::{Port, PortKind, Standalone};

impl Standalone {
    /// Opens the port of this number again, in the calling thread's network namespace.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn reopen(&self, number: u16) -> Result<AccessPort, AccessError> {
        self.ports.get(usize::from(number)).map_or(Ok(AccessPort::Gone), Port::open)
    }

    /// Claims the UDP port of each local address, one with each step of the iterator.
    fn claims(&self) -> impl Iterator<Item = Result<UdpSocket, AccessError>> {
        let ends: BTreeSet<_> =
            self.vnis.iter().map(|vni| (vni.local, vni.destination_port)).collect();
        ends.into_iter().map(|(local, port)| claim(local, port))
    }

    /// Why the standalone VNIs could not start now: addresses, UDP ports and interfaces that are
    /// missing or in use. Everything is released again. TAPs are not checked.
    #[must_use]
    pub fn obstacles(&self) -> Vec<AccessError> {
        let claims = self.claims().filter_map(Result::err);
        let ports = self.ports.iter().filter_map(|port| match &port.kind {
            PortKind::Interface(name) => {
                let found = AccessPort::find(name).and_then(|_| vacant(name));
                let failed =
                    |source| AccessError::Port { vni: port.vni, name: name.clone(), source };
                found.map_err(failed).err()
            }
            PortKind::Tap(_) => None,
        });
        claims.chain(ports).collect()
    }

    /// Opens the ports and claims the UDP ports, in the calling thread's network namespace. The
    /// VNIs are distributed over the workers, so there are never more workers than VNIs. Without
    /// VNIs, each worker gets an empty share.
    ///
    /// # Errors
    /// When an interface or an address is missing or in use, or a privilege is missing.
    pub fn open(&self, settings: &Settings, workers: usize) -> Result<Access, AccessError> {
        let workers = if self.is_empty() { workers } else { workers.min(self.vnis.len()) };
        let claims = self.claims().collect::<Result<_, _>>()?;
        let mut shares: Vec<_> = (0..workers).map(|_| WorkerPorts::default()).collect();
        let limits =
            BridgeLimits { total: settings.learning.total, moves: settings.learning.moves };
        let stations = Arc::default();
        for (place, vni) in self.vnis.iter().enumerate() {
            let Some(share) = shares.get_mut(place % workers.max(1)) else { break };
            share.vnis.push(vni.vni);
        }
        for share in &mut shares {
            let mut access = Vec::new();
            for (port, number) in self.ports.iter().zip(0u16..) {
                let Some(of) =
                    self.vnis.iter().find(|of| of.vni == port.vni && share.vnis.contains(&of.vni))
                else {
                    continue;
                };
                share.ports.push(port.open()?);
                share.numbers.push(number);
                access.push(AccessPortSettings {
                    vni: of.vni,
                    local: of.local,
                    destination_port: of.destination_port,
                    stations: settings.of(of.vni).addresses,
                    ageing: port.ageing,
                });
            }
            share.bridge =
                (!access.is_empty()).then(|| Bridge::new(access, limits).sharing(&stations));
        }
        Ok(Access { claims, shares })
    }
}

impl Port {
    fn open(&self) -> Result<AccessPort, AccessError> {
        let opened = match &self.kind {
            PortKind::Interface(name) => vacant(name).and_then(|()| AccessPort::interface(name)),
            PortKind::Tap(access) => AccessPort::tap(access),
        };
        let failed =
            |source| AccessError::Port { vni: self.vni, name: self.kind.name().to_owned(), source };
        opened.map_err(failed)
    }
}

/// An access port could not be opened, or a UDP port could not be claimed.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// An access port could not be opened.
    #[error("standalone VNI {vni}: port {name}: {source}")]
    Port {
        /// The VNI of the port.
        vni: Vni,
        /// The port's name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// A UDP port could not be claimed.
    #[error("UDP port {port} of {local} cannot be had: {problem}")]
    Claim {
        /// The address.
        local: IpAddr,
        /// The port.
        port: u16,
        /// The problem, and what to do.
        problem: String,
    },
}

/// Reserves a UDP port whose packets the steering programs redirect. The socket receives only what
/// they pass, and vtepd never reads it. Without it the kernel would answer such packets with "port
/// unreachable", and a vxlan netdev could use the port as well.
fn claim(local: IpAddr, port: u16) -> Result<UdpSocket, AccessError> {
    let failed = |error: io::Error| {
        AccessError::Claim {
        local,
        port,
        problem: match error.kind() {
            io::ErrorKind::AddrNotAvailable => format!(
                "no interface of this network namespace has the address; add it first: ip address add {local}/32 dev lo"
            ),
            io::ErrorKind::AddrInUse => {
                "the UDP port is in use, perhaps by a vxlan netdev; delete that, or leave out [[standalone]] to take it over".to_owned()
            }
            _ => error.to_string(),
        },
    }
    };
    let socket = UdpSocket::bind((local, port)).map_err(failed)?;
    setsockopt(&socket, sockopt::RcvBuf, &0).map_err(|error| failed(error.into()))?;
    Ok(socket)
}

/// Refuses an interface that has an address: frames of an access port go to the overlay alone, so
/// the address would become unreachable. The kernel gives every interface an IPv6 link-local
/// address, which does not count.
fn vacant(name: &str) -> io::Result<()> {
    let addresses = getifaddrs()?;
    let of = |found: nix::ifaddrs::InterfaceAddress| {
        // An IPv4 address has its label here, such as eth1:0 (IFA_LABEL), and no name has a colon.
        let of = found.interface_name.split(':').next();
        let address = found.address.filter(|_| of == Some(name))?;
        let v4 = address.as_sockaddr_in().map(|v4| v4.ip()).filter(|v4| !v4.is_unspecified());
        let v6 = address.as_sockaddr_in6().map(|v6| v6.ip());
        let v6 = v6.filter(|v6| !v6.is_unicast_link_local());
        v4.map(IpAddr::V4).or(v6.map(IpAddr::V6))
    };
    match addresses.into_iter().find_map(of) {
        Some(address) => Err(io::Error::other(format!(
            "it has the address {address}, but what arrives on an access port goes to the overlay alone; remove the address, or \
             name another interface"
        ))),
        None => Ok(()),
    }
}

/// Opened access ports and claimed UDP ports, for all workers.
#[derive(Debug, Default)]
pub struct Access {
    /// The sockets that reserve UDP ports.
    pub claims: Vec<UdpSocket>,
    /// One for each worker.
    pub shares: Vec<WorkerPorts>,
}
