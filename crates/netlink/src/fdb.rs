//! Writes entries into a vxlan netdev's own FDB, as the kernel does when it learns (`vxlan_snoop()`
//! and `vxlan_fdb_add()` in `drivers/net/vxlan/vxlan_core.c`). Also reads single entries of a
//! bridge.
//!
//! Written entries are `NUD_REACHABLE`, like those that the kernel learns. The kernel ages them,
//! and moves them when it sees the address elsewhere. Replacing an entry does not change its age;
//! `NTF_USE` resets it (observed on Linux 6.18).

use std::net::IpAddr;

use nix::libc::ENOENT;
use wire::MacAddr;

use crate::encode::{REQUEST, Request, neighbour_body};
use crate::envelope::AF_BRIDGE;
use crate::error::Error;
use crate::message::{FdbEntry, Message, Operation};
use crate::request::{ACKNOWLEDGE, Requests, USE};

/// `RTM_NEWNEIGH`.
const NEW_NEIGHBOUR: u16 = 28;
/// `RTM_GETNEIGH`.
const GET_NEIGHBOUR: u16 = 30;
/// `NLM_F_REPLACE`.
const REPLACE: u16 = 0x100;
/// `NLM_F_CREATE | NLM_F_EXCL`.
const CREATE_NEW: u16 = 0x600;
/// `NUD_REACHABLE`.
const REACHABLE: u16 = 0x02;
/// `NTF_SELF`.
const OWN: u8 = 0x02;
/// `NTF_EXT_LEARNED | NTF_STICKY`: preserved when an entry is moved or refreshed.
const KEPT: u8 = 0x50;
/// Maximum number of entries in one message: as many errors fit into the socket's default receive
/// buffer.
const AT_ONCE: usize = 64;

/// The change to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FdbChange {
    /// It is new. An existing entry of any kind is not changed (`EEXIST`).
    New,
    /// It is behind another VTEP. An entry that no longer exists is not created (`ENOENT`).
    Moved,
    /// It is in use. An entry that no longer exists is not created (`ENOENT`).
    Refreshed,
}

/// A learned entry to write into a vxlan netdev's own FDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FdbWrite {
    /// The vxlan netdev.
    pub ifindex: u32,
    /// The MAC address.
    pub mac: MacAddr,
    /// The VTEP behind which the address is.
    pub vtep: IpAddr,
    /// The kind of change.
    pub change: FdbChange,
    /// `NTF_*` flags of the existing entry; 0 for a new one.
    pub flags: u32,
}

impl FdbWrite {
    fn request(&self, acknowledge: u16) -> Request {
        let (how, usage) = match self.change {
            FdbChange::New => (CREATE_NEW, 0),
            FdbChange::Moved => (REPLACE, USE),
            FdbChange::Refreshed => (0, USE),
        };
        let [kept, ..] = self.flags.to_le_bytes();
        let body = neighbour_body(AF_BRIDGE, self.ifindex, REACHABLE, OWN | usage | (kept & KEPT));
        Request::new(NEW_NEIGHBOUR, REQUEST | how | acknowledge, &body)
            .put_ip(1, self.vtep)
            .put(2, &self.mac.0)
    }
}

impl Requests {
    /// Writes learned entries. Returns the result of each, in order: 0, or the error number
    /// (`ENOSPC` when the netdev's `maxaddress` is reached).
    ///
    /// # Errors
    /// When the socket fails. Some entries may have been written.
    pub fn write_fdb(&mut self, writes: &[FdbWrite]) -> Result<Vec<i32>, Error> {
        let mut outcomes = Vec::with_capacity(writes.len());
        for writes in writes.chunks(AT_ONCE) {
            let last = writes.len().saturating_sub(1);
            let request = |(index, write): (usize, &FdbWrite)| {
                write.request(if index == last { ACKNOWLEDGE } else { 0 })
            };
            let requests = writes.iter().enumerate().map(request).collect();
            outcomes.extend(self.send_all("write FDB entries", requests)?);
        }
        Ok(outcomes)
    }

    /// A bridge's entry for an address without a VLAN (since Linux 5.0).
    ///
    /// # Errors
    /// When the kernel refuses: there is no such bridge (`ENODEV`, `EINVAL`), …
    pub fn bridge_entry(&mut self, bridge: u32, mac: MacAddr) -> Result<Option<FdbEntry>, Error> {
        let request =
            Request::new(GET_NEIGHBOUR, REQUEST | ACKNOWLEDGE, &neighbour_body(AF_BRIDGE, 0, 0, 0))
                .put(2, &mac.0)
                .put(9, &bridge.to_ne_bytes());
        let answer = match self.exchange("look up an FDB entry", &request) {
            Err(error) if error.refusal() == Some(ENOENT) => return Ok(None),
            answer => answer?,
        };
        Ok(answer.unwrap_or_default().into_iter().find_map(|message| match message {
            Message::Fdb(Operation::New, entry) => Some(entry),
            _ => None,
        }))
    }
}
