//! Veth pairs between the leaf's namespace, where steering redirects frames to the near end, and a
//! private namespace. Punt pairs carry frames to a worker, whose AF_PACKET socket is the only reader
//! of the far end. The splitter splits super-frames for the programs.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bpf::NearEnds;
use netlink::{
    Dump, Link, LinkChange, LinkKind, Message, Operation, PrivateNamespace, Requests, Veth, VethEnd,
};
use ports::{PacketSocket, RingSize, ethtool};

use crate::features::Features;

/// MTU of both ends in bytes, large enough for every packet.
const MTU: u32 = 65_535;
/// Slots of the ring. It is not larger because a kernel without preemption runs nothing else on
/// that CPU while it allocates a ring.
const FRAMES: usize = 3584;
/// Bytes that a frame of a vxlan netdev has in addition to the netdev's MTU: an Ethernet header, a
/// tag, and the outer headers over IPv6, which are 20 bytes longer than those over IPv4.
const AROUND: usize = 14 + 4 + 70;
/// Features for super-frames that a virtio-net header cannot describe on any kernel. The far end's
/// socket would lose them.
const INDESCRIBABLE: [&str; 2] = ["tx-sctp-segmentation", "tx-gso-list"];
/// The feature for super-frames that it cannot describe on some kernels.
const UDP: &str = "tx-udp-segmentation";
/// `IFF_UP` of netdevice(7).
const UP: u32 = 1;
/// `IF_OPER_UP` (RFC 2863, `include/uapi/linux/if.h`).
const OPERATIONAL: u8 = 6;
/// How long an end may take to become operational.
const ACTIVATION: Duration = Duration::from_secs(1);
/// `IN6_ADDR_GEN_MODE_NONE`: no link-local address, so that the IPv6 stack sends nothing.
const NO_ADDRESS: u8 = 1;

/// The two punt pairs of a worker.
#[derive(Debug)]
pub struct PuntPairs {
    /// For packets that uplinks redirect.
    pub underlay: PuntPair,
    /// For frames that vxlan netdevs and host ports redirect.
    pub bridge: PuntPair,
}

impl PuntPairs {
    /// Creates the punt pairs of the worker with this number: `vtepd-underlay` and `vtepd-bridge`.
    /// Workers after the first append their number to the names.
    ///
    /// # Errors
    /// As [`PuntPair::create`].
    pub fn create(
        worker: usize,
        private: &PrivateNamespace,
        features: Features,
        longest: usize,
    ) -> Result<Self, PuntError> {
        let create = |name| PuntPair::create(&of_worker(name, worker), private, features, longest);
        Ok(Self { underlay: create("vtepd-underlay")?, bridge: create("vtepd-bridge")? })
    }

    /// The near ends, for [`bpf::Steering`].
    #[must_use]
    pub fn near_ends(&self) -> NearEnds {
        let [underlay, bridge] =
            [&self.underlay, &self.bridge].map(|pair| (pair.link.near, pair.link.name.clone()));
        NearEnds { underlay, bridge }
    }

    /// Brings both punt pairs up.
    ///
    /// # Errors
    /// As [`PrivateLink::up`].
    pub fn up(&self, private: &PrivateNamespace) -> Result<(), PuntError> {
        self.underlay.link.up(private)?;
        self.bridge.link.up(private)
    }
}

/// A veth pair to a worker.
#[derive(Debug)]
pub struct PuntPair {
    link: PrivateLink,
    socket: Option<PacketSocket>,
}

/// A veth pair between the leaf's namespace and the private one. It is removed when dropped or when
/// the process ends. Its ends have the same name in both.
#[derive(Debug)]
pub struct PrivateLink {
    name: String,
    near: u32,
}

/// A veth pair could not be created or brought up.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {step}: {source}")]
pub struct PuntError {
    name: String,
    step: &'static str,
    source: io::Error,
}

