//! A request of the requester, and its packets.

use wire::QueuePair;
use wire::roce::opcode;

use crate::packet::{Header, Remote};
use crate::settings::Settings;
use crate::work::{Operation, Place, WorkRequest};
use wire::Psn;

/// A request that is not complete.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) work: WorkRequest,
    pub(crate) first: Psn,
    pub(crate) packets: u32,
    pub(crate) posted: u64,
    /// Read responses that have arrived.
    pub(crate) answered: u32,
}

impl Request {
    pub(crate) const fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    /// The first response that is missing, if it is a read.
    pub(crate) const fn missing(&self) -> Option<Psn> {
        match self.work.operation {
            Operation::Read { .. } if self.answered < self.packets => {
                Some(self.first.plus(self.answered))
            }
            _ => None,
        }
    }

    pub(crate) const fn is_read(&self) -> bool {
        matches!(self.work.operation, Operation::Read { .. })
    }

    /// The packet with the number `psn`. A read request asks for all from there on.
    pub(crate) fn emission(
        &self,
        psn: Psn,
        destination: QueuePair,
        settings: &Settings,
    ) -> Option<Emission> {
        let at = u32::try_from(psn.since(self.first)).ok()?;
        let offset = u64::from(at) * u64::from(settings.mtu);
        let rest = u64::from(self.work.length).saturating_sub(offset);
        let local = self.work.local.plus(offset);
        let length = u32::try_from(rest).ok()?;
        let there = |remote: Place| {
            let Place { key, address } = remote.plus(offset);
            Some(Remote { address, key, length })
        };
        if let Operation::Read { remote } = self.work.operation {
            let mut header = Header::new(opcode::RC_READ_REQUEST, destination, psn);
            header.remote = there(remote);
            return Some(Emission { header, payload: local, length: 0 });
        }
        let last = at + 1 == self.packets;
        let code = code(self.work.operation, at == 0, last);
        let mut header = Header::new(code, destination, psn);
        if let Operation::Write { remote, .. } = self.work.operation
            && (at == 0 || settings.reth_in_each)
        {
            header.remote = there(remote);
        }
        if last
            && let Operation::Write { immediate, .. } | Operation::Send { immediate } =
                self.work.operation
        {
            header.immediate = immediate;
        }
        let length = usize::try_from(rest.min(settings.mtu.into())).ok()?;
        Some(Emission { header, payload: local, length })
    }
}

/// A packet to be sent: its headers, and where its payload is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Emission {
    pub(crate) header: Header,
    pub(crate) payload: Place,
    pub(crate) length: usize,
}

/// The opcode of a packet of a send or write.
const fn code(operation: Operation, first: bool, last: bool) -> u8 {
    match (operation, first, last) {
        (Operation::Send { immediate: None }, true, true) => opcode::RC_SEND_ONLY,
        (Operation::Send { .. }, true, true) => opcode::RC_SEND_ONLY_IMMEDIATE,
        (Operation::Send { .. }, true, false) => opcode::RC_SEND_FIRST,
        (Operation::Send { .. }, false, false) => opcode::RC_SEND_MIDDLE,
        (Operation::Send { immediate: None }, false, true) => opcode::RC_SEND_LAST,
        (Operation::Send { .. }, false, true) => opcode::RC_SEND_LAST_IMMEDIATE,
        (Operation::Write { immediate: None, .. }, true, true) => opcode::RC_WRITE_ONLY,
        (Operation::Write { .. }, true, true) => opcode::RC_WRITE_ONLY_IMMEDIATE,
        (Operation::Write { .. }, true, false) => opcode::RC_WRITE_FIRST,
        (Operation::Write { .. }, false, false) => opcode::RC_WRITE_MIDDLE,
        (Operation::Write { immediate: None, .. }, false, true) => opcode::RC_WRITE_LAST,
        (Operation::Write { .. }, false, true) => opcode::RC_WRITE_LAST_IMMEDIATE,
        (Operation::Read { .. }, ..) => opcode::RC_READ_REQUEST,
    }
}
