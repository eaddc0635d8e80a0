//! The filter in front of the probing thread (`programs/probe_filter.bpf.c`).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::AsFd;

use aya::programs::SocketFilter;
use aya::{Ebpf, EbpfLoader};
use wire::as_ipv6;

use crate::error::SteeringError;
use crate::maps::{insert, per_cpu, remove};

const PROGRAM: &str = "filter_probes";
const UPLINKS: &str = "probe_uplinks";
const SENDERS: &str = "probe_senders";
const REFUSED: &str = "probe_refused";

/// `struct ends` of the program.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Ends {
    from: [u8; 16],
    to: [u8; 16],
}

// SAFETY: plain integers without padding.
unsafe impl aya::Pod for Ends {}

/// `struct sender` of the program.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Sender {
    /// When the limits of packets with a token that was told, with the opening one, and without any
    /// let the next one pass.
    next: [u64; 3],
    /// In network byte order. The last one is the opening one.
    tokens: [u32; 4],
}

// SAFETY: plain integers without padding.
unsafe impl aya::Pod for Sender {}

/// Packets that were refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProbesRefused {
    /// They arrived by another interface than an uplink, or were not for this host alone.
    pub not_from_uplink: u64,
    /// Their sender is no VTEP of a VNI that is taken over.
    pub not_from_vtep: u64,
    /// Their sender, or all without a token, sent too many.
    pub over_limit: u64,
}

/// The program, with the uplinks and senders that it knows.
#[derive(Debug)]
pub struct ProbeFilter {
    ebpf: Ebpf,
    uplinks: BTreeSet<u32>,
}

impl ProbeFilter {
    /// Loads the program. With a token that was told, `rate` packets of a sender pass in a second, and
    /// as many at once. It is not 0.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn load(rate: u32) -> Result<Self, SteeringError> {
        let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/probe_filter.bpf.o"));
        let interval = 1_000_000_000 / u64::from(rate.max(1));
        let mut ebpf = EbpfLoader::new()
            .override_global("interval_with_token", &interval, true)
            .load(object)?;
        let failed = |error| SteeringError::Program(PROGRAM, error);
        filter(&mut ebpf)?.load().map_err(failed)?;
        Ok(Self { ebpf, uplinks: BTreeSet::new() })
    }

    /// Sets it as the filter of a packet socket.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(&mut self, socket: impl AsFd) -> Result<(), SteeringError> {
        let attached = filter(&mut self.ebpf)?.attach(socket);
        attached.map_err(|error| SteeringError::Program(PROGRAM, error))
    }

    /// Sets the interfaces whose packets pass.
    ///
    /// # Errors
    /// When the map cannot be written. Interfaces before the one that failed are set.
    pub fn set_uplinks(&mut self, uplinks: &BTreeSet<u32>) -> Result<(), SteeringError> {
        for gone in self.uplinks.difference(uplinks).copied().collect::<Vec<_>>() {
            remove::<_, u32>(&mut self.ebpf, UPLINKS, &gone)?;
            self.uplinks.remove(&gone);
        }
        for new in uplinks.difference(&self.uplinks.clone()) {
            insert(&mut self.ebpf, UPLINKS, *new, 0_u32)?;
            self.uplinks.insert(*new);
        }
        Ok(())
    }

    /// Sets the tokens of messages from `ends.0` to `ends.1`: three that were told, and the one with
    /// which both begin. Its limits begin anew.
    ///
    /// # Errors
    /// When the map cannot be written, or is full.
    pub fn set_sender(
        &mut self,
        ends: (IpAddr, IpAddr),
        tokens: [u32; 4],
    ) -> Result<(), SteeringError> {
        let sender = Sender { next: [0; 3], tokens: tokens.map(u32::to_be) };
        insert(&mut self.ebpf, SENDERS, key(ends), sender)
    }

    /// Refuses what comes from `ends.0` to `ends.1`.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn remove_sender(&mut self, ends: (IpAddr, IpAddr)) -> Result<(), SteeringError> {
        remove::<_, Sender>(&mut self.ebpf, SENDERS, &key(ends))
    }

    /// The number of packets that were refused.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn refused(&self) -> Result<ProbesRefused, SteeringError> {
        let count = |reason| {
            let counts = per_cpu::<u64>(&self.ebpf, REFUSED, reason);
            counts.map(|counts| counts.iter().sum())
        };
        Ok(ProbesRefused {
            not_from_uplink: count(0)?,
            not_from_vtep: count(1)?,
            over_limit: count(2)?,
        })
    }
}

fn filter(ebpf: &mut Ebpf) -> Result<&mut SocketFilter, SteeringError> {
    let program = ebpf.program_mut(PROGRAM).ok_or(SteeringError::Missing(PROGRAM))?;
    program.try_into().map_err(|error| SteeringError::Program(PROGRAM, error))
}

fn key((from, to): (IpAddr, IpAddr)) -> Ends {
    Ends { from: as_ipv6(from).octets(), to: as_ipv6(to).octets() }
}
