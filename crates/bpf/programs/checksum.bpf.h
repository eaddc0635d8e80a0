// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// The outer UDP checksum in the `offload` datapath. Included by steering.bpf.c.
//
// A program cannot leave a checksum to the device, as kernel VXLAN does. It computes the checksum
// over the frame, before it adds the outer headers. If the inner checksum is left to the device, the
// sum follows from the headers alone (local checksum offload,
// Documentation/networking/checksum-offloads.rst).

// Longest packet that can be summed, in bytes: CHUNKS of 512, the most that one bpf_csum_diff() adds
// before Linux 6.13.
#define CHUNK 512
#define CHUNKS 20
#define LONGEST_SUMMED 10240

// A part of a packet that is not in linear memory. To copy it here costs less than to make the whole
// packet linear, which allocates memory.
struct chunk {
	__u8 bytes[CHUNK + 4]; // the verifier does not see that a whole number of words is not longer
};

MAP(PERCPU_ARRAY, chunks, 1, 0, __u32, struct chunk);

// The sum of all bytes of the packet from an even offset on, which is never 0. Returns 0 if there are
// too many.
FUNCTION __u64 sum_bytes(struct __sk_buff *skb, __u32 offset)
{
	__u32 zero = 0, rest;
	struct chunk *chunk = bpf_map_lookup_elem(&chunks, &zero);
	__s64 words = 0;

	if (!chunk || skb->len > LONGEST_SUMMED)
		return 0;
	for (int i = 0; i < CHUNKS; i++) {
		const __u8 *from;

		// The verifier forgets the bounds of an offset that is spilled.
		if (offset > LONGEST_SUMMED || offset + CHUNK > skb->len)
			break;
		from = (const __u8 *)(long)skb->data + offset;
		if (from + CHUNK <= (const __u8 *)(long)skb->data_end) {
			words = bpf_csum_diff(0, 0, (__be32 *)from, CHUNK, (__u32)words);
		} else {
			if (bpf_skb_load_bytes(skb, offset, chunk->bytes, CHUNK))
				return 0;
			words = bpf_csum_diff(0, 0, (__be32 *)chunk->bytes, CHUNK, (__u32)words);
		}
		offset += CHUNK;
	}
	if (offset < skb->len) {
		// From 1 to CHUNK, in a way that the verifier of Linux 6.1 follows.
		rest = skb->len - offset - 1;
		asm volatile("" : "+r"(rest));
		rest = (rest & (CHUNK - 1)) + 1;
		// The last word is filled up with zeros.
		*(__u32 *)(chunk->bytes + (rest & (CHUNK - 4))) = 0;
		if (bpf_skb_load_bytes(skb, offset, chunk->bytes, rest))
			return 0;
		words = bpf_csum_diff(0, 0, (__be32 *)chunk->bytes, (rest + 3) & ~3U, (__u32)words);
	}
	return (__u32)words;
}

// The sum of the pseudo header of an outer datagram (RFC 768, RFC 8200 section 8.1). The length is in
// network byte order.
static ALWAYS_INLINE __u64 pseudo_header(const struct ipv4 *ip, __u16 length)
{
	return (__u64)ip->addresses[0] + ip->addresses[1] + htons(IPPROTO_UDP) + length;
}

static ALWAYS_INLINE __u64 pseudo_header_ipv6(const struct headers_ipv6 *h)
{
	__u64 sum = htons(IPPROTO_UDP) + h->udp.length;

#pragma unroll
	for (int i = 0; i < 8; i++)
		sum += h->addresses[i];
	return sum;
}

// Whether a checksum in the frame is left to the device (CHECKSUM_PARTIAL); negative if that is
// not known. Programs cannot read it. But bpf_l4_csum_replace() changes the bytes that it is given, here the
// first two, only if it is not. They are then restored.
static ALWAYS_INLINE int is_partial(struct __sk_buff *skb)
{
	__u16 *front = (__u16 *)(long)skb->data, before;

	if ((__u8 *)(front + 1) > (__u8 *)(long)skb->data_end)
		return -1;
	before = *front;
	if (bpf_l4_csum_replace(skb, 0, 0, 1, sizeof(before)))
		return -1;
	front = (__u16 *)(long)skb->data;
	if ((__u8 *)(front + 1) > (__u8 *)(long)skb->data_end)
		return -1;
	if (*front == before)
		return 1;
	*front = before;
	return 0;
}

