//! Punt pairs: veth pairs whose near end lies in the leaf's namespace, where steering redirects to
//! it, and whose far end lies in a private one, where the worker's AF_PACKET socket is the only
//! thing that sees it.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netlink::{Dump, Link, LinkChange, LinkKind, Message, Operation, Requests, Veth, VethEnd};

use crate::ethtool;
use crate::features::Features;
use crate::netns::PrivateNamespace;
use crate::packet::PacketSocket;
use crate::ring::RingSize;

/// MTU of both ends in bytes: whatever the kernel hands over fits.
const MTU: u32 = 65_535;
/// Frames that the ring has room for in which they wait for the worker. A kernel that is not
/// preemptible does nothing else while it makes a ring: on a small virtual machine 32 MB took up to
/// 126 ms, in which another vtepd's worker was not run.
const FRAMES: usize = 3584;
/// What a frame that a vxlan netdev sends or receives has beside what its MTU is about: an Ethernet
/// header and a tag, and the outer headers.
const AROUND: usize = 14 + 4 + 50;
/// Super-frames that a virtio-net header cannot describe on any kernel: they would be lost on the
/// far end's socket.
const INDESCRIBABLE: [&str; 2] = ["tx-sctp-segmentation", "tx-gso-list"];
/// And what it cannot describe on some.
const UDP: &str = "tx-udp-segmentation";
/// `IFF_UP`.
const UP: u32 = 1;
/// `IF_OPER_UP` (RFC 2863, `include/uapi/linux/if.h`).
const OPERATIONAL: u8 = 6;
/// How long an end may take to become operational.
const ACTIVATION: Duration = Duration::from_secs(1);
/// `IN6_ADDR_GEN_MODE_NONE`: no link-local address, so nothing is said on the link.
const NO_ADDRESS: u8 = 1;

/// The two punt pairs of a worker.
#[derive(Debug)]
pub struct PuntPairs {
    /// That uplinks redirect to.
    pub underlay: PuntPair,
    /// That vxlan netdevs and hosts' ports redirect to.
    pub bridge: PuntPair,
}

impl PuntPairs {
    /// Makes those of the worker with this number: `vtepd-underlay` and `vtepd-bridge`, with the
    /// number behind it but for the first.
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

    /// Brings both up.
    ///
    /// # Errors
    /// As [`PuntPair::up`].
    pub fn up(&self, private: &PrivateNamespace) -> Result<(), PuntError> {
        self.underlay.up(private)?;
        self.bridge.up(private)
    }
}

/// A punt pair, removed when dropped or when the process ends.
#[derive(Debug)]
pub struct PuntPair {
    name: String,
    near: u32,
    socket: Option<PacketSocket>,
}

/// A punt pair could not be made.
#[derive(Debug, thiserror::Error)]
#[error("punt {name}: {step}: {source}")]
pub struct PuntError {
    name: String,
    step: &'static str,
    source: io::Error,
}

impl PuntPair {
    /// Makes a punt pair between the calling thread's namespace and a private one; its ends have
    /// the same name in both. Both are down until [`Self::up`], so that steering can be attached
    /// before a frame passes. A link of that name is taken away first: the kernel takes its time
    /// with the namespaces of processes that were killed, and with the links into them.
    ///
    /// What the worker's socket could not read as a super-frame, the near end does not transmit as
    /// one. Frames of more than `longest` bytes pass as well, but cost the worker more.
    ///
    /// # Errors
    /// When a privilege is missing (CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN).
    pub fn create(
        name: &str,
        private: &PrivateNamespace,
        features: Features,
        longest: usize,
    ) -> Result<Self, PuntError> {
        let failed = |step| move |source| PuntError { name: name.to_owned(), step, source };
        let mut requests =
            Requests::open().map_err(io::Error::other).map_err(failed("open netlink"))?;
        if let Ok(Some(leftover)) = requests.link(name) {
            // It may have gone by itself meanwhile.
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
        let udp = (!features.udp_super_frames).then_some(UDP);
        let off: Vec<&str> = INDESCRIBABLE.into_iter().chain(udp).collect();
        ethtool::switch_off(name, &off).map_err(failed("have super-frames cut"))?;
        let mut punt = Self { name: name.to_owned(), near, socket: None };
        let socket = private
            .enter(|| {
                let mut requests = Requests::open().map_err(io::Error::other)?;
                // Bundles are cut here.
                ethtool::switch_off(name, &[UDP])?;
                PacketSocket::open(
                    quiet(&mut requests, name)?,
                    RingSize { frames: FRAMES, longest },
                )
            })
            .map_err(failed("set up the far end"))?;
        punt.socket = Some(socket);
        Ok(punt)
    }

    /// Brings both ends up, and waits until both can transmit. The end that comes first has no
    /// carrier at that moment, so the kernel activates its transmit queue later, from a work queue,
    /// and until then drops in silence what it is given (`noop_qdisc`; `linkwatch_do_dev()` in
    /// net/core/link_watch.c sets the operational state together with that).
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
        let failed = |source| PuntError { name: name.to_owned(), step: "bring it up", source };
        private.enter(up).and_then(|()| up()).map_err(failed)?;
        private.enter(active).and_then(|()| active()).map_err(failed)
    }

    /// Whether the near end is up; an error where it is gone.
    ///
    /// # Errors
    /// `NotFound` where somebody deleted, renamed or moved it, or when the kernel does not tell.
    pub fn is_up(&self) -> io::Result<bool> {
        Ok(self.link()?.flags & UP != 0)
    }

    /// Sets the near end up again, and waits until it can transmit.
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

    /// The far end's socket, for the worker.
    pub const fn take_socket(&mut self) -> Option<PacketSocket> {
        self.socket.take()
    }
}

impl Drop for PuntPair {
    fn drop(&mut self) {
        // It may be gone already; the namespace's end would remove it as well, only later.
        if let Ok(mut requests) = Requests::open() {
            let _ = requests.delete_link(self.near);
        }
    }
}

/// What the worker with this number has under a name: with the number behind, but for the first.
#[must_use]
pub fn of_worker(name: &str, worker: usize) -> String {
    if worker == 0 { name.to_owned() } else { format!("{name}{worker}") }
}

/// Bytes of the longest frame that the vxlan netdevs of the calling thread's namespace send or
/// receive, outer headers and all, by their MTUs; of any where there are none, or where the kernel
/// does not tell.
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

/// Sees to it that the stack says nothing on the link; returns the interface index.
fn quiet(requests: &mut Requests, name: &str) -> io::Result<u32> {
    let link = requests.link(name).map_err(io::Error::other)?;
    let ifindex = link.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?.ifindex;
    let change = LinkChange {
        arp: Some(false),
        ipv6_address_generation: Some(NO_ADDRESS),
        ..LinkChange::default()
    };
    requests.set_link(ifindex, &change).map_err(io::Error::other)?;
    // Read-only in unprivileged containers, and then the lack of an address has to do.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    Ok(ifindex)
}
