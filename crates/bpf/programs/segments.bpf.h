// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// Which frames a program or a worker may forward, by their length and number of segments. Included
// by steering.bpf.c.

// Length of one segment of a GSO frame: its headers and gso_size. 0 if the headers are not
// understood. `start`: offset of the Ethernet header.
static ALWAYS_INLINE __u32 segment_length(struct __sk_buff *skb, __u32 start)
{
	__u32 offset;
	__u16 ethertype;
	__u8 byte, protocol;

	offset = behind_tags(skb, start, &ethertype);
	if (!offset)
		return 0;
	if (ethertype == htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, offset, &byte, 1) || bpf_skb_load_bytes(skb, offset + 9, &protocol, 1))
			return 0;
		offset += (byte & 0x0f) * 4;
	} else if (ethertype == htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, offset + 6, &protocol, 1))
			return 0;
		offset += 40;
	} else {
		return 0;
	}
	if (protocol == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, offset + 12, &byte, 1))
			return 0;
		offset += (byte >> 4) * 4;
	} else if (protocol == IPPROTO_UDP) {
		offset += 8;
	} else {
		return 0;
	}
	return offset - start + skb->gso_size;
}

// The most segments of a GSO frame: 64 kB with the MTU of 576 that every IPv4 host accepts. A host
// with a packet socket may ask for 65,535, and each would cost a worker as much as a frame.
#define MOST_SEGMENTS 128

// Whether a frame, or each segment of a GSO frame, is at most this long.
static ALWAYS_INLINE int fits(struct __sk_buff *skb, __u32 frame_limit)
{
	__u32 length = skb->gso_size ? segment_length(skb, 0) : skb->len;

	if (skb->vlan_present)
		length += 4;
	// 65,549 is the longest IPv4 packet behind an Ethernet header. Longer GSO frames (BIG TCP)
	// stay with the kernel.
	if (skb->gso_size && (length == 0 || skb->len > skb->gso_size * MOST_SEGMENTS))
		return 0;
	return length <= frame_limit && skb->len <= 65549;
}
