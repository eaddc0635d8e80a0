//! Why a frame went no further: one exhaustive list, the metric's label, the log's word and the
//! tests' assertion.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident => $label:literal,)+) => {
        /// Why a frame, or one copy of it, went no further.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl DropReason {
            /// Every reason there is.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word for it in metrics and on the command line.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }

            /// The sentence for it.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+),)+ }
            }
        }
    };
}

drop_reasons! {
    /// The frame is shorter than its headers say.
    Truncated => "truncated",
    /// The frame came from the bridge without the tag of a VNI, or with a tag that is no longer in
    /// use.
    UnknownSlot => "unknown_slot",
    /// The packet is not a complete VXLAN packet over IPv4 or IPv6 that this leaf accepts.
    NotVxlan => "not_vxlan",
    /// The outer IPv4 header's checksum is wrong.
    OuterHeaderChecksum => "outer_header_checksum",
    /// The outer UDP checksum is present and wrong.
    OuterUdpChecksum => "outer_udp_checksum",
    /// The VNI, address and port are not, or no longer, taken over.
    UnknownVni => "unknown_vni",
    /// The sending VTEP is in no table, and `strict-vtep` is set.
    UnknownVtep => "unknown_vtep",
    /// The outer source is 0.0.0.0, loopback, multicast, broadcast, class E, or an address of this
    /// leaf without `net.ipv4.conf.all.accept_local`. Once there were other routing rules than the
    /// default ones, also the broadcast address of a subnet of this leaf.
    MartianSource => "martian_source",
    /// The inner frame is shorter than 20 bytes (an Ethernet header, a tag and its EtherType), or
    /// ends inside its IP header.
    InnerTruncated => "inner_truncated",
    /// The inner source address is not unicast, or is the vxlan netdev's own (a loop).
    InvalidSource => "invalid_source",
    /// The inner source address has a static FDB entry with another VTEP.
    StaticSource => "static_source",
    /// The outer packet has ECN mark CE, and the inner packet is not ECN-capable (RFC 6040 section
    /// 4.2). Of VNIs with a netdev, the kernel refuses most such packets and counts them there.
    EcnNotCapable => "ecn_not_capable",
    /// No VTEP is known for the destination and the flood list is empty.
    NoRemote => "no_remote",
    /// The destination is behind the port or the tunnel that the frame came from.
    SamePort => "same_port",
    /// The destination is link-local (01:80:c2:00:00:00 to 0f), which bridges do not forward.
    ReservedGroup => "reserved_group",
    /// There is no live route to the VTEP.
    NoRoute => "no_route",
    /// The next hop's MAC address did not become known in time.
    NextHopUnresolved => "next_hop_unresolved",
    /// Too many frames wait for the same next hop.
    HoldQueueFull => "hold_queue_full",
    /// The frame is larger than the MTU of the uplink or of the host port, or its headers are too
    /// long.
    TooBig => "too_big",
    /// The headers of a super-frame contradict its segmentation.
    BadOffload => "bad_offload",
    /// The interface is down or gone.
    LinkDown => "link_down",
    /// The interface's queue or the socket's buffer stayed full.
    TransmitBusy => "transmit_busy",
    /// The kernel refused the frame for another reason.
    TransmitError => "transmit_error",
    /// The receive ring of the worker was full, or the queue for frames longer than a slot.
    ReceiveOverrun => "receive_overrun",
    /// The kernel could not describe the offloads of the frame, or it is too long.
    ReceiveUnreadable => "receive_unreadable",
    /// The frame waited for a worker that hung, and the kernel forwarded later frames meanwhile.
    WaitedTooLong => "waited_too_long",
    /// A frame with the same packet sequence number waits already for the ones before it.
    WaitsAlready => "waits_already",
    /// A BPF program could not change the headers of the frame.
    ProgramFailed => "program_failed",
    /// vtepd stopped before the frame's next hop was resolved.
    Shutdown => "shutdown",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unique_and_sentences_are_sentences() {
        let labels: std::collections::BTreeSet<_> =
            DropReason::ALL.iter().map(|r| r.label()).collect();
        assert_eq!(labels.len(), DropReason::ALL.len());
        for reason in DropReason::ALL {
            let sentence = reason.sentence().trim();
            assert!(sentence.ends_with('.') && sentence.len() > 20, "{reason:?}: {sentence}");
        }
    }
}
