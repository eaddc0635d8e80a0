// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// The outer UDP checksum in the `offload` datapath. Included by steering.bpf.c.
//
// A program cannot leave a checksum to the device, as kernel VXLAN does. It computes the checksum
// over the packet. If the inner checksum is left to the device, the sum follows from the headers
// alone (local checksum offload, Documentation/networking/checksum-offloads.rst).

// The outer headers, and the inner Ethernet header.
struct encapsulated {
	__u8 destination[6];
	__u8 source[6];
	__u16 ethertype;
	struct ipv4 ip;
	struct udp udp;
	__u32 vxlan_flags;
	__u32 vni;
	__u8 inner[14];
} __attribute__((packed));

#define UDP_CHECKSUM_AT 40 // offset in struct encapsulated

// Longest packet that can be summed: CHUNKS of 512 bytes.
#define CHUNK 512
#define CHUNKS 20

// The sum of the bytes behind the last whole chunk, less than CHUNK, folded to 16 bits. `offset` is
// even.
FUNCTION __u32 sum_rest(struct __sk_buff *skb, __u32 offset)
{
	__u8 *cursor, *end = (__u8 *)(long)skb->data_end;
	__u64 words = 0;

	if (offset > CHUNK * CHUNKS)
		return 0;
	cursor = (__u8 *)(long)skb->data + offset;
	for (int i = 0; i < CHUNK / 32; i++) {
		if (cursor + 32 > end)
			break;
#pragma unroll
		for (int j = 0; j < 8; j++)
			words += ((__u32 *)cursor)[j];
		cursor += 32;
	}
	for (int i = 0; i < 16; i++) {
		if (cursor + 2 > end)
			break;
		words += *(__u16 *)cursor;
		cursor += 2;
	}
	if (cursor + 1 <= end)
		words += *cursor;
	return fold_sum(words);
}

// Adds all bytes of the packet from an even offset on. Returns 0 if there are too many.
static ALWAYS_INLINE int sum_bytes(struct __sk_buff *skb, __u32 offset, __u64 *sum)
{
	__u8 *cursor, *end;
	__s64 chunk = fold_sum(*sum);
	int i;

	if (skb->len > CHUNK * CHUNKS)
		return 0;
	if ((__u8 *)(long)skb->data + skb->len > (__u8 *)(long)skb->data_end && bpf_skb_pull_data(skb, skb->len))
		return 0;
	cursor = (__u8 *)(long)skb->data + offset;
	end = (__u8 *)(long)skb->data_end;
	for (i = 0; i < CHUNKS; i++) {
		if (cursor + CHUNK > end)
			break;
		chunk = bpf_csum_diff(0, 0, (__be32 *)cursor, CHUNK, (__u32)chunk);
		cursor += CHUNK;
	}
	*sum = (__u64)(__u32)chunk + sum_rest(skb, offset + i * CHUNK);
	return 1;
}

// The sum of the pseudo header (RFC 768) of an outer datagram; `length` is in network byte order.
static ALWAYS_INLINE __u64 pseudo_header(const struct ipv4 *ip, __u16 length)
{
	return (__u64)ip->addresses[0] + ip->addresses[1] + htons(IPPROTO_UDP) + length;
}

// Whether the checksum of the packet, or of the packet inside, is left to the device
// (CHECKSUM_PARTIAL). Programs cannot read that. But bpf_l4_csum_replace() changes the field at
// `offset`, which contains `field`, only if it is not. The field has to be written anew then.
static ALWAYS_INLINE int is_partial(struct __sk_buff *skb, __u32 offset, __u16 field)
{
	__u16 now;

	return !bpf_l4_csum_replace(skb, offset, 0, 1, sizeof(field)) && !bpf_skb_load_bytes(skb, offset, &now, sizeof(now)) &&
	       now == field;
}

// The sum of what lies between the outer IPv4 header and the inner transport header, and of the
// inner transport segment once the device has completed its checksum. Returns 0 if there is no TCP
// or UDP right behind the inner IP header.
static ALWAYS_INLINE int sum_headers(struct __sk_buff *skb, const struct encapsulated *o, __u64 *sum)
{
	const __u32 begin = __builtin_offsetof(struct encapsulated, udp), length_but_two = sizeof(*o) - begin - 2;
	__u32 at = sizeof(*o), length, protocol;
	__u16 ip[20] = {}, field;

	*sum += bpf_csum_diff(0, 0, (__be32 *)((char *)o + begin), length_but_two, 0);
	*sum += *(const __u16 *)((const char *)o + begin + length_but_two);
	if (bpf_skb_load_bytes(skb, at, ip, 20))
		return 0;
	if ((ip[0] & 0xff) == 0x45) {
		length = 20;
		protocol = ip[4] >> 8;
	} else if ((ip[0] & 0xf0) == 0x60) {
		if (bpf_skb_load_bytes(skb, at, ip, 40))
			return 0;
		length = 40;
		protocol = ip[3] & 0xff;
	} else {
		return 0;
	}
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return 0;
	*sum += bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(ip), 0);
	if (bpf_skb_load_bytes(skb, at + length + (protocol == IPPROTO_TCP ? 16 : 6), &field, sizeof(field)))
		return 0;
	*sum += (__u16)~field;
	return 1;
}

// Writes the outer UDP checksum of a packet whose field is 0. It stays 0 ("no checksum") if the
// inner checksum is left to the device and is neither that of TCP nor of UDP, and for packets that
// are too long. Returns 0 if the packet cannot be written.
static FUNCTION int complete_checksum(struct __sk_buff *skb, const struct encapsulated *o)
{
	__u64 sum = pseudo_header(&o->ip, o->udp.length);
	__u16 checksum = 0, *field;

	// As in is_partial(), without calls.
	if (bpf_l4_csum_replace(skb, UDP_CHECKSUM_AT, 0, 1, sizeof(checksum)))
		return 0;
	field = (__u16 *)((__u8 *)(long)skb->data + UDP_CHECKSUM_AT);
	if ((__u8 *)(field + 1) > (__u8 *)(long)skb->data_end)
		return 0;
	if (!*field) {
		if (!sum_headers(skb, o, &sum))
			return 1;
	} else {
		// What the field contains now does not count.
		sum += (__u16)~*field;
		if (!sum_bytes(skb, UDP_CHECKSUM_AT - 6, &sum))
			return !bpf_skb_store_bytes(skb, UDP_CHECKSUM_AT, &checksum, sizeof(checksum), 0);
	}
	checksum = ~fold_sum(sum);
	if (!checksum)
		checksum = 0xffff;
	return !bpf_skb_store_bytes(skb, UDP_CHECKSUM_AT, &checksum, sizeof(checksum), 0);
}
