// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// The outer UDP checksum in the `offload` datapath. Included by steering.bpf.c.
//
// A program cannot leave a checksum to the device, as kernel VXLAN does. It computes the checksum
// over the packet. If the inner checksum is left to the device, the sum follows from the headers
// alone (local checksum offload, Documentation/networking/checksum-offloads.rst).

#define CHECKSUM_AT 6 // offset in the UDP header

// Longest packet that can be summed: CHUNKS of 512 bytes, the most that one bpf_csum_diff() adds before
// Linux 6.13.
#define CHUNK 512
#define CHUNKS 20

// A part of a packet that is not in linear memory. To copy it here costs less than to make the whole
// packet linear, which allocates memory.
struct chunk {
	__u8 bytes[CHUNK + 4]; // the verifier does not see that a whole number of words is not longer
};

struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, struct chunk);
} chunks SEC(".maps");

// Adds all bytes of the packet from an even offset on. Returns 0 if there are too many.
static ALWAYS_INLINE int sum_bytes(struct __sk_buff *skb, __u32 offset, __u64 *sum)
{
	__u32 zero = 0, rest;
	struct chunk *chunk = bpf_map_lookup_elem(&chunks, &zero);
	__s64 words = fold_sum(*sum);

	if (!chunk || skb->len > CHUNK * CHUNKS)
		return 0;
	for (int i = 0; i < CHUNKS; i++) {
		const __u8 *from = (const __u8 *)(long)skb->data + offset;

		if (offset + CHUNK > skb->len)
			break;
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
	*sum = (__u32)words;
	return 1;
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

// The field of the outer UDP checksum; 0 if it is not in linear memory.
static ALWAYS_INLINE __u16 *checksum_field(struct __sk_buff *skb, __u32 at)
{
	__u16 *field = (__u16 *)((__u8 *)(long)skb->data + at + CHECKSUM_AT);

	return (__u8 *)(field + 1) > (__u8 *)(long)skb->data_end ? 0 : field;
}

// Whether the checksum of the packet, or of the packet inside, is left to the device
// (CHECKSUM_PARTIAL). Programs cannot read that. But bpf_l4_csum_replace() changes the field of
// the UDP header at `at`, which contains `value`, only if it is not. The field has to be written
// anew then.
static ALWAYS_INLINE int is_partial(struct __sk_buff *skb, __u32 at, __u16 value)
{
	const __u16 *field;

	if (bpf_l4_csum_replace(skb, at + CHECKSUM_AT, 0, 1, sizeof(value)))
		return 0;
	field = checksum_field(skb, at);
	return field && *field == value;
}

// The outer UDP and VXLAN header, and the inner Ethernet header, which may have a tag.
struct tunnelled {
	struct udp udp;
	__u32 vxlan_flags;
	__u32 vni_reserved;
	__u8 ethernet[14 + 4];
};

// The sum of an even number of bytes. Fields that were just written in smaller units would be read
// late as larger words.
static ALWAYS_INLINE __u64 sum_words(const void *from, __u32 length)
{
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < length / 2; i++)
		sum += ((const __u16 *)from)[i];
	return sum;
}

// The sum of what lies between the outer IP header and the inner transport header, and of the inner
// transport segment once the device has completed its checksum. `at`: offset of the outer UDP
// header, `tag`: bytes of the inner tag. Returns 0 if there is no TCP or UDP right behind the inner
// IP header.
static ALWAYS_INLINE int sum_headers(struct __sk_buff *skb, const struct tunnelled *o, __u32 at, __u32 tag, __u64 *sum)
{
	__u8 *ip, *end, protocol;
	__u32 length;
	__u16 field;

	*sum += sum_words(o, 8 + 8 + 14);
	if (tag)
		*sum += sum_words(o->ethernet + 14, 4);
	at += 8 + 8 + 14 + tag;
	end = (__u8 *)(long)skb->data_end;
	if ((__u8 *)(long)skb->data + at + 40 > end && bpf_skb_pull_data(skb, at + 40 > skb->len ? skb->len : at + 40))
		return 0;
	ip = (__u8 *)(long)skb->data + at;
	end = (__u8 *)(long)skb->data_end;
	if (ip + 20 > end)
		return 0;
	if (ip[0] == 0x45) {
		length = 20;
		protocol = ip[9];
		*sum += sum_words(ip, 20);
	} else if (ip[0] >> 4 == 6 && ip + 40 <= end) {
		length = 40;
		protocol = ip[6];
		*sum += sum_words(ip, 40);
	} else {
		return 0;
	}
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return 0;
	if (bpf_skb_load_bytes(skb, at + length + (protocol == IPPROTO_TCP ? 16 : 6), &field, sizeof(field)))
		return 0;
	*sum += (__u16)~field;
	return 1;
}

// Writes the outer UDP checksum of a packet whose field is 0. It stays 0 ("no checksum") if the
// inner checksum is left to the device and is neither that of TCP nor of UDP, and for packets that
// are too long. `at`: offset of the outer UDP header, `tag`: bytes of the inner tag, `sum`: that of
// the pseudo header. Returns 0 if the packet cannot be written.
static FUNCTION int complete_checksum(struct __sk_buff *skb, const struct tunnelled *o, __u32 at, __u32 tag, __u64 sum)
{
	__u16 checksum = 0, *field;
	int summed;

	// As in is_partial().
	if (bpf_l4_csum_replace(skb, at + CHECKSUM_AT, 0, 1, sizeof(checksum)))
		return 0;
	field = checksum_field(skb, at);
	if (!field)
		return 0;
	if (!*field) {
		summed = sum_headers(skb, o, at, tag, &sum);
	} else {
		// What the field contains now does not count.
		sum += (__u16)~*field;
		summed = sum_bytes(skb, at, &sum);
	}
	if (summed) {
		checksum = ~fold_sum(sum);
		if (!checksum)
			checksum = 0xffff;
	}
	field = checksum_field(skb, at);
	if (!field)
		return 0;
	*field = checksum;
	return 1;
}
