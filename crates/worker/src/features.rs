//! Detects features of the running kernel by trying them. Versions do not suffice, because
//! distributions backport features.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Duration;

use bpf::has_tcx;
use frame::{Gso, GsoKind};
use netlink::{LinkChange, PrivateNamespace, Requests};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use ports::{PacketSocket, RingSize};

/// Kernel features that vtepd can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// tcx links (Linux 6.6).
    pub tcx: bool,
    /// AF_PACKET describes UDP super-frames (`VIRTIO_NET_HDR_GSO_UDP_L4`, Linux 6.2). Without it, a
    /// socket with `PACKET_VNET_HDR` loses them (`virtio_net_hdr_from_skb()` in
    /// `include/linux/virtio_net.h`).
    pub udp_super_frames: bool,
}

impl Features {
    /// All features.
    pub const ALL: Self = Self { tcx: true, udp_super_frames: true };

    /// Detects all features, in new network namespaces where that is necessary.
    ///
    /// # Errors
    /// When a privilege is missing (CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN).
    pub fn probe() -> io::Result<Self> {
        Ok(Self { tcx: has_tcx()?, udp_super_frames: describes_udp_super_frames()? })
    }

    /// The features that the kernel lacks and the consequence of each, as sentences.
    #[must_use]
    pub fn lacks(self) -> Vec<String> {
        let tcx = "no tcx links (Linux 6.6): clsact filters are used, which stay (empty) if vtepd is killed, until the next \
                   start removes them";
        let udp = "AF_PACKET cannot describe UDP super-frames (Linux 6.2): the kernel cuts those of local senders before \
                   vtepd reads them, and vtepd's own leave one by one; nothing is lost but CPU time";
        let lacks = [(!self.tcx, tcx), (!self.udp_super_frames, udp)];
        lacks.into_iter().filter(|(lacks, _)| *lacks).map(|(_, text)| text.to_owned()).collect()
    }
}

/// Sends a UDP super-frame over the loopback interface of a new namespace and checks how AF_PACKET
/// describes it.
fn describes_udp_super_frames() -> io::Result<bool> {
    const SEGMENT: i32 = 100;
    PrivateNamespace::create()?.enter(|| {
        let mut requests = Requests::open().map_err(io::Error::other)?;
        let loopback =
            requests.link("lo").map_err(io::Error::other)?.ok_or(io::ErrorKind::NotFound)?.ifindex;
        let up = LinkChange { up: Some(true), ..LinkChange::default() };
        requests.set_link(loopback, &up).map_err(io::Error::other)?;
        let mut tap = PacketSocket::open(loopback, RingSize::LITTLE)?;
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        setsockopt(&socket, sockopt::UdpGsoSegment, &SEGMENT)?;
        socket.send_to(&[0; 3 * SEGMENT as usize], socket.local_addr()?)?;
        let timeout = PollTimeout::try_from(Duration::from_secs(1)).unwrap_or(PollTimeout::MAX);
        // The loopback delivers before the call returns, or just after.
        poll(&mut [PollFd::new(tap.as_fd(), PollFlags::POLLIN)], timeout)?;
        let whole = |gso: Option<Gso>| gso.is_some_and(|gso| gso.kind == GsoKind::Udp);
        Ok(tap.receive().frames().any(|frame| whole(frame.offload.gso)))
    })
}
