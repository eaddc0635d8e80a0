//! The UDP source ports that NICs and drivers choose for a connection.

use serde::{Deserialize, Serialize};
use wire::QueuePair;

/// How the UDP source port of a connection is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourcePort {
    /// One port for all queue pairs, as older NICs and many traffic generators do.
    Constant(u16),
    /// A port for each pair of numbers, by the formula of rdma-core and mlx5 for flow label 0
    /// (`rdma_calc_flow_label()`, `rdma_flow_label_to_udp_sport()`).
    PerQueuePair,
    /// A port for each local number, by the formula of Linux Soft-RoCE (`rxe_qp_init_req()` in
    /// `drivers/infiniband/sw/rxe/rxe_qp.c`).
    SoftRoce,
}

impl SourcePort {
    /// The UDP source port of frames from queue pair `local` to queue pair `remote`.
    #[must_use]
    pub fn of(self, local: QueuePair, remote: QueuePair) -> u16 {
        match self {
            Self::Constant(port) => port,
            Self::PerQueuePair => wire::roce::source_port(local, remote),
            // hash_32(number, 14) of include/linux/hash.h.
            Self::SoftRoce => 0xc000 | (local.get().wrapping_mul(0x61c8_8647) >> 18) as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(number: u32) -> QueuePair {
        number.try_into().unwrap()
    }

    #[test]
    fn rdma_cores_formula_is_symmetric() {
        for (local, remote, port) in [
            (0x11, 0x12, 0xc132),
            (0x100, 0x101, 0xc104),
            (0xab_cdef, 0x12_3456, 0xc3c8),
            (1, 1, 0xc001),
        ] {
            assert_eq!(SourcePort::PerQueuePair.of(pair(local), pair(remote)), port);
            assert_eq!(SourcePort::PerQueuePair.of(pair(remote), pair(local)), port);
        }
    }

    #[test]
    fn soft_roces_formula_uses_the_local_number() {
        for (local, port) in [(0x11, 0xdf94), (0x12, 0xf806), (0x100, 0xf221)] {
            assert_eq!(SourcePort::SoftRoce.of(pair(local), pair(7)), port);
        }
        assert_eq!(SourcePort::Constant(49_152).of(pair(5), pair(6)), 49_152);
    }
}
