//! The sockets of probes: one for each underlay, behind one filter.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use bpf::{ProbeFilter, ProbesRefused, SteeringError};
use ports::ProbeSocket;
use ports::probe_socket::Underlay;
use tables::Snapshot;

/// Packets with the token that a sender may send in a second are this many times as many as the
/// probes that it may send: there are also answers, and it may have several UDP ports.
const PACKETS: u32 = 4;

/// The sockets for IPv4 and IPv6, and who may send to them.
#[derive(Debug)]
pub(super) struct Sockets {
    ipv4: ProbeSocket,
    ipv6: ProbeSocket,
    filter: ProbeFilter,
    /// The tokens of the senders that the filter knows, by source and destination: what their probes
    /// repeat, what their answers repeat and repeated before, and the opening one.
    senders: BTreeMap<(IpAddr, IpAddr), [u32; 4]>,
    /// The VTEPs and local addresses from which the senders follow.
    vteps: Vec<IpAddr>,
    locals: BTreeSet<IpAddr>,
}

impl Sockets {
    /// Opens the sockets in the calling thread's network namespace. A VTEP may send `rate` probes in
    /// a second.
    pub(super) fn open(rate: u32) -> io::Result<Self> {
        let mut filter =
            ProbeFilter::load(rate.saturating_mul(PACKETS)).map_err(io::Error::other)?;
        let mut open = |underlay| {
            ProbeSocket::open(underlay, |socket| filter.attach(socket).map_err(io::Error::other))
        };
        let (ipv4, ipv6) = (open(Underlay::Ipv4)?, open(Underlay::Ipv6)?);
        let (senders, vteps, locals) = Default::default();
        Ok(Self { ipv4, ipv6, filter, senders, vteps, locals })
    }

    /// The descriptors to wait for.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.ipv4.as_fd(), self.ipv6.as_fd()]
    }

    /// The socket of an underlay.
    pub(super) const fn of(&self, underlay: Underlay) -> &ProbeSocket {
        match underlay {
            Underlay::Ipv4 => &self.ipv4,
            Underlay::Ipv6 => &self.ipv6,
        }
    }

    /// Sends a packet to this VTEP. One that cannot be sent is lost.
    pub(super) fn send(&self, address: IpAddr, ifindex: u32, packet: &[u8]) {
        let socket = if address.is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        let _ = socket.send(ifindex, packet);
    }

    /// Takes packets from the VTEPs of a snapshot at these uplinks only. `opening` is the token with
    /// which two VTEPs begin.
    pub(super) fn follow(
        &mut self,
        snapshot: &Snapshot,
        uplinks: &BTreeSet<u32>,
        opening: impl Fn((IpAddr, IpAddr)) -> u32,
    ) {
        report("the uplinks of probes", self.filter.set_uplinks(uplinks));
        let own = snapshot.vnis().map(|table| table.tunnel.local);
        let kernel = snapshot.kernel_vnis().values().map(|vni| vni.tunnel.local);
        let locals: BTreeSet<IpAddr> = own.chain(kernel).collect();
        let vteps = || snapshot.vteps().map(|vtep| vtep.address);
        if self.locals == locals && vteps().eq(self.vteps.iter().copied()) {
            return;
        }
        (self.vteps, self.locals) = (vteps().collect(), locals);
        let paths = self.locals.iter().flat_map(|local| {
            let of_family = |address: &&IpAddr| address.is_ipv4() == local.is_ipv4();
            self.vteps.iter().filter(of_family).map(|address| (*address, *local))
        });
        let wanted: BTreeSet<(IpAddr, IpAddr)> = paths.collect();
        let is_gone = |ends: &&(IpAddr, IpAddr)| !wanted.contains(ends);
        for ends in self.senders.keys().filter(is_gone).copied().collect::<Vec<_>>() {
            self.senders.remove(&ends);
            report("a VTEP whose probes end", self.filter.remove_sender(ends));
        }
        let number = wanted.len();
        for ends in wanted {
            if !self.senders.contains_key(&ends) {
                self.set(ends, [opening(ends); 4]);
            }
        }
        if self.senders.len() < number {
            // The next snapshot tries those again that the filter did not take.
            self.vteps.clear();
        }
    }

    /// What the sender at `ends.0` repeats in its probes from now on.
    pub(super) fn give_token(&mut self, ends: (IpAddr, IpAddr), token: u32) {
        self.change(ends, |tokens| {
            let [given, ..] = tokens;
            *given = token;
        });
    }

    /// What it told in its last answer, and what its answers repeat from now on.
    pub(super) fn take_token(&mut self, ends: (IpAddr, IpAddr), token: u32) {
        self.change(ends, |tokens| {
            let [_, told, before, _] = tokens;
            if ![*told, *before].contains(&token) {
                (*told, *before) = (token, *told);
            }
        });
    }

    fn change(&mut self, ends: (IpAddr, IpAddr), change: impl FnOnce(&mut [u32; 4])) {
        let Some(before) = self.senders.get(&ends).copied() else { return };
        let mut tokens = before;
        change(&mut tokens);
        if tokens != before {
            self.set(ends, tokens);
        }
    }

    fn set(&mut self, ends: (IpAddr, IpAddr), tokens: [u32; 4]) {
        match self.filter.set_sender(ends, tokens) {
            Ok(()) => {
                self.senders.insert(ends, tokens);
            }
            error => report("a VTEP that sends probes", error),
        }
    }

    /// The packets that were refused.
    pub(super) fn refused(&self) -> ProbesRefused {
        self.filter.refused().unwrap_or_default()
    }
}

/// What the filter does not know is refused, until it is tried again.
fn report(what: &str, result: Result<(), SteeringError>) {
    if let Err(error) = result {
        tracing::debug!("{what}: {error}");
    }
}
