//! Counters of an endpoint, named as mlx5 and rdma-core name them.

use core::ops::{AddAssign, Sub};

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of an endpoint. The names are those of `rdma statistic` for mlx5, where it has
        /// such a counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }

        impl Sub for Counters {
            type Output = Self;

            /// What was counted since `before`.
            fn sub(self, before: Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name),)* }
            }
        }
    };
}

counters! {
    /// Frames sent, of all kinds.
    tx_packets,
    /// Bytes of those frames, with all headers, without the Ethernet FCS.
    tx_bytes,
    /// RoCE frames received for a known queue pair.
    rx_packets,
    /// Bytes of those frames.
    rx_bytes,
    /// Request packets and read requests that were sent again.
    retransmitted_packets,
    /// Responder: requests that arrived after a gap in the sequence numbers.
    out_of_sequence,
    /// Responder: those of them that are kept until their turn.
    kept_out_of_order,
    /// Responder: requests that had been executed or kept before.
    duplicate_request,
    /// Responder: messages that found no receive buffer.
    out_of_buffer,
    /// Requester: NAKs for a sequence error.
    packet_seq_err,
    /// Requester: an acknowledgement or response showed that a read response is missing.
    implied_nak_seq_err,
    /// Requester: selective acknowledgements.
    selective_acks_received,
    /// Requester: the retransmission timer expired.
    local_ack_timeout_err,
    /// Requester: receiver-not-ready NAKs.
    rnr_nak_received,
    /// Requester: connections that failed because the retries were used up.
    req_transport_retries_exceeded,
    /// Requests that were refused for an invalid address, length or opcode.
    req_remote_access_errors,
    /// Frames with a wrong ICRC.
    rx_icrc_errors,
    /// Notification point: frames with the ECN mark "congestion experienced".
    np_ecn_marked_roce_packets,
    /// Notification point: congestion notification packets sent.
    np_cnp_sent,
    /// Reaction point: congestion notification packets that lowered a rate.
    rp_cnp_handled,
    /// Reaction point: congestion notification packets for a queue pair without rate control.
    rp_cnp_ignored,
}
