//! The IPv6 settings of uplinks that packets depend on. The kernel sends no notification when they
//! change, so they are read once a second.

/// The IPv6 settings of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Interface {
    /// `net.ipv6.conf.*.hop_limit`, 1 to 255: of packets whose sender and route set none
    /// (`ip6_dst_hoplimit()`, `net/ipv6/output_core.c`).
    pub hop_limit: u8,
    /// `net.ipv6.conf.*.mtu`, in bytes.
    pub mtu: u32,
}

impl Ipv6Interface {
    /// Reads them in the network namespace of the calling thread; `None` if that fails.
    #[must_use]
    pub fn read(name: &str) -> Option<Self> {
        let read = |value: &str| {
            std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/{value}")).ok()
        };
        let hop_limit = read("hop_limit")?.trim().parse().ok().filter(|limit| *limit > 0)?;
        Some(Self { hop_limit, mtu: read("mtu")?.trim().parse().ok()? })
    }
}
