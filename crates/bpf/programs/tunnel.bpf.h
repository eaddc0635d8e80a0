// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// Uplink egress: TCP super-frames from a worker get their tunnel offload description. Included by
// steering.bpf.c.

// The mark of encapsulated TCP super-frames from the worker (crates/ports/src/tx.rs).
#define WHOLE 0x76746570

// Uplink egress: completes TCP super-frames from a worker. AF_PACKET cannot describe a super-frame
// inside a tunnel, so the worker describes one without a tunnel. This program removes the outer
// headers and adds them again with a helper that describes the tunnel to the kernel. The kernel
// then forwards the super-frame whole, and splits it correctly where it has to
// (__skb_udp_tunnel_segment(), net/ipv4/udp_offload.c).
//
// It does not depend on the kill switch: no other frame carries the mark, and a marked frame must
// not leave unchanged.
SEC("classifier") int vtepd_tunnel(struct __sk_buff *skb)
{
	struct {
		struct headers outer;
		__u8 destination[6];
		__u8 source[6];
		__u16 ethertype;
	} __attribute__((packed)) h;
	const __s32 behind = sizeof(h) - 14;

	if (skb->mark != WHOLE)
		return PASS;
	skb->mark = 0;
	if (bpf_skb_load_bytes(skb, 0, &h, sizeof(h)) ||
	    bpf_skb_adjust_room(skb, -behind, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) ||
	    bpf_skb_adjust_room(skb, behind, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
					BPF_F_ADJ_ROOM_ENCAP_L2(14) | BPF_F_ADJ_ROOM_ENCAP_L2_ETH)) {
		count(COUNT_UPLINK_UNTUNNELLED);
		return DROP;
	}
	// The worker wrote the inner EtherType here, so that the kernel accepts the super-frame.
	h.outer.ethertype = htons(ETH_P_IP);
	if (bpf_skb_store_bytes(skb, 0, &h, sizeof(h), 0)) {
		count(COUNT_UPLINK_UNTUNNELLED);
		return DROP;
	}
	count(COUNT_UPLINK_TUNNELLED);
	return PASS;
}
