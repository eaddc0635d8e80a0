//! The datapaths that are compared.

use std::fmt;
use std::path::Path;

use fabric::Namespace;

use crate::{Daemon, Error, Testbed, is_there, ovs_dpdk};

/// The configuration of [`Datapath::Pinned`].
const PINNED: &str = "[entropy]\npolicy = \"qp-pin\"\n[probing]\nkey = \"key of the testbed\"\n";

/// A datapath of the leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Datapath {
    /// No datapath: frames are dropped when they reach the leaf. This measures the cost of the
    /// sender.
    SenderOnly,
    /// A BPF program at the host port that redirects frames to the uplink without encapsulating
    /// them. No datapath over these links can be cheaper.
    Redirect,
    /// The kernel's bridge and VXLAN.
    Kernel,
    /// The kernel's bridge and VXLAN with `bridge-nf-call-iptables` off.
    KernelWithoutNf,
    /// vtepd.
    Vtepd {
        /// Whether known unicast uses the bridge bypass (off with `--no-bridge-bypass`).
        bypass: bool,
        /// Whether frames are sent in super-frames (off with `--no-gso`).
        gso: bool,
    },
    /// vtepd with BPF programs that forward decided flows (`--datapath offload`).
    Offload,
    /// The same, with a vxlan netdev that needs no outer UDP checksum (`noudpcsum`).
    OffloadNoChecksum,
    /// As `Offload`, with receive packet steering (RPS) at the host port: the programs run on the second
    /// core, and not on the sender's.
    OffloadRps,
    /// vtepd with the policy `qp-pin`, which keeps a table of queue pairs. No vtepd answers probes at
    /// the peer, so they keep the paths of `qp-hash`, and only the cost differs from that.
    Pinned {
        /// Whether BPF programs forward; otherwise the workers.
        programs: bool,
    },
    /// Kernel VXLAN with source ports that vtepd chooses (`--datapath kernel`).
    ChosenPort {
        /// Whether the kernel looks up the route for each frame (`--route-per-frame`).
        route_per_frame: bool,
    },
    /// Open vSwitch's userspace datapath.
    OpenVswitch {
        /// Whether its ports are AF_XDP sockets, which a dedicated thread polls in a loop.
        /// Otherwise they are AF_PACKET sockets, on which its main thread sleeps.
        xdp: bool,
    },
    /// DPDK's testpmd, which polls in a loop and does not encapsulate. It measures the cost of
    /// input and output alone.
    Testpmd {
        /// Whether its ports are AF_XDP sockets; otherwise they are AF_PACKET rings.
        xdp: bool,
    },
}

impl Datapath {
    /// vtepd's workers, with the bridge bypass and super-frames.
    pub const USERSPACE: Self = Self::Vtepd { bypass: true, gso: true };
    /// vtepd's workers, for frames that pass the bridge.
    pub const NO_BYPASS: Self = Self::Vtepd { bypass: false, gso: true };
    /// vtepd's workers, without super-frames.
    pub const NO_GSO: Self = Self::Vtepd { bypass: true, gso: false };

    /// Kernel VXLAN with chosen source ports and its cached routes.
    pub const CHOSEN_PORT: Self = Self::ChosenPort { route_per_frame: false };
    /// Kernel VXLAN with chosen source ports and a route lookup for each frame.
    pub const CHOSEN_PORT_MARKED: Self = Self::ChosenPort { route_per_frame: true };

    /// Open vSwitch with AF_PACKET.
    pub const OPEN_VSWITCH: Self = Self::OpenVswitch { xdp: false };
    /// Open vSwitch with AF_XDP.
    pub const OPEN_VSWITCH_XDP: Self = Self::OpenVswitch { xdp: true };
    /// testpmd with AF_PACKET.
    pub const TESTPMD: Self = Self::Testpmd { xdp: false };
    /// testpmd with AF_XDP.
    pub const TESTPMD_XDP: Self = Self::Testpmd { xdp: true };

    /// Whether this is Open vSwitch or testpmd, which need a testbed after
    /// [`prepare`](ovs_dpdk::prepare).
    #[must_use]
    pub const fn is_reference(self) -> bool {
        matches!(self, Self::OpenVswitch { .. } | Self::Testpmd { .. })
    }