impl PuntPair {
    /// Creates a punt pair between the calling thread's namespace and a private one, as
    /// [`PrivateLink::create`].
    ///
    /// The near end does not transmit super-frames that the worker's socket could not read; the
    /// kernel splits them. Frames of more than `longest` bytes pass as well, but cost the worker a
    /// system call each.
    ///
    /// # Errors
    /// When a privilege is missing (CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN).
    pub fn create(
        name: &str,
        private: &PrivateNamespace,
        features: Features,
        longest: usize,
    ) -> Result<Self, PuntError> {
        let (link, far) = PrivateLink::create(name, private, !features.udp_super_frames)?;
        let size = RingSize { frames: FRAMES, longest };
        let socket = private
            .enter(|| PacketSocket::open(far, size))
            .map_err(|error| link.failed("open a socket", error))?;
        Ok(Self { link, socket: Some(socket) })
    }

    /// The veth pair.
    #[must_use]
    pub const fn link(&self) -> &PrivateLink {
        &self.link
    }

    /// The far end's socket, for the worker. `None` after the first call.
    pub const fn take_socket(&mut self) -> Option<PacketSocket> {
        self.socket.take()
    }
}

impl PrivateLink {
    /// Creates the splitter, `vtepd-split`. Super-frames of UDP that are transmitted by its near end
    /// reach the far end in segments.
    ///
    /// # Errors
    /// When a privilege is missing (CAP_NET_ADMIN, CAP_SYS_ADMIN).
    pub fn splitter(private: &PrivateNamespace) -> Result<Self, PuntError> {
        Self::create("vtepd-split", private, true).map(|(link, _)| link)
    }

    /// Creates a veth pair between the calling thread's namespace and a private one. Both ends are
    /// down until [`Self::up`], so that steering can be attached before a frame passes. An existing
    /// link of that name is deleted first. The kernel is slow to remove the namespace of a killed
    /// process with its links. `splits_udp`: whether the kernel splits super-frames of UDP that the
    /// near end transmits. It always splits [`INDESCRIBABLE`] ones. Also returns the far end's
    /// interface index.
    fn create(
        name: &str,
        private: &PrivateNamespace,
        splits_udp: bool,
    ) -> Result<(Self, u32), PuntError> {
        let failed = |step| move |source| PuntError { name: name.to_owned(), step, source };
        let mut requests =
            Requests::open().map_err(io::Error::other).map_err(failed("open netlink"))?;
        if let Ok(Some(leftover)) = requests.link(name) {
            // It may have been removed meanwhile.
            let _ = requests.delete_link(leftover.ifindex);
        }
        let near_end = VethEnd { name, namespace: None, mac: None };
        let far_end = VethEnd { name, namespace: Some(private.as_fd()), mac: None };
        let veth = Veth { near: near_end, far: far_end, mtu: MTU, transmit_queue_length: 1000 };
        requests
            .create_veth(&veth)
            .map_err(io::Error::other)
            .map_err(failed("create the veth pair"))?;
        let near = quiet(&mut requests, name).map_err(failed("set up the near end"))?;
        let link = Self { name: name.to_owned(), near };
        let off: Vec<&str> = INDESCRIBABLE.into_iter().chain(splits_udp.then_some(UDP)).collect();
        ethtool::switch_off(name, &off).map_err(failed("have super-frames cut"))?;
        let quiet_far = || quiet(&mut Requests::open().map_err(io::Error::other)?, name);
        let far = private.enter(quiet_far).map_err(failed("set up the far end"))?;
        Ok((link, far))
    }

    fn failed(&self, step: &'static str, source: io::Error) -> PuntError {
        PuntError { name: self.name.clone(), step, source }
    }

