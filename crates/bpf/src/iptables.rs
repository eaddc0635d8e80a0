//! Reads the tables of legacy iptables without creating any
//! (`include/uapi/linux/netfilter_ipv4/ip_tables.h`).
//!
//! The kernel creates a table when it is requested by name, so only existing tables are requested.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use netlink::LegacyTable;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
/// Bytes of a table's name.
const NAME: usize = 32;
/// Bytes of `struct ipt_getinfo`: name, mask of valid hooks, start and policy offsets of each hook,
/// number and size of entries.
const INFO: usize = 84;
/// Bytes of `struct ipt_get_entries` before the entries: name, size and padding.
const HEADER: usize = 40;
/// How many times a table is read that changes meanwhile.
const ATTEMPTS: u32 = 16;

/// The tables of the calling thread's network namespace.
///
/// # Errors
/// When a table cannot be read, or changes too often.
pub fn legacy_tables() -> io::Result<Vec<LegacyTable>> {
    let names = match std::fs::read_to_string("/proc/net/ip_tables_names") {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    names.lines().map(|name| read(&socket, name)).collect()
}

fn read(socket: &OwnedFd, name: &str) -> io::Result<LegacyTable> {
    for _ in 0..ATTEMPTS {
        let mut info = vec![0; INFO];
        put_name(&mut info, name);
        get(socket, GET_INFO, &mut info)?;
        let word = |index: usize| {
            let start = NAME.saturating_add(index.saturating_mul(4));
            info.get(start..)
                .and_then(<[u8]>::first_chunk)
                .map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        let (valid, size) = (word(0), word(12));
        let hook = |number: usize| {
            (valid >> number & 1 == 1)
                .then(|| (word(number.saturating_add(1)), word(number.saturating_add(6))))
        };
        let hooks = std::array::from_fn(hook);
        let mut entries = vec![0; HEADER.saturating_add(size as usize)];
        put_name(&mut entries, name);
        let at = entries.iter_mut().skip(NAME);
        at.zip(size.to_ne_bytes()).for_each(|(at, byte)| *at = byte);
        match get(socket, GET_ENTRIES, &mut entries) {
            Ok(()) => {
                entries.drain(..HEADER);
                return Ok(LegacyTable { name: name.to_owned(), hooks, entries });
            }
            // It was replaced by a table of another size.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("table {name} changes too often")))
}

fn put_name(buffer: &mut [u8], name: &str) {
    let room = buffer.iter_mut().take(NAME.saturating_sub(1));
    room.zip(name.bytes()).for_each(|(at, byte)| *at = byte);
}

fn get(socket: &OwnedFd, option: libc::c_int, buffer: &mut [u8]) -> io::Result<()> {
    let mut length = libc::socklen_t::try_from(buffer.len()).map_err(io::Error::other)?;
    // SAFETY: The kernel writes at most `length` bytes into the buffer, which is that long and
    // outlives the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            option,
            buffer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    nix::errno::Errno::result(result).map(drop).map_err(Into::into)
}
