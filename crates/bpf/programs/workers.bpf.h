// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// Chooses the worker of a frame. Each worker has its own punt pairs. Each flow goes to one worker,
// so that its frames keep their order. Included by steering.bpf.c.

#define WORKERS 8 // maximum
#define PORT_ROCE 4791

// Number of workers, and the near ends of their punt pairs. Set before loading.
const volatile __u32 workers = 1;
const volatile __u32 underlay_punts[WORKERS] = {};
const volatile __u32 bridge_punts[WORKERS] = {};

// An IPv4 header without options (RFC 791 section 3.1).
struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__u16 total_length;
	__u16 id;
	__u16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 header_checksum;
	__u32 addresses[2]; // source, destination
};

struct udp {
	__u16 source;
	__u16 destination;
	__u16 length;
	__u16 checksum;
};

#define FRAGMENT 0x3fff // offset, or more fragments

// The frame, if so many bytes of it can be read directly. Drivers may leave headers in a fragment of
// the buffer; then those of RoCE over IPv4 are copied, too. Returns 0 if the frame is shorter.
#define HEADERS 54 // bytes: Ethernet, IPv4, UDP and base transport header without its last word

static ALWAYS_INLINE const __u8 *linear(struct __sk_buff *skb, __u32 length)
{
	const __u8 *frame = (const __u8 *)(long)skb->data;

	if (frame + length > (const __u8 *)(long)skb->data_end) {
		if (bpf_skb_pull_data(skb, skb->len < HEADERS ? skb->len : HEADERS))
			return 0;
		frame = (const __u8 *)(long)skb->data;
		if (frame + length > (const __u8 *)(long)skb->data_end)
			return 0;
	}
	return frame;
}

// Copies an even number of bytes of the frame from `offset` on. If they are not in linear memory,
// all headers are made so, which removing the outer ones would do later. Returns 0 if the frame is
// shorter.
#define ALL_HEADERS 150 // bytes: outer ones over IPv6, inner tagged Ethernet, IPv6, UDP and BTH with a word

static ALWAYS_INLINE int read_front(struct __sk_buff *skb, void *to, __u32 offset, __u32 length)
{
	const __u16 *from;

	// The compiler must not keep an earlier skb->data: extended from 32 bits, it is no pointer for
	// the verifier any more.
	asm volatile("" : : : "memory");
	from = (const __u16 *)((const __u8 *)(long)skb->data + offset);
	if ((const __u8 *)from + length > (const __u8 *)(long)skb->data_end) {
		if (bpf_skb_pull_data(skb, skb->len < ALL_HEADERS ? skb->len : ALL_HEADERS))
			return 0;
		from = (const __u16 *)((const __u8 *)(long)skb->data + offset);
		if ((const __u8 *)from + length > (const __u8 *)(long)skb->data_end)
			return 0;
	}
#pragma unroll
	for (int i = 0; i < length / 2; i++)
		((__u16 *)to)[i] = from[i];
	return 1;
}

// Copies an even number of bytes to the front of the frame, without a call.
static ALWAYS_INLINE int write_front(struct __sk_buff *skb, const void *from, __u32 length)
{
	__u16 *to = (__u16 *)(long)skb->data;

	if ((__u8 *)to + length > (__u8 *)(long)skb->data_end)
		return 0;
#pragma unroll
	for (int i = 0; i < length / 2; i++)
		to[i] = ((const __u16 *)from)[i];
	return 1;
}

// Mixes a word into a hash. The factor is 2^32 divided by the golden ratio.
static ALWAYS_INLINE __u32 mix(__u32 hash, __u32 word)
{
	hash = (hash ^ word) * 0x9e3779b1;
	return hash ^ (hash >> 15);
}

static ALWAYS_INLINE __u32 deal(__u32 hash)
{
	return ((__u64)mix(hash, 0) * workers >> 32) & (WORKERS - 1);
}

