//! Captures what an interface receives and sends (packet(7)). The kernel copies packets for the
//! socket beside its own work: a reader that is too slow loses packets of the capture, and nothing
//! else. While no such socket is open, it costs nothing.

use std::io::{self, IoSliceMut};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

use frame::{FRAME_CAPACITY, Frame, MACS, Offload, VlanTag};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg};
use nix::sys::time::TimeSpec;
use wire::Vni;
use wire::number::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_UDP};

use crate::filter::{
    ETHERNET, HEADER_LENGTH, IF_ANY_BIT, IF_EQUAL, LOAD_BYTE, LOAD_HALF, LOAD_HALF_BEHIND,
    LOAD_WORD, LOAD_WORD_BEHIND, RETURN, SHIFT_RIGHT, attach, skip_if, skip_unless, step,
};
use crate::packet::{VnetHeader, bind, drops, offload, raw_socket, set_option};

/// Room for packets that wait to be read, in bytes of memory. The kernel doubles it.
const ROOM: libc::c_int = 8 << 20;
/// The most UDP ports of a filter.
const MOST_PORTS: usize = 64;
/// Bytes of `struct tpacket_auxdata` (`include/uapi/linux/if_packet.h`).
const AUXILIARY: usize = 20;

/// Which packets a socket captures. The kernel checks it before it copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaptureFilter {
    /// All.
    All,
    /// VXLAN packets over IPv4 or IPv6.
    Vxlan {
        /// UDP destination ports. The first 64 count.
        ports: Vec<u16>,
        /// Only packets of this VNI.
        vni: Option<Vni>,
    },
}

/// A packet that was captured.
#[derive(Debug, Clone, Copy)]
pub struct CapturedFrame<'a> {
    /// The packet, or a super-frame.
    pub frame: Frame<'a>,
    /// When the kernel received or sent it, since 1970, UTC.
    pub time: Duration,
    /// Whether it was sent.
    pub outgoing: bool,
}

/// A socket that captures on one interface, and the memory for one packet.
pub struct CaptureSocket {
    fd: OwnedFd,
    bytes: Box<[u8]>,
    control: Vec<u8>,
    /// Packets that could not be read since [`Self::lost`] was called.
    unread: u64,
}

impl std::fmt::Debug for CaptureSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureSocket").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl AsFd for CaptureSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl CaptureSocket {
    /// Opens a socket on an interface of the calling thread's namespace.
    ///
    /// # Errors
    /// As socket(2), setsockopt(2) and bind(2): without CAP_NET_RAW, or when the interface does not
    /// exist.
    pub fn open(ifindex: u32, filter: &CaptureFilter) -> io::Result<Self> {
        let fd = raw_socket()?;
        let on: libc::c_int = 1;
        set_option(&fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)?;
        set_option(&fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, &on)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &on)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &ROOM)?;
        if let CaptureFilter::Vxlan { ports, vni } = filter {
            attach(&fd, &vxlan(ports.get(..MOST_PORTS).unwrap_or(ports), *vni))?;
        }
        bind(&fd, ifindex, (libc::ETH_P_ALL as u16).to_be())?;
        let control = nix::cmsg_space!(TimeSpec, [u8; AUXILIARY]);
        Ok(Self { fd, bytes: vec![0; FRAME_CAPACITY].into(), control, unread: 0 })
    }

    /// The next packet, with the tag that the kernel keeps apart. Does not wait; `None` if none is
    /// there.
    ///
    /// # Errors
    /// As recvmsg(2), except `EAGAIN`; ENETDOWN if the interface was set down.
    pub fn receive(&mut self) -> io::Result<Option<CapturedFrame<'_>>> {
        let mut header = [0; size_of::<VnetHeader>()];
        let (length, meta) = loop {
            let mut vectors = [IoSliceMut::new(&mut header), IoSliceMut::new(&mut self.bytes)];
            let read = recvmsg::<LinkAddr>(
                self.fd.as_raw_fd(),
                &mut vectors,
                Some(&mut self.control),
                MsgFlags::MSG_DONTWAIT,
            );
            match read {
                Ok(read) if !read.flags.contains(MsgFlags::MSG_TRUNC) => {
                    let meta = Meta::of(read.address, read.cmsgs().into_iter().flatten());
                    break (read.bytes.saturating_sub(size_of::<VnetHeader>()), meta);
                }
                // Longer than any IP packet, or a super-frame that the header cannot describe.
                Ok(_) | Err(Errno::EINVAL) => self.unread += 1,
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let data = self.bytes.get(..length).unwrap_or_default();
        let offload: Offload = offload(&VnetHeader::from_bytes(header)).unwrap_or_default();
        let Meta { time, outgoing, vlan } = meta;
        Ok(Some(CapturedFrame { frame: Frame { data, vlan, offload }, time, outgoing }))
    }

    /// How many packets the capture has lost since the last call, because they found no room or could
    /// not be read.
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn lost(&mut self) -> io::Result<u64> {
        Ok(drops(&self.fd)? + std::mem::take(&mut self.unread))
    }
}

