//! The out-of-band exchange of perftest (linux-rdma/perftest, `perftest_communication.c`), by which
//! `ib_write_bw`, `ib_send_bw` and `ib_read_bw` agree on their queue pairs over TCP.
//!
//! The client speaks first in each exchange, and the server answers with a message of the same
//! length: version, page size, cache line, MTU, then the keys of each queue pair. The keys of the
//! first queue pair are also exchanged whenever both sides wait for each other. At the end, the
//! client reports its result.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wire::{Psn, QueuePair};

use super::{Nic, NicError};

/// The TCP port of perftest.
pub const PORT: u16 = 18_515;
/// The oldest and newest format that both sides of perftest accept from each other.
pub(super) const VERSION: &[u8; 16] = b"5.96\0\0\0\0\0\0\0\0\0\0\0\0";
/// Length of a message with keys (`KEY_MSG_SIZE_GID`).
pub(super) const KEYS: usize = 108;
/// Length of a number in the report.
pub(super) const NUMBER: usize = 8;
/// How often to look whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// What one side tells about a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keys {
    /// Read requests that it answers at a time.
    pub(super) reads: u32,
    pub(super) number: QueuePair,
    pub(super) first: Psn,
    pub(super) key: u32,
    pub(super) address: u64,
    pub(super) ip: Ipv4Addr,
}

impl Keys {
    /// The message (`KEY_PRINT_FMT_GID`). The GID is the IPv4-mapped address.
    pub(super) fn encode(&self) -> [u8; KEYS] {
        let mut text = format!(
            "{:04x}:{:04x}:{:06x}:{:06x}:{:08x}:{:016x}:",
            0,
            self.reads,
            self.number.get(),
            self.first.get(),
            self.key,
            self.address
        );
        for byte in self.ip.to_ipv6_mapped().octets() {
            text += &format!("{byte:02x}:");
        }
        text += &format!("{:08x}:", 0);
        let mut message = [0; KEYS];
        message.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
        message
    }

    /// Reads a message; `None` if it is not one, or has no IPv4 address.
    pub(super) fn decode(message: &[u8; KEYS]) -> Option<Self> {
        let text = std::str::from_utf8(message.split(|byte| *byte == 0).next()?).ok()?;
        let mut fields = text.split(':').map(|field| u64::from_str_radix(field, 16).ok());
        let mut next = || fields.next().flatten();
        let mut short = || next().and_then(|value| u32::try_from(value).ok());
        let (_lid, reads, number, first, key) = (short()?, short()?, short()?, short()?, short()?);
        let address = next()?;
        let mut gid = [0_u8; 16];
        for byte in &mut gid {
            *byte = u8::try_from(next()?).ok()?;
        }
        let ip = std::net::Ipv6Addr::from(gid).to_ipv4_mapped()?;
        let number = QueuePair::try_from(number).ok()?;
        Some(Self { reads, number, first: Psn::new(first), key, address, ip })
    }
}

/// The code of a path MTU, as InfiniBand numbers them (`enum ibv_mtu`).
pub(super) const fn mtu_code(mtu: u32) -> u8 {
    match mtu {
        256 => b'1',
        512 => b'2',
        1024 => b'3',
        2048 => b'4',
        _ => b'5',
    }
}

/// The path MTU for a code.
pub(super) const fn mtu_of(code: u8) -> Option<u32> {
    match code {
        b'1'..=b'5' => Some(128 << (code - b'0')),
        _ => None,
    }
}

/// A TCP connection to a peer. While it waits, an endpoint goes on.
pub(super) struct Control<'a> {
    pub(super) stream: TcpStream,
    pub(super) stop: &'a AtomicBool,
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// TCP failed, or the peer closed the connection.
    #[error("the control connection failed: the peer must run perftest or lab")]
    Tcp(#[from] io::Error),
    /// The endpoint failed.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The user interrupted it.
    #[error("interrupted")]
    Interrupted,
}

impl<'a> Control<'a> {
    pub(super) fn new(stream: TcpStream, stop: &'a AtomicBool) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, stop })
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        // At most some hundred bytes are under way, so the send buffer always has room.
        Ok(self.stream.write_all(bytes)?)
    }

    /// Receives exactly so many bytes. Returns `false` if the peer closed before the first one.
    pub(super) fn receive(
        &mut self,
        bytes: &mut [u8],
        mut nic: Option<&mut Nic>,
    ) -> Result<bool, ControlError> {
        let mut have = 0;
        while have < bytes.len() {
            match self.stream.read(bytes.get_mut(have..).unwrap_or_default()) {
                Ok(0) if have == 0 => return Ok(false),
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(count) => have += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.stop.load(Ordering::Relaxed) {
                        return Err(ControlError::Interrupted);
                    }
                    self.wait(nic.as_deref_mut())?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn wait(&self, nic: Option<&mut Nic>) -> Result<(), ControlError> {
        let Some(nic) = nic else {
            std::thread::sleep(Duration::from_millis(1));
            return Ok(());
        };
        let wake = nic.work()?;
        // Nobody reads the completions of a passive side.
        Ok(nic.wait(wake, LOOK, &[self.stream.as_fd()])?)
    }

    /// The client's half of an exchange.
    pub(super) fn ask(
        &mut self,
        bytes: &mut [u8],
        nic: Option<&mut Nic>,
    ) -> Result<(), ControlError> {
        self.send(bytes)?;
        match self.receive(bytes, nic)? {
            true => Ok(()),
            false => Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_perftests_form() {
        let keys = Keys {
            reads: 16,
            number: 0x11.try_into().unwrap(),
            first: Psn::new(0xab_cdef),
            key: 0x1234,
            address: 0x7f00_0000_1000,
            ip: Ipv4Addr::new(192, 0, 2, 1),
        };
        let message = keys.encode();
        let text = "0000:0010:000011:abcdef:00001234:00007f0000001000:\
                    00:00:00:00:00:00:00:00:00:00:ff:ff:c0:00:02:01:00000000:\0";
        assert_eq!(std::str::from_utf8(&message), Ok(text));
        assert_eq!(Keys::decode(&message), Some(keys));
        assert_eq!(Keys::decode(&[b'x'; KEYS]), None);
        assert_eq!(Keys::decode(&[0; KEYS]), None);
    }

    #[test]
    fn mtu_codes_are_those_of_verbs() {
        for mtu in [256, 512, 1024, 2048, 4096] {
            assert_eq!(mtu_of(mtu_code(mtu)), Some(mtu));
        }
        assert_eq!((mtu_of(b'0'), mtu_of(b'6')), (None, None));
    }
}
