//! Who forwards.

use std::fmt;
use std::path::Path;

use lab::Namespace;

use crate::{Bed, Daemon, Error, is_there, reference};

/// Who forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Nobody: frames end where they reach the leaf. What the sender pays in any case.
    Nobody,
    /// The kernel's bridge and VXLAN.
    Kernel,
    /// The same with `bridge-nf-call-iptables` off.
    KernelWithoutNf,
    /// vtepd.
    Vtepd {
        /// Whether known unicast skips the bridge (not so with `--no-bridge-bypass`).
        bypass: bool,
        /// Whether frames leave together (not so with `--no-gso`).
        gso: bool,
    },
    /// Open vSwitch's userspace datapath.
    OpenVswitch {
        /// Whether its ports are AF_XDP sockets, which a thread of their own polls all the time;
        /// else AF_PACKET ones, which its main thread sleeps on.
        xdp: bool,
    },
    /// DPDK's testpmd, which polls all the time, and does not encapsulate: what only input and
    /// output cost.
    Testpmd {
        /// Whether its ports are AF_XDP sockets; else AF_PACKET rings.
        xdp: bool,
    },
}

impl Way {
    /// By the bridge, each frame by itself.
    pub const PUNT_SINGLE: Self = Self::Vtepd { bypass: false, gso: false };
    /// By the bridge, frames together.
    pub const PUNT: Self = Self::Vtepd { bypass: false, gso: true };
    /// Past the bridge, each frame by itself.
    pub const BYPASS_SINGLE: Self = Self::Vtepd { bypass: true, gso: false };
    /// Past the bridge, frames together.
    pub const BYPASS: Self = Self::Vtepd { bypass: true, gso: true };

    /// By its main thread.
    pub const OPEN_VSWITCH: Self = Self::OpenVswitch { xdp: false };
    /// By a thread that polls.
    pub const OPEN_VSWITCH_XDP: Self = Self::OpenVswitch { xdp: true };
    /// By AF_PACKET.
    pub const TESTPMD: Self = Self::Testpmd { xdp: false };
    /// By AF_XDP.
    pub const TESTPMD_XDP: Self = Self::Testpmd { xdp: true };

    /// Whether it is neither vtepd's nor the kernel's, and in a bed that is
    /// [`prepare`](reference::prepare)d.
    #[must_use]
    pub const fn is_reference(self) -> bool {
        matches!(self, Self::OpenVswitch { .. } | Self::Testpmd { .. })
    }

    /// Debian's package that has to be installed before, if one has to.
    #[must_use]
    pub fn missing_package(self) -> Option<&'static str> {
        let (package, programs) = match self {
            Self::OpenVswitch { .. } => reference::OPEN_VSWITCH,
            Self::Testpmd { .. } => reference::TESTPMD,
            Self::Nobody | Self::Kernel | Self::KernelWithoutNf | Self::Vtepd { .. } => {
                return None;
            }
        };
        (!programs.iter().all(|program| is_there(program))).then_some(package)
    }

    /// Has the leaf forward this way. What is returned has to live as long as it should.
    ///
    /// # Errors
    /// When vtepd, or who else it is, does not start.
    pub fn take(self, bed: &Bed, vtepd: &Path) -> Result<Option<Daemon>, Error> {
        match self {
            Self::OpenVswitch { xdp } => return reference::open_vswitch(bed, xdp).map(Some),
            Self::Testpmd { xdp } => return reference::testpmd(bed, xdp).map(Some),
            Self::Nobody | Self::Kernel | Self::KernelWithoutNf | Self::Vtepd { .. } => {}
        }
        bed.set_bridged(self != Self::Nobody)?;
        bed.set_bridge_nf(self != Self::KernelWithoutNf)?;
        self.start(&bed.leaf, vtepd)
    }

    /// Has the peer forward this way, too, if that is vtepd's or the kernel's.
    ///
    /// # Errors
    /// When vtepd does not start.
    pub fn take_peer(self, bed: &Bed, vtepd: &Path) -> Result<Option<Daemon>, Error> {
        self.start(&bed.peer, vtepd)
    }

    fn start(self, at: &Namespace, vtepd: &Path) -> Result<Option<Daemon>, Error> {
        let Self::Vtepd { bypass, gso } = self else { return Ok(None) };
        let bypass = if bypass { "--bridge-bypass" } else { "--no-bridge-bypass" };
        let gso = if gso { "--gso" } else { "--no-gso" };
        let mut daemon = Daemon::start(vtepd, at, &["--no-fpm", bypass, gso])?;
        daemon.until_taken(1)?;
        Ok(Some(daemon))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nobody => "nobody",
            Self::Kernel => "kernel",
            Self::KernelWithoutNf => "kernel, bridge-nf off",
            Self::Vtepd { bypass: false, gso: false } => "punt --no-gso",
            Self::Vtepd { bypass: false, gso: true } => "punt",
            Self::Vtepd { bypass: true, gso: false } => "bypass --no-gso",
            Self::Vtepd { bypass: true, gso: true } => "bypass",
            Self::OpenVswitch { xdp: false } => "Open vSwitch, AF_PACKET",
            Self::OpenVswitch { xdp: true } => "Open vSwitch, AF_XDP, spinning",
            Self::Testpmd { xdp: false } => "testpmd, I/O only, AF_PACKET, spinning",
            Self::Testpmd { xdp: true } => "testpmd, I/O only, AF_XDP, spinning",
        })
    }
}