// The sum of a multiple of four bytes.
static ALWAYS_INLINE __u64 sum_words(const void *from, __u32 length)
{
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < length / 4; i++)
		sum += ((const __u32 *)from)[i];
	return sum;
}

// The sum of a frame whose inner checksum is left to the device, once that is complete. Then all from
// the transport header on has the complement of what the checksum's field contains now: the sum of
// the pseudo header. If the field contains anything else, the device completes another one, such as
// that of a tunnel inside. Returns 0 then, and if there is no TCP or UDP right behind the IP header.
static ALWAYS_INLINE __u64 sum_headers(struct __sk_buff *skb)
{
	const __u8 *frame = (const __u8 *)(long)skb->data, *end = (const __u8 *)(long)skb->data_end;
	__u32 header, length, at;
	__u16 field;
	__u8 protocol;
	__u64 sum, pseudo;

	if (frame + 14 + 40 > end && bpf_skb_pull_data(skb, skb->len < 14 + 40 ? skb->len : 14 + 40))
		return 0;
	frame = (const __u8 *)(long)skb->data;
	end = (const __u8 *)(long)skb->data_end;
	if (frame + 14 + 20 > end)
		return 0;
	sum = sum_words(frame, 12) + *(const __u16 *)(frame + 12);
	if (frame[14] == 0x45) {
		header = 20;
		length = ntohs(*(const __u16 *)(frame + 14 + 2)) - header;
		protocol = frame[14 + 9];
		pseudo = sum_words(frame + 14 + 12, 8);
		sum += pseudo + sum_words(frame + 14, 12);
	} else if (frame[14] >> 4 == 6 && frame + 14 + 40 <= end) {
		header = 40;
		length = ntohs(*(const __u16 *)(frame + 14 + 4));
		protocol = frame[14 + 6];
		pseudo = sum_words(frame + 14 + 8, 32);
		sum += pseudo + sum_words(frame + 14, 8);
	} else {
		return 0;
	}
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return 0;
	at = 14 + header + (protocol == IPPROTO_TCP ? 16 : 6);
	if (frame + at + sizeof(field) <= end)
		field = *(const __u16 *)(frame + at);
	else if (bpf_skb_load_bytes(skb, at, &field, sizeof(field)))
		return 0;
	return fold_sum(pseudo + htons(protocol) + htons((__u16)length)) == field ? sum + (__u16)~field : 0;
}

// The sum of an untagged IP frame, as it leaves the device. Returns 0 if it is not known.
static FUNCTION __u64 sum_frame(struct __sk_buff *skb)
{
	int partial = is_partial(skb);

	if (partial < 0)
		return 0;
	return partial ? sum_headers(skb) : sum_bytes(skb, 0);
}

// The outer UDP and VXLAN header, and the inner Ethernet header, which may have a tag.
struct tunnelled {
	struct udp udp;
	__u32 vxlan_flags;
	__u32 vni_reserved;
	__u8 ethernet[14 + 4];
};

// The outer UDP checksum. `tag`: bytes of the inner tag, `sum`: that of the pseudo header and the
// frame without the tag.
static ALWAYS_INLINE __u16 checksum_of(const struct tunnelled *o, __u32 tag, __u64 sum)
{
	__u16 checksum;

	// In the units in which they were just written. Other units would be read late.
	sum += o->udp.source + o->udp.destination + o->udp.length;
	sum += (__u64)o->vxlan_flags + o->vni_reserved;
	if (tag)
		sum += sum_words(o->ethernet + 12, 4);
	checksum = ~fold_sum(sum);
	return checksum ? checksum : 0xffff;
}
