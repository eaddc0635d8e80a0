//! RoCEv2: the InfiniBand transport headers behind UDP port 4791.

use crate::header::header;
use crate::types::QueuePair;

/// Opcodes (InfiniBand architecture 9.2.1 table 35, and annex A17.9.3 for the congestion
/// notification). The upper three bits select the transport, the others the operation.
pub mod opcode {
    /// Reliable connection: first packet of a send.
    pub const RC_SEND_FIRST: u8 = 0x00;
    /// Reliable connection: middle packet of a send.
    pub const RC_SEND_MIDDLE: u8 = 0x01;
    /// Reliable connection: last packet of a send.
    pub const RC_SEND_LAST: u8 = 0x02;
    /// Reliable connection: last packet of a send; immediate data follow.
    pub const RC_SEND_LAST_IMMEDIATE: u8 = 0x03;
    /// Reliable connection: a send of one packet.
    pub const RC_SEND_ONLY: u8 = 0x04;
    /// Reliable connection: a send of one packet; immediate data follow.
    pub const RC_SEND_ONLY_IMMEDIATE: u8 = 0x05;
    /// Reliable connection: first packet of an RDMA write; a RETH follows.
    pub const RC_WRITE_FIRST: u8 = 0x06;
    /// Reliable connection: middle packet of an RDMA write.
    pub const RC_WRITE_MIDDLE: u8 = 0x07;
    /// Reliable connection: last packet of an RDMA write.
    pub const RC_WRITE_LAST: u8 = 0x08;
    /// Reliable connection: last packet of an RDMA write; immediate data follow.
    pub const RC_WRITE_LAST_IMMEDIATE: u8 = 0x09;
    /// Reliable connection: an RDMA write of one packet; a RETH follows.
    pub const RC_WRITE_ONLY: u8 = 0x0a;
    /// Reliable connection: an RDMA write of one packet; a RETH and immediate data follow.
    pub const RC_WRITE_ONLY_IMMEDIATE: u8 = 0x0b;
    /// Reliable connection: request of an RDMA read; a RETH follows.
    pub const RC_READ_REQUEST: u8 = 0x0c;
    /// Reliable connection: first packet of a read response; an AETH follows.
    pub const RC_READ_RESPONSE_FIRST: u8 = 0x0d;
    /// Reliable connection: middle packet of a read response.
    pub const RC_READ_RESPONSE_MIDDLE: u8 = 0x0e;
    /// Reliable connection: last packet of a read response; an AETH follows.
    pub const RC_READ_RESPONSE_LAST: u8 = 0x0f;
    /// Reliable connection: a read response of one packet; an AETH follows.
    pub const RC_READ_RESPONSE_ONLY: u8 = 0x10;
    /// Reliable connection: acknowledgement; an AETH follows.
    pub const RC_ACKNOWLEDGE: u8 = 0x11;
    /// Unreliable datagram: send; a DETH follows.
    pub const UD_SEND_ONLY: u8 = 0x64;
    /// Congestion notification packet (CNP): 16 reserved bytes follow.
    pub const CONGESTION_NOTIFICATION: u8 = 0x81;
}

header! {
    /// Base transport header (InfiniBand architecture 9.2; annex A17.9.3 for F and B).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |    Opcode     |S|M|Pad|  TVer |         Partition key         |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |F|B| Reserved  |            Destination queue pair             |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |A|  Reserved   |            Packet sequence number             |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Bth[12] {
        /// Opcode; see [`opcode`].
        opcode, set_opcode: u8 = 0;
        /// S: requests a solicited event at the receiver.
        solicited, set_solicited: bool = 1 & 0x80;
        /// M: migration state.
        migrated, set_migrated: bool = 1 & 0x40;
        /// Number of bytes that pad the payload to a multiple of four, 0 to 3.
        pad_count, set_pad_count: u8 = 1 & 0x30;
        /// Version of the transport: 0.
        transport_version, set_transport_version: u8 = 1 & 0x0f;
        /// Partition key.
        partition_key, set_partition_key: u16 = 2;
        /// F: forward explicit congestion notification.
        fecn, set_fecn: bool = 4 & 0x80;
        /// B: backward explicit congestion notification, set in a CNP.
        becn, set_becn: bool = 4 & 0x40;
        /// Reserved bits behind B.
        reserved, set_reserved: u8 = 4 & 0x3f;
        /// Destination queue pair.
        destination, set_destination: QueuePair = 4 & 0x00ff_ffff;
        /// A: requests an acknowledgement.
        acknowledge, set_acknowledge: bool = 8 & 0x80;
        /// Reserved bits behind A.
        reserved_7, set_reserved_7: u8 = 8 & 0x7f;
        /// Packet sequence number, 24 bits.
        sequence, set_sequence: u32 = 8 & 0x00ff_ffff;
    }
}

