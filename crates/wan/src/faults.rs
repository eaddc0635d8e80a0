//! Faults that the tests of `Wan` cause, which need root and so are in a test target of their own.

use std::io;
use std::os::fd::OwnedFd;

use super::links;
use super::{Wan, WanError};

#[doc(hidden)]
impl Wan {
    /// The kernel notifies of no more changes.
    pub fn lose_notifications(&mut self) {
        self.watch = None;
    }

    /// Replaces the socket on an interface.
    pub fn replace_socket(&mut self, interface: &str, descriptor: OwnedFd) {
        let port = self.ports.iter_mut().find(|port| port.name == interface);
        if let Some(socket) = port.and_then(|port| port.socket.as_mut()) {
            socket.replace(descriptor);
        }
    }

    /// Whether the socket of an interface is bound to it.
    ///
    /// # Errors
    /// As getifaddrs(3).
    pub fn is_bound(&self, interface: &str) -> io::Result<bool> {
        let links = links::all()?;
        let socket = self.ports.iter().find(|port| port.name == interface).map(|port| &port.socket);
        Ok(match (socket, links.get(interface)) {
            (Some(Some(socket)), Some(link)) => socket.is_on(&link.interface),
            _ => false,
        })
    }

    /// Lists interfaces, runs `between`, and opens those that were listed.
    ///
    /// # Errors
    /// As [`Wan::poll`].
    pub fn find_ports_late(&mut self, between: impl FnOnce()) -> Result<(), WanError> {
        self.find_ports_after(between)
    }
}