    /// Debian's package that has to be installed for this datapath, if it is missing.
    #[must_use]
    pub fn missing_package(self) -> Option<&'static str> {
        let (package, programs) = match self {
            Self::OpenVswitch { .. } => ovs_dpdk::OPEN_VSWITCH,
            Self::Testpmd { .. } => ovs_dpdk::TESTPMD,
            _ => return None,
        };
        (!programs.iter().all(|program| is_there(program))).then_some(package)
    }

    /// Makes the leaf forward with this datapath, until the returned value is dropped.
    ///
    /// # Errors
    /// If the datapath does not start.
    pub fn start(self, testbed: &Testbed, vtepd: &Path) -> Result<Option<Daemon>, Error> {
        match self {
            Self::OpenVswitch { xdp } => return ovs_dpdk::open_vswitch(testbed, xdp).map(Some),
            Self::Testpmd { xdp } => return ovs_dpdk::testpmd(testbed, xdp).map(Some),
            _ => {}
        }
        testbed.set_udp_checksum(self != Self::OffloadNoChecksum)?;
        testbed.set_bridged(!matches!(self, Self::SenderOnly | Self::Redirect))?;
        testbed.set_redirected(self == Self::Redirect)?;
        testbed.set_bridge_nf(self != Self::KernelWithoutNf)?;
        testbed.set_packet_steering(self == Self::OffloadRps)?;
        self.start_vtepd(&testbed.leaf, vtepd)
    }

    /// Makes the peer forward with this datapath, too, if it is vtepd's or the kernel's.
    ///
    /// # Errors
    /// If vtepd does not start.
    pub fn start_at_peer(self, testbed: &Testbed, vtepd: &Path) -> Result<Option<Daemon>, Error> {
        self.start_vtepd(&testbed.peer, vtepd)
    }

    /// Starts vtepd in a leaf, unless the kernel alone forwards.
    ///
    /// # Errors
    /// If vtepd does not start.
    pub fn start_vtepd(self, at: &Namespace, vtepd: &Path) -> Result<Option<Daemon>, Error> {
        if let Self::ChosenPort { route_per_frame } = self {
            let lookup = if route_per_frame { "on" } else { "off" };
            let flags = ["--no-fpm", "--datapath", "kernel", "--route-per-frame", lookup];
            let mut daemon = Daemon::start(vtepd, at, &flags)?;
            daemon.await_offloaded(0)?;
            return Ok(Some(daemon));
        }
        if matches!(self, Self::Offload | Self::OffloadNoChecksum | Self::OffloadRps) {
            let mut daemon = Daemon::start(vtepd, at, &["--no-fpm", "--datapath", "offload"])?;
            daemon.await_offloaded(1)?;
            return Ok(Some(daemon));
        }
        if let Self::Pinned { programs } = self {
            let file =
                std::env::temp_dir().join(format!("vtepd-pinned-{}.toml", std::process::id()));
            std::fs::write(&file, PINNED)?;
            let datapath = if programs { "offload" } else { "userspace" };
            let config = file.to_string_lossy();
            let flags = ["--no-fpm", "--datapath", datapath, "--config", &config];
            let started = Daemon::start(vtepd, at, &flags)
                .and_then(|mut daemon| daemon.await_offloaded(1).map(|_| daemon));
            std::fs::remove_file(&file)?;
            return started.map(Some);
        }
        let Self::Vtepd { bypass, gso } = self else { return Ok(None) };
        let bypass = if bypass { "--bridge-bypass" } else { "--no-bridge-bypass" };
        let gso = if gso { "--gso" } else { "--no-gso" };
        let mut daemon =
            Daemon::start(vtepd, at, &["--no-fpm", "--datapath", "userspace", bypass, gso])?;
        daemon.await_offloaded(1)?;
        Ok(Some(daemon))
    }
}

impl fmt::Display for Datapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SenderOnly => "nobody",
            Self::Redirect => "redirect alone, no encapsulation",
            Self::Kernel => "kernel VXLAN",
            Self::KernelWithoutNf => "kernel VXLAN, bridge-nf off",
            Self::ChosenPort { route_per_frame: false } => "kernel datapath",
            Self::ChosenPort { route_per_frame: true } => "kernel datapath, route per frame",
            Self::Offload => "offload",
            Self::OffloadNoChecksum => "offload, noudpcsum",
            Self::OffloadRps => "offload, RPS",
            Self::Pinned { programs: true } => "offload with qp-pin",
            Self::Pinned { programs: false } => "userspace with qp-pin",
            Self::Vtepd { bypass: true, gso: true } => "userspace",
            Self::Vtepd { bypass: false, gso: true } => "userspace --no-bridge-bypass",
            Self::Vtepd { bypass: true, gso: false } => "userspace --no-gso",
            Self::Vtepd { bypass: false, gso: false } => "userspace --no-bridge-bypass --no-gso",
            Self::OpenVswitch { xdp: false } => "Open vSwitch, AF_PACKET",
            Self::OpenVswitch { xdp: true } => "Open vSwitch, AF_XDP, spinning",
            Self::Testpmd { xdp: false } => "testpmd, I/O only, AF_PACKET, spinning",
            Self::Testpmd { xdp: true } => "testpmd, I/O only, AF_XDP, spinning",
        })
    }
}