// The near end of a worker's punt pair. The barrier keeps the compiler from removing the mask.
// Before Linux 5.16 the verifier forgets the bounds of a number that is spilled to the stack.
static ALWAYS_INLINE __u32 near_end(const volatile __u32 *punts, __u32 worker)
{
	asm volatile("" : "+r"(worker));
	return punts[worker & (WORKERS - 1)];
}

// Offset of what follows an Ethernet header at `start` and up to two tags. 0 if the frame is too
// short.
static ALWAYS_INLINE __u32 behind_tags(struct __sk_buff *skb, __u32 start, __u16 *ethertype)
{
	__u32 offset = start + 14;

	if (bpf_skb_load_bytes(skb, start + 12, ethertype, 2))
		return 0;
#pragma unroll
	for (int tags = 0; tags < 2; tags++) {
		if (*ethertype != htons(ETH_P_8021Q) && *ethertype != htons(ETH_P_8021AD))
			break;
		if (bpf_skb_load_bytes(skb, offset + 2, ethertype, 2))
			return 0;
		offset += 4;
	}
	return offset;
}

// A hash of the flow of a host's frame that begins at `start`. It uses the IP addresses and, like
// crates/path/src/key.rs, the queue pair of RoCE or the ports of TCP and UDP. Without `queue_pairs`,
// RoCE counts as UDP. Fragments, and IPv6 packets with extension headers, use IP addresses alone,
// and other frames their MAC addresses. The outer source port is not used: the sender may change it
// for a flow whose frames still wait here.
FUNCTION __u32 flow_of(struct __sk_buff *skb, __u32 start, int queue_pairs)
{
	union {
		struct ipv4 ip4;
		struct {
			__u32 flow;
			__u16 length;
			__u8 next;
			__u8 hop_limit;
			__u32 addresses[8];
		} ip6;
		__u32 macs[3];
	} h;
	__u32 offset, hash = 0, queue_pair;
	__u16 ethertype, ports[2];
	__u8 protocol;

	offset = behind_tags(skb, start, &ethertype);
	if (offset && ethertype == htons(ETH_P_IP) && !bpf_skb_load_bytes(skb, offset, &h.ip4, sizeof(h.ip4))) {
		hash = mix(mix(hash, h.ip4.addresses[0]), h.ip4.addresses[1]);
		if (h.ip4.fragment & htons(FRAGMENT))
			return hash;
		protocol = h.ip4.protocol;
		offset += (h.ip4.version_ihl & 0x0f) * 4;
	} else if (offset && ethertype == htons(ETH_P_IPV6) && !bpf_skb_load_bytes(skb, offset, &h.ip6, sizeof(h.ip6))) {
#pragma unroll
		for (int i = 0; i < 8; i++)
			hash = mix(hash, h.ip6.addresses[i]);
		protocol = h.ip6.next;
		offset += sizeof(h.ip6);
	} else {
		if (bpf_skb_load_bytes(skb, start, h.macs, sizeof(h.macs)))
			return 0;
		return mix(mix(mix(hash, h.macs[0]), h.macs[1]), h.macs[2]);
	}
	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || bpf_skb_load_bytes(skb, offset, ports, sizeof(ports)))
		return hash;
	// The destination queue pair is in bytes 5 to 7 of the base transport header (InfiniBand
	// Architecture, volume 1, section 9.2).
	if (queue_pairs && protocol == IPPROTO_UDP && ports[1] == htons(PORT_ROCE) &&
	    !bpf_skb_load_bytes(skb, offset + 8 + 4, &queue_pair, 4))
		return mix(hash, ntohl(queue_pair) & 0xffffff);
	return mix(hash, (__u32)ports[0] << 16 | ports[1]);
}

// The worker of a host's frame that begins at `start`.
static ALWAYS_INLINE __u32 worker_of(struct __sk_buff *skb, __u32 start)
{
	return workers <= 1 ? 0 : deal(flow_of(skb, start, 1));
}
