//! A packet socket for probes between VTEPs: it receives their packets on every interface, and sends
//! on any.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::sock_filter;

/// Room for packets that wait to be read, in bytes.
const ROOM: libc::c_int = 8 << 20;

/// The protocol of outer packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Underlay {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl Underlay {
    /// Its EtherType in network byte order.
    const fn protocol(self) -> u16 {
        let ethertype = match self {
            Self::Ipv4 => libc::ETH_P_IP,
            Self::Ipv6 => libc::ETH_P_IPV6,
        };
        (ethertype as u16).to_be()
    }
}

/// A packet socket for probes.
#[derive(Debug)]
pub struct ProbeSocket {
    fd: OwnedFd,
    underlay: Underlay,
}

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Goes on if the loaded value is `k`, and otherwise `skip` statements further.
const fn equal(k: u32, skip: usize) -> sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    sock_filter { code, jt: 0, jf: skip as u8, k }
}

const REFUSE: sock_filter = statement(libc::BPF_RET | libc::BPF_K, 0);
const ACCEPT: sock_filter = statement(libc::BPF_RET | libc::BPF_K, 2048);

/// Refuses the packet unless the loaded value is `k`.
const fn require(k: u32) -> [sock_filter; 2] {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    [sock_filter { code, jt: 1, jf: 0, k }, REFUSE]
}

/// Accepts UDP packets with this VNI and inner EtherType, and ICMP errors of the type `expired`. X is
/// the length of the outer IP header, and the loaded value is the protocol behind it.
fn vxlan_and_errors(
    (vni, ethertype): (u32, u16),
    icmp: libc::c_int,
    expired: u32,
) -> Vec<sock_filter> {
    use libc::{BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IND, BPF_K, BPF_LD, BPF_W};
    let vxlan = [
        [statement(BPF_LD | BPF_W | BPF_IND, 14 + 8 + 4)].as_slice(),
        &[statement(BPF_ALU | BPF_AND | BPF_K, 0xffff_ff00)],
        &require(vni << 8),
        &[statement(BPF_LD | BPF_H | BPF_IND, 14 + 8 + 8 + 12)],
        &require(ethertype.into()),
        &[ACCEPT],
    ]
    .concat();
    [
        [equal(libc::IPPROTO_UDP as u32, vxlan.len())].as_slice(),
        &vxlan,
        &require(icmp as u32),
        &[statement(BPF_LD | BPF_B | BPF_IND, 14)],
        &require(expired),
        &[ACCEPT],
    ]
    .concat()
}

/// Accepts IPv4 packets that are no fragments: UDP with this VNI and inner EtherType, and ICMP errors
/// about an expired time to live.
fn ipv4(kind: (u32, u16)) -> Vec<sock_filter> {
    use libc::{BPF_ABS, BPF_B, BPF_H, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_MSH};
    const TIME_EXCEEDED: u32 = 11;
    let is_fragment = (BPF_JMP | BPF_JSET | BPF_K) as u16;
    [
        [statement(BPF_LD | BPF_H | BPF_ABS, 14 + 6)].as_slice(),
        &[sock_filter { code: is_fragment, jt: 0, jf: 1, k: 0x3fff }, REFUSE],
        &[statement(BPF_LDX | BPF_B | BPF_MSH, 14)],
        &[statement(BPF_LD | BPF_B | BPF_ABS, 14 + 9)],
        &vxlan_and_errors(kind, libc::IPPROTO_ICMP, TIME_EXCEEDED),
    ]
    .concat()
}

/// Accepts IPv6 packets without extension headers: UDP with this VNI and inner EtherType, and ICMPv6
/// errors about an expired hop limit.
fn ipv6(kind: (u32, u16)) -> Vec<sock_filter> {
    use libc::{BPF_ABS, BPF_B, BPF_IMM, BPF_LD, BPF_LDX};
    const TIME_EXCEEDED: u32 = 3;
    [
        [statement(BPF_LDX | BPF_IMM, 40)].as_slice(),
        &[statement(BPF_LD | BPF_B | BPF_ABS, 14 + 6)],
        &vxlan_and_errors(kind, libc::IPPROTO_ICMPV6, TIME_EXCEEDED),
    ]
    .concat()
}

impl AsFd for ProbeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl ProbeSocket {
    /// Opens a socket in the calling thread's network namespace. It receives VXLAN packets over
    /// this underlay that steering programs leave to the kernel, if they have this VNI and inner
    /// EtherType. It also receives ICMP errors about packets whose time to live or hop limit has
    /// expired.
    ///
    /// # Errors
    /// As socket(2), setsockopt(2) and bind(2): without CAP_NET_RAW.
    pub fn open(underlay: Underlay, vni: u32, ethertype: u16) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket(2) takes no pointers; a non-negative result is a descriptor that has no
        // other owner. Protocol 0: nothing is received before the filter is set.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_PACKET, kind, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let mut filter = match underlay {
            Underlay::Ipv4 => ipv4((vni, ethertype)),
            Underlay::Ipv6 => ipv6((vni, ethertype)),
        };
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        set(&fd, libc::SO_ATTACH_FILTER, &program)?;
        set(&fd, libc::SO_RCVBUFFORCE, &ROOM)?;
        set(&fd, libc::SO_SNDBUFFORCE, &ROOM)?;
        let address = address(0, underlay.protocol());
        // SAFETY: `address` is a whole sockaddr_ll and its length is given.
        let bound = unsafe {
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), LENGTH as libc::socklen_t)
        };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { fd, underlay }) }
    }

    /// Sends a packet, from its Ethernet header on, without waiting.
    ///
    /// # Errors
    /// As sendto(2).
    pub fn send(&self, ifindex: u32, packet: &[u8]) -> io::Result<()> {
        let address = address(ifindex, self.underlay.protocol());
        // SAFETY: pointers and lengths describe `packet` and `address`, which live through the call.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                libc::MSG_DONTWAIT,
                (&raw const address).cast(),
                LENGTH as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads a packet, from its Ethernet header on. Returns its length in `buffer` and the index of
    /// the interface by which it arrived; `None` if none waits.
    ///
    /// # Errors
    /// As recvfrom(2), except `EAGAIN`.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, u32)>> {
        let mut from = address(0, 0);
        let mut length = LENGTH as libc::socklen_t;
        // SAFETY: pointers and lengths describe `buffer` and `from`, which live through the call.
        let read = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT,
                (&raw mut from).cast(),
                &raw mut length,
            )
        };
        if read >= 0 {
            return Ok(Some((read as usize, from.sll_ifindex as u32)));
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) }
    }
}

const LENGTH: usize = size_of::<libc::sockaddr_ll>();

fn address(ifindex: u32, protocol: u16) -> libc::sockaddr_ll {
    // SAFETY: sockaddr_ll is plain data for which zero bytes are a valid value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = ifindex as i32;
    address
}

fn set<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which lives through the call.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