/// What the kernel tells beside a packet.
struct Meta {
    time: Duration,
    outgoing: bool,
    vlan: Option<VlanTag>,
}

impl Meta {
    fn of(from: Option<LinkAddr>, messages: impl Iterator<Item = ControlMessageOwned>) -> Self {
        let outgoing = from.is_some_and(|from| from.pkttype() == libc::PACKET_OUTGOING);
        let (mut time, mut vlan) = (None, None);
        for message in messages {
            match message {
                ControlMessageOwned::ScmTimestampns(stamp) => time = Some(stamp.into()),
                ControlMessageOwned::Unknown(other)
                    if (other.cmsg_header.cmsg_level, other.cmsg_header.cmsg_type)
                        == (libc::SOL_PACKET, libc::PACKET_AUXDATA) =>
                {
                    vlan = tag(&other.data_bytes);
                }
                _ => {}
            }
        }
        let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { time: time.unwrap_or_else(now), outgoing, vlan }
    }
}

/// The tag in a `struct tpacket_auxdata`: status, two lengths, two offsets, TCI and TPID.
fn tag(auxiliary: &[u8]) -> Option<VlanTag> {
    let [a, b, c, d, .., e, f, g, h] = *auxiliary.first_chunk::<AUXILIARY>()?;
    let status = u32::from_ne_bytes([a, b, c, d]);
    let (tci, tpid) = (u16::from_ne_bytes([e, f]), u16::from_ne_bytes([g, h]));
    let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID == 0 { 0x8100 } else { tpid };
    (status & libc::TP_STATUS_VLAN_VALID != 0).then_some(VlanTag { tpid, tci })
}

/// A frame with its tag in its place.
#[must_use]
pub fn with_tag(data: &[u8], tag: VlanTag) -> Vec<u8> {
    let (addresses, rest) = data.split_at_checked(MACS).unwrap_or((data, &[]));
    [addresses, &tag.tpid.to_be_bytes(), &tag.tci.to_be_bytes(), rest].concat()
}

/// Lengths and offsets in bytes.
const IPV6: u32 = 40;
/// From the UDP header.
const DESTINATION_PORT: u32 = 2;
const VNI: u32 = 8 + 4;

