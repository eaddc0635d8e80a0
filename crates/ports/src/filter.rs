//! Socket filters of classic BPF (`Documentation/networking/filter.rst`), by which the kernel decides
//! which packets a packet socket takes.

use std::io;
use std::os::fd::OwnedFd;

use crate::packet::set_option;

/// Length of an Ethernet header in bytes.
pub(crate) const ETHERNET: u32 = 14;

/// Instructions of a socket filter (`include/uapi/linux/bpf_common.h`).
pub(crate) const LOAD_WORD: u16 = 0x20;
pub(crate) const LOAD_HALF: u16 = 0x28;
pub(crate) const LOAD_BYTE: u16 = 0x30;
/// At an offset from the end of the IPv4 header.
pub(crate) const LOAD_WORD_BEHIND: u16 = 0x40;
pub(crate) const LOAD_HALF_BEHIND: u16 = 0x48;
/// Takes the length of the IPv4 header.
pub(crate) const HEADER_LENGTH: u16 = 0xb1;
pub(crate) const SHIFT_RIGHT: u16 = 0x74;
pub(crate) const IF_EQUAL: u16 = 0x15;
pub(crate) const IF_ANY_BIT: u16 = 0x45;
/// Only these bits stay.
pub(crate) const ONLY_BITS: u16 = 0x54;
pub(crate) const RETURN: u16 = 0x06;

pub(crate) const fn step(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

/// Skips `then` instructions if the condition holds, and otherwise goes on.
pub(crate) const fn skip_if(code: u16, k: u32, then: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt: then, jf: 0, k }
}

/// The reverse of [`skip_if`].
pub(crate) const fn skip_unless(code: u16, k: u32, otherwise: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: otherwise, k }
}

/// Gives a socket a filter.
///
/// # Errors
/// As setsockopt(2).
pub(crate) fn attach(socket: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// What the kernel would do with a packet; bytes behind its end end the filter.
#[cfg(test)]
pub(crate) fn is_taken(program: &[libc::sock_filter], packet: &[u8]) -> bool {
    let (mut at, mut a, mut x) = (0, 0u32, 0);
    let load = |from: usize, length: usize| -> Option<u32> {
        let bytes = packet.get(from..from + length)?;
        Some(bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
    };
    loop {
        let libc::sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let from = k as usize;
        let loaded = match code {
            LOAD_WORD => load(from, 4),
            LOAD_HALF => load(from, 2),
            LOAD_BYTE => load(from, 1),
            LOAD_WORD_BEHIND => load(from + x, 4),
            LOAD_HALF_BEHIND => load(from + x, 2),
            HEADER_LENGTH => {
                x = 4 * (packet[from] & 15) as usize;
                Some(a)
            }
            SHIFT_RIGHT => Some(a >> k),
            ONLY_BITS => Some(a & k),
            IF_EQUAL | IF_ANY_BIT => {
                let holds = if code == IF_EQUAL { a == k } else { a & k != 0 };
                at += usize::from(if holds { jt } else { jf });
                Some(a)
            }
            RETURN => return k > 0,
            other => panic!("{other:#x}"),
        };
        match loaded {
            Some(loaded) => a = loaded,
            None => return false,
        }
    }
}