impl Bth<[u8; 12]> {
    /// A header with the default partition key 0xffff and M set, as hosts send it if paths do not
    /// migrate.
    #[must_use]
    pub fn new(opcode: u8, destination: QueuePair, sequence: u32) -> Self {
        let mut header = Self::zeroed();
        header.set_opcode(opcode).set_migrated(true).set_partition_key(0xffff);
        *header.set_destination(destination).set_sequence(sequence)
    }
}

header! {
    /// Acknowledgement extended transport header (InfiniBand architecture 9.3.5).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |   Syndrome    |            Message sequence number            |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Aeth[4] {
        /// Syndrome. Bits 5 and 6 are 0 for ACK, 1 for RNR NAK and 3 for NAK. The low five bits
        /// hold details.
        syndrome, set_syndrome: u8 = 0;
        /// Message sequence number, 24 bits.
        message_sequence, set_message_sequence: u32 = 0 & 0x00ff_ffff;
    }
}

header! {
    /// Datagram extended transport header (InfiniBand architecture 9.3.3).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                           Queue key                           |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |   Reserved    |               Source queue pair               |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Deth[8] {
        /// Queue key.
        queue_key, set_queue_key: u32 = 0;
        /// Reserved byte.
        reserved, set_reserved: u8 = 4;
        /// Source queue pair.
        source, set_source: QueuePair = 4 & 0x00ff_ffff;
    }
}

header! {
    /// RDMA extended transport header (InfiniBand architecture 9.3.4).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                        Virtual address                        |
    /// +                           (8 bytes)                           +
    /// |                                                               |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                          Remote key                           |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                          DMA length                           |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Reth[16] {
        /// Virtual address at the remote end.
        virtual_address, set_virtual_address: u64 = 0;
        /// Key of the remote memory region.
        remote_key, set_remote_key: u32 = 8;
        /// Length of the operation in bytes.
        dma_length, set_dma_length: u32 = 12;
    }
}

header! {
    /// Immediate data extended transport header (InfiniBand architecture 9.3.6).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                        Immediate data                         |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    ImmDt[4] {
        /// Four bytes for the receiving application.
        immediate, set_immediate: u32 = 0;
    }
}

header! {
    /// Reserved bytes behind the base transport header of a congestion notification packet
    /// (InfiniBand architecture, annex A17.9.3).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                           Reserved                            |
    /// +                          (16 bytes)                           +
    /// |                                                               |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Cnp[16] {
        /// First eight reserved bytes.
        reserved, set_reserved: u64 = 0;
        /// Last eight reserved bytes.
        reserved_2, set_reserved_2: u64 = 8;
    }
}

/// The UDP source port that rdma-core and mlx5 choose for a connection with flow label 0, as NCCL
/// leaves it (`rdma_calc_flow_label()`, `rdma_flow_label_to_udp_sport()`). It is the same in both
/// directions.
#[must_use]
pub const fn source_port(local: QueuePair, remote: QueuePair) -> u16 {
    let mut v = local.get() as u64 * remote.get() as u64;
    v ^= v >> 20;
    v ^= v >> 40;
    let label = v & 0xf_ffff;
    0xc000 | ((label & 0x3fff) ^ (label >> 14)) as u16
}