/// A filter that takes UDP packets to these ports, and of a VNI, and no others.
fn vxlan(ports: &[u16], vni: Option<Vni>) -> Vec<libc::sock_filter> {
    let drop = step(RETURN, 0);
    let udp = [skip_if(IF_EQUAL, PROTOCOL_UDP.into(), 1), drop];
    let is_wanted = |port: libc::sock_filter, number: libc::sock_filter| {
        let mut program = vec![port];
        for (left, port) in (1..=ports.len() as u8).rev().zip(ports) {
            program.push(skip_if(IF_EQUAL, (*port).into(), left));
        }
        program.push(drop);
        if let Some(vni) = vni {
            program.extend([number, step(SHIFT_RIGHT, 8)]);
            program.extend([skip_if(IF_EQUAL, vni.get(), 1), drop]);
        }
        program.push(step(RETURN, u32::MAX));
        program
    };
    let mut ipv4 = vec![step(LOAD_BYTE, ETHERNET + 9)];
    ipv4.extend(udp);
    // A fragment behind the first has no UDP header.
    ipv4.extend([step(LOAD_HALF, ETHERNET + 6), skip_unless(IF_ANY_BIT, 0x1fff, 1), drop]);
    ipv4.push(step(HEADER_LENGTH, ETHERNET));
    ipv4.extend(is_wanted(
        step(LOAD_HALF_BEHIND, ETHERNET + DESTINATION_PORT),
        step(LOAD_WORD_BEHIND, ETHERNET + VNI),
    ));
    let mut ipv6 = vec![step(LOAD_BYTE, ETHERNET + 6)];
    ipv6.extend(udp);
    ipv6.extend(is_wanted(
        step(LOAD_HALF, ETHERNET + IPV6 + DESTINATION_PORT),
        step(LOAD_WORD, ETHERNET + IPV6 + VNI),
    ));
    let is_ipv4 = skip_unless(IF_EQUAL, ETHERTYPE_IPV4.into(), ipv4.len() as u8);
    let is_ipv6 = [skip_if(IF_EQUAL, ETHERTYPE_IPV6.into(), 1), drop];
    [&[step(LOAD_HALF, 12), is_ipv4][..], &ipv4, &is_ipv6, &ipv6].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::is_taken;

    /// A packet with an IP header of so many bytes.
    fn packet(ipv6: bool, header: usize, port: u16, vni: u32) -> Vec<u8> {
        let mut packet = vec![0; 12];
        packet.extend(if ipv6 { [0x86, 0xdd] } else { [8, 0] });
        let mut ip = vec![0; header];
        if ipv6 {
            (ip[0], ip[6]) = (0x60, PROTOCOL_UDP);
        } else {
            (ip[0], ip[9]) = (0x40 | (header / 4) as u8, PROTOCOL_UDP);
        }
        packet.extend(ip);
        packet.extend([0xc0, 0]);
        packet.extend(port.to_be_bytes());
        packet.extend([0, 0, 0, 0, 8, 0, 0, 0]);
        packet.extend((vni << 8).to_be_bytes());
        packet
    }

    #[test]
    fn the_filter_takes_vxlan_packets_of_its_ports_and_its_vni() {
        let vni = |number: u32| Vni::try_from(number).unwrap();
        let ports = [4789, 8472, 7];
        let (any, one) = (vxlan(&ports, None), vxlan(&ports, Some(vni(10))));
        for (ipv6, header) in [(false, 20), (false, 60), (true, 40)] {
            for port in ports {
                let [ten, other] = [10, 11].map(|vni| packet(ipv6, header, port, vni));
                assert!(is_taken(&any, &ten) && is_taken(&any, &other), "{ipv6} {header} {port}");
                assert!(is_taken(&one, &ten) && !is_taken(&one, &other), "{ipv6} {header} {port}");
                // Up to the port.
                for end in 0..14 + header + 4 {
                    assert!(!is_taken(&any, &ten[..end]), "cut at {end}");
                }
                let mut tcp = ten.clone();
                tcp[if ipv6 { 14 + 6 } else { 14 + 9 }] = 6;
                assert!(!is_taken(&any, &tcp));
                let mut fragment = ten;
                fragment[14 + 7] = 1;
                assert_eq!(is_taken(&any, &fragment), ipv6);
            }
            assert!(!is_taken(&any, &packet(ipv6, header, 4790, 10)));
        }
        assert!(!is_taken(&any, &[0; 100]));
        assert!(!is_taken(&vxlan(&[], None), &packet(false, 20, 4789, 10)));
        // Jumps of the longest filter fit.
        assert!(vxlan(&[1; MOST_PORTS], Some(vni(1))).len() < 256);
    }

    #[test]
    fn a_tag_that_the_kernel_keeps_apart_is_put_back() {
        let status = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
        let mut auxiliary = status.to_ne_bytes().to_vec();
        auxiliary.resize(16, 0);
        auxiliary.extend([5u16, 0x88a8].into_iter().flat_map(u16::to_ne_bytes));
        let found = tag(&auxiliary).unwrap();
        assert_eq!(found, VlanTag { tpid: 0x88a8, tci: 5 });
        auxiliary[0] = 0;
        assert_eq!((tag(&auxiliary), tag(&auxiliary[..19])), (None, None));
        let frame: Vec<u8> = (0..20).collect();
        let tagged = with_tag(&frame, found);
        assert_eq!((&tagged[..12], &tagged[16..]), (&frame[..12], &frame[12..]));
        assert_eq!(tagged[12..16], [0x88, 0xa8, 0, 5]);
    }
}