    /// Brings both ends up, and waits until both can transmit.
    ///
    /// The end that comes up first has no carrier at that moment. The kernel activates its transmit
    /// queue later from a work queue, and until then drops frames silently (`noop_qdisc`).
    /// `linkwatch_do_dev()` in net/core/link_watch.c sets the operational state at the same time.
    ///
    /// # Errors
    /// When an end has vanished, or cannot transmit within a second.
    pub fn up(&self, private: &PrivateNamespace) -> Result<(), PuntError> {
        let name = self.name.as_str();
        let link = |requests: &mut Requests| {
            let link = requests.link(name).map_err(io::Error::other)?;
            link.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        };
        let up = || {
            let mut requests = Requests::open().map_err(io::Error::other)?;
            let ifindex = link(&mut requests)?.ifindex;
            let change = LinkChange { up: Some(true), ..LinkChange::default() };
            requests.set_link(ifindex, &change).map_err(io::Error::other)
        };
        let active = || {
            let mut requests = Requests::open().map_err(io::Error::other)?;
            let start = Instant::now();
            while link(&mut requests)?.operstate != OPERATIONAL {
                if start.elapsed() > ACTIVATION {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        let failed = |error| self.failed("bring it up", error);
        private.enter(up).and_then(|()| up()).map_err(failed)?;
        private.enter(active).and_then(|()| active()).map_err(failed)
    }

    /// Whether the near end is up.
    ///
    /// # Errors
    /// `NotFound` when the near end was deleted, renamed or moved to another namespace, or any
    /// error of the netlink request.
    pub fn is_up(&self) -> io::Result<bool> {
        Ok(self.link()?.flags & UP != 0)
    }

    /// Brings the near end up again, and waits until it can transmit.
    ///
    /// # Errors
    /// As [`Self::up`].
    pub fn set_up_again(&self) -> io::Result<()> {
        let mut requests = Requests::open().map_err(io::Error::other)?;
        let change = LinkChange { up: Some(true), ..LinkChange::default() };
        requests.set_link(self.near, &change).map_err(io::Error::other)?;
        let start = Instant::now();
        while self.link()?.operstate != OPERATIONAL {
            if start.elapsed() > ACTIVATION {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn link(&self) -> io::Result<Link> {
        let link = Requests::open().and_then(|mut requests| requests.link(&self.name));
        let link = link.map_err(io::Error::other)?.filter(|link| link.ifindex == self.near);
        link.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// Interface index and name of the near end.
    #[must_use]
    pub fn near(&self) -> (u32, &str) {
        (self.near, &self.name)
    }
}

impl Drop for PrivateLink {
    fn drop(&mut self) {
        // It may be removed already. The end of the namespace would remove it as well, but later.
        if let Ok(mut requests) = Requests::open() {
            let _ = requests.delete_link(self.near);
        }
    }
}

/// The name of a worker's object: `name` for the first worker, and with the number appended for
/// others.
#[must_use]
pub fn of_worker(name: &str, worker: usize) -> String {
    if worker == 0 { name.to_owned() } else { format!("{name}{worker}") }
}

/// Bytes of the longest frame, with outer headers, that the vxlan netdevs of the calling thread's
/// namespace send or receive. This follows from their MTUs. [`RingSize::LONGEST`] if there are none
/// or the kernel does not answer.
#[must_use]
pub fn longest_frame() -> usize {
    let links =
        Requests::open().and_then(|mut requests| requests.dump(Dump::Links)).unwrap_or_default();
    let mtus = links.into_iter().filter_map(|message| match message {
        Message::Link(Operation::New, Link { kind: LinkKind::Vxlan(_), mtu, .. }) => {
            Some(mtu as usize)
        }
        _ => None,
    });
    mtus.max().map_or(RingSize::LONGEST, |mtu| mtu.saturating_add(AROUND))
}

/// Keeps the IP stack from sending on the link. Returns the interface index.
fn quiet(requests: &mut Requests, name: &str) -> io::Result<u32> {
    let link = requests.link(name).map_err(io::Error::other)?;
    let ifindex = link.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?.ifindex;
    let change = LinkChange {
        arp: Some(false),
        ipv6_address_generation: Some(NO_ADDRESS),
        ..LinkChange::default()
    };
    requests.set_link(ifindex, &change).map_err(io::Error::other)?;
    // In unprivileged containers this is read-only. The missing address then has to suffice.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    Ok(ifindex)
}
