//! Offload features of an interface, as `ethtool -k` and `-K` show and change them
//! (`include/uapi/linux/ethtool.h`). Where one is off, the kernel splits such super-frames before
//! it transmits them (`validate_xmit_skb()` in net/core/dev.c).

use std::ffi::CStr;
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::{io, ptr};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const GET_STRINGS: u32 = 0x1b;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;
const FEATURE_NAMES: u32 = 4;
/// Positive results of `SET_FEATURES`: `ETHTOOL_F_UNSUPPORTED` and `ETHTOOL_F_WISH`, which mean
/// that features were not changed.
const NOT_DONE: libc::c_int = 1 | 2;

/// Upper bound of the number of feature names; no kernel has as many.
const NAMES: usize = 512;

/// `struct ethtool_gstrings`.
#[repr(C)]
struct Strings {
    command: u32,
    set: u32,
    count: u32,
    names: [[u8; 32]; NAMES],
}

/// `struct ethtool_sfeatures`.
#[repr(C)]
struct SetFeatures {
    command: u32,
    words: u32,
    /// Masks of the features to change, and of their new values.
    wanted: [[u32; 2]; NAMES / 32],
}

/// `struct ethtool_gfeatures`.
#[repr(C)]
struct GetFeatures {
    command: u32,
    words: u32,
    /// Masks of the features that can be changed, are wanted, are on, and never change.
    states: [[u32; 4]; NAMES / 32],
}

/// Whether a feature of an interface of the calling thread's namespace is off, by the name that
/// `ethtool -k` shows. A feature that the kernel lacks is not off.
///
/// # Errors
/// When the kernel refuses, for example because there is no such interface.
pub fn is_off(interface: &str, feature: &str) -> io::Result<bool> {
    let names = names(interface)?;
    let mut get =
        GetFeatures { command: GET_FEATURES, words: words(&names), states: [[0; 4]; NAMES / 32] };
    ethtool(interface, ptr::from_mut(&mut get).cast())?;
    let on =
        |bit: usize| get.states.get(bit / 32).is_some_and(|[.., on, _]| on >> (bit % 32) & 1 == 1);
    Ok(names.iter().position(|name| name == feature).is_some_and(|bit| !on(bit)))
}

/// Switches features off on an interface of the calling thread's namespace, by the names that
/// `ethtool -k` shows. Unknown names are ignored, because the kernel lacks those features.
///
/// # Errors
/// When the kernel refuses, or when a feature stays on.
pub fn switch_off(interface: &str, features: &[&str]) -> io::Result<()> {
    let names = names(interface)?;
    let words = words(&names);
    let mut set = SetFeatures { command: SET_FEATURES, words, wanted: [[0; 2]; NAMES / 32] };
    for (bit, name) in names.iter().enumerate() {
        if features.contains(&name.as_str())
            && let Some([meant, _]) = set.wanted.get_mut(bit / 32)
        {
            *meant |= 1 << (bit % 32);
        }
    }
    match ethtool(interface, ptr::from_mut(&mut set).cast())? & NOT_DONE {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("the kernel keeps {} on", features.join(", ")))),
    }
}

/// The kernel's names of features. A feature's index is its bit.
fn names(interface: &str) -> io::Result<Vec<String>> {
    let mut strings = Box::new(Strings {
        command: GET_STRINGS,
        set: FEATURE_NAMES,
        count: 0,
        names: [[0; 32]; NAMES],
    });
    ethtool(interface, ptr::from_mut(&mut *strings).cast())?;
    let text = |name: &[u8; 32]| {
        CStr::from_bytes_until_nul(name).map(CStr::to_string_lossy).unwrap_or_default().into_owned()
    };
    Ok(strings.names.iter().take(strings.count as usize).map(text).collect())
}

/// The number of words that have a bit for each feature.
const fn words(names: &[String]) -> u32 {
    names.len().div_ceil(32) as u32
}

/// Makes the request that `command` points at. The kernel may write as much behind it as the
/// request's structure allows.
fn ethtool(interface: &str, command: *mut libc::c_char) -> io::Result<libc::c_int> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: ifreq is plain data for which zero bytes are a valid value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // The last octet stays zero.
    let room = request.ifr_name.len() - 1;
    for (octet, letter) in request.ifr_name.iter_mut().take(room).zip(interface.bytes()) {
        *octet = letter as libc::c_char;
    }
    request.ifr_ifru.ifru_data = command;
    // SAFETY: the request is whole. The structures of all callers outlive the call. They have room
    // for `NAMES` names and words of features, which is more than the kernel reads or writes.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } {
        result if result < 0 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}
