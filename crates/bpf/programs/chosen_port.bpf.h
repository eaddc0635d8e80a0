// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// The `kernel` datapath: kernel VXLAN encapsulates, and vtepd chooses the outer UDP source port.
// Included by steering.bpf.c.
//
// Kernel VXLAN computes the port from skb->hash (udp_flow_src_port(), include/net/udp.h):
//   h ^= h << 16; port = min + (h * (max - min) >> 32)
// Both steps can be inverted, so a program at the netdev's egress that sets skb->hash chooses the
// port. The choice is the one of crates/path, bit for bit; crates/bpf/tests/kernel/chosen_port.rs
// compares the two.

#define IPPROTO_HOPOPTS 0
#define IPPROTO_DCCP 33
#define IPPROTO_ROUTING 43
#define IPPROTO_FRAGMENT 44
#define IPPROTO_AH 51
#define IPPROTO_NONE 59
#define IPPROTO_DSTOPTS 60
#define IPPROTO_SCTP 132
#define IPPROTO_UDPLITE 136
#define ETH_P_QINQ1 0x9100
#define MAX_VLAN_TAGS 4
#define MAX_EXTENSION_HEADERS 8
#define BTH_LENGTH 12

static long (*bpf_set_hash)(void *skb, __u32 hash) = (void *)BPF_FUNC_set_hash;
static long (*bpf_skb_get_tunnel_key)(void *skb, struct bpf_tunnel_key *key, __u32 size, __u64 flags) = (void *)BPF_FUNC_skb_get_tunnel_key;

// A vxlan netdev. `vni` is set for VNIs of an `external` netdev that have their own settings, else
// 0.
struct port_key {
	__u32 ifindex;
	__u32 vni;
};

// How the source port is chosen. All numbers are in host byte order.
struct port_choice {
	__u64 state;        // of the hash, with the seed
	__u32 mark;         // skb->mark for frames that have none; 0 leaves it unset
	__u16 kernel_min;   // the netdev's `srcport MIN MAX`: the kernel uses MIN to MAX - 1
	__u16 kernel_width; // MAX - MIN, at least 1
	__u16 min;          // the policy's range, which lies within the kernel's
	__u16 ports;
	__u16 bins;         // of qp-bins; 0 for qp-hash
	__u16 external;     // whether packets carry their VNI in the tunnel metadata
	__u16 pins;         // whether `qp-pin` places queue pairs (placed_port.bpf.h)
	__u16 zero[3];
};

MAP(HASH, port_choices, 8192, 0, struct port_key, struct port_choice);

// crates/path/src/hash.rs
#define K1 0xbb67ae8584caa73bULL
#define K2 0x3c6ef372fe94f82bULL
#define K3 0xa54ff53a5f1d36f1ULL

// XOR of the halves of the 128-bit product.
static ALWAYS_INLINE __u64 fold(__u64 a, __u64 b)
{
	__u64 a0 = (__u32)a, a1 = a >> 32, b0 = (__u32)b, b1 = b >> 32;
	__u64 low = a0 * b0, left = a1 * b0, right = a0 * b1;
	__u64 middle = (low >> 32) + (__u32)left + (__u32)right;

	return (a * b) ^ (a1 * b1 + (left >> 32) + (right >> 32) + (middle >> 32));
}

static ALWAYS_INLINE __u64 hash_word(__u64 state, __u64 word)
{
	return fold(state ^ word, K2) + K1;
}

static ALWAYS_INLINE __u64 hash_end(__u64 state)
{
	state ^= state >> 32;
	state *= K3;
	state ^= state >> 29;
	state *= K2;
	return state ^ (state >> 32);
}

// The upper 64 bits of hash * buckets.
static ALWAYS_INLINE __u32 choose(__u64 hash, __u32 buckets)
{
	return ((hash >> 32) * buckets + (((hash & 0xffffffff) * buckets) >> 32)) >> 32;
}

// An IPv6 header (RFC 8200 section 3).
struct ipv6 {
	__u32 version_class_label;
	__u16 payload_length;
	__u8 next;
	__u8 hop_limit;
	__u64 addresses[4];
} __attribute__((packed));

enum fragment { WHOLE_DATAGRAM, FIRST_FRAGMENT, LATER_FRAGMENT };

static ALWAYS_INLINE enum fragment fragment_of(int offset, int more)
{
	return offset ? LATER_FRAGMENT : more ? FIRST_FRAGMENT : WHOLE_DATAGRAM;
}

// The last word of a flow's key (crates/path/src/key.rs), for a queue pair or for addresses.
static ALWAYS_INLINE __u64 queue_pair_word(__u32 queue_pair)
{
	return 1ULL << 48 | queue_pair;
}

static ALWAYS_INLINE __u64 addresses_word(__u8 protocol)
{
	return 3ULL << 48 | protocol;
}

// The last word of the key of a datagram whose transport header is at `offset` and has `length`
// bytes left. Returns whether it is RoCE.
static ALWAYS_INLINE int transport_word(struct __sk_buff *skb, __u32 offset, __u32 length, __u8 protocol,
					enum fragment fragment, int five_tuple, __u64 *word)
{
	struct udp udp;
	__u32 queue_pair, claimed;

	*word = addresses_word(protocol);
	if (fragment != WHOLE_DATAGRAM)
		return 0;
	if (protocol == IPPROTO_UDP) {
		if (length < sizeof(udp) || bpf_skb_load_bytes(skb, offset, &udp, sizeof(udp)))
			return 0;
		claimed = ntohs(udp.length);
		if (claimed < sizeof(udp) || claimed > length)
			return 0;
		if (!five_tuple && udp.destination == htons(PORT_ROCE) && claimed >= sizeof(udp) + BTH_LENGTH &&
		    !bpf_skb_load_bytes(skb, offset + sizeof(udp) + 4, &queue_pair, 4)) {
			*word = queue_pair_word(ntohl(queue_pair) & 0xffffff);
			return 1;
		}
	} else if (protocol == IPPROTO_TCP || protocol == IPPROTO_SCTP || protocol == IPPROTO_DCCP ||
		   protocol == IPPROTO_UDPLITE) {
		if (length < 4 || bpf_skb_load_bytes(skb, offset, &udp, 4))
			return 0;
	} else {
		return 0;
	}
	*word = 2ULL << 48 | (__u64)protocol << 32 | (__u64)ntohs(udp.source) << 16 | ntohs(udp.destination);
	return 0;
}

// The last word of the key of an IPv6 packet, behind whose fixed header `offset` is. Returns
// whether it is RoCE.
static ALWAYS_INLINE int ipv6_word(struct __sk_buff *skb, __u32 offset, __u32 end, __u8 next, int five_tuple, __u64 *word)
{
	enum fragment fragment;
	struct {
		__u8 next;
		__u8 units;
		__u16 fragment;
	} extension;
	__u32 length;

	for (int i = 0; i <= MAX_EXTENSION_HEADERS; i++) {
		*word = addresses_word(next);
		if (next == IPPROTO_NONE)
			return 0;
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_AH && next != IPPROTO_FRAGMENT)
			return transport_word(skb, offset, end - offset, next, WHOLE_DATAGRAM, five_tuple, word);
		if (offset + 4 > end || bpf_skb_load_bytes(skb, offset, &extension, sizeof(extension)))
			return 0;
		length = (extension.units + 1) * 8;
		if (next == IPPROTO_AH)
			length = (extension.units + 2) * 4;
		if (next == IPPROTO_FRAGMENT)
			length = 8;
		if (offset + length > end)
			return 0;
		if (next == IPPROTO_FRAGMENT) {
			fragment = fragment_of(ntohs(extension.fragment) >> 3, ntohs(extension.fragment) & 1);
			*word = addresses_word(extension.next);
			if (fragment != WHOLE_DATAGRAM)
				return 0;
		}
		next = extension.next;
		offset += length;
	}
	return 0;
}

enum { NOT_IP = 0, OTHER_IP = 1, ROCE = 2 };

// The hash of the key of the usual RoCE frame: untagged, IPv4 without options or fragments. Reading
// it without calls saves a third of the time. Returns 0 for other frames, which may still be RoCE.
static ALWAYS_INLINE int plain_roce(struct __sk_buff *skb, __u64 state, __u64 *hash)
{
	const struct {
		struct ipv4 ip;
		struct udp udp;
		__u32 flags;
		__u32 queue_pair;
	} *h;
	const __u8 *frame;
	__u32 total, claimed;

	if (skb->protocol != htons(ETH_P_IP) || skb->vlan_present || skb->len < HEADERS)
		return 0;
	frame = linear(skb, 14 + sizeof(*h));
	if (!frame)
		return 0;
	h = (const void *)(frame + 14);
	total = ntohs(h->ip.total_length);
	claimed = ntohs(h->udp.length);
	if (((const __u16 *)h)[-1] != htons(ETH_P_IP) || h->ip.version_ihl != 0x45 || h->ip.protocol != IPPROTO_UDP ||
	    (h->ip.fragment & htons(FRAGMENT)) || h->udp.destination != htons(PORT_ROCE))
		return 0;
	if (total + 14 > skb->len || claimed + sizeof(h->ip) > total || claimed < sizeof(h->udp) + BTH_LENGTH)
		return 0;
	state = hash_word(state, (__u64)ntohl(h->ip.addresses[0]) << 32 | ntohl(h->ip.addresses[1]));
	*hash = hash_end(hash_word(state, queue_pair_word(ntohl(h->queue_pair) & 0xffffff)));
	return 1;
}

// The hash of a frame's key. `state` contains the seed. Returns what kind of frame it is. With `five_tuple`, RoCE counts as UDP.
FUNCTION int flow_hash(struct __sk_buff *skb, __u64 state, int five_tuple, __u64 *hash)
{
	__u32 offset = 14, header, total, tags = skb->vlan_present ? 1 : 0, length = skb->len;
	__u64 word;
	__u16 ethertype, inner;
	struct ipv4 ip4;
	struct ipv6 ip6;
	int roce;

	if (!hash)
		return 0;
	roce = !five_tuple && plain_roce(skb, state, hash);

	if (roce)
		return ROCE;
	if (bpf_skb_load_bytes(skb, 12, &ethertype, 2))
		return 0;
	for (int i = 0; i < MAX_VLAN_TAGS; i++) {
		if (tags >= MAX_VLAN_TAGS || (ethertype != htons(ETH_P_8021Q) && ethertype != htons(ETH_P_8021AD) &&
					      ethertype != htons(ETH_P_QINQ1)))
			break;
		if (bpf_skb_load_bytes(skb, offset + 2, &inner, 2))
			break;
		ethertype = inner;
		offset += 4;
		tags++;
	}
	length -= offset;
	if (ethertype == htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, offset, &ip4, sizeof(ip4)))
			return 0;
		header = (ip4.version_ihl & 0x0f) * 4;
		if (ip4.version_ihl >> 4 != 4 || header < sizeof(ip4))
			return 0;
		total = ntohs(ip4.total_length);
		// A super-frame of more than 64 kB (BIG TCP) has length 0 in its header.
		if (!total && skb->gso_size)
			total = length;
		state = hash_word(state, (__u64)ntohl(ip4.addresses[0]) << 32 | ntohl(ip4.addresses[1]));
		word = addresses_word(ip4.protocol);
		if (header <= total && total <= length)
			roce = transport_word(skb, offset + header, total - header, ip4.protocol,
					      fragment_of(ntohs(ip4.fragment) & 0x1fff, ntohs(ip4.fragment) & 0x2000), five_tuple, &word);
	} else if (ethertype == htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, offset, &ip6, sizeof(ip6)))
			return 0;
		if (ntohl(ip6.version_class_label) >> 28 != 6)
			return 0;
		for (int i = 0; i < 4; i++)
			state = hash_word(state, __builtin_bswap64(ip6.addresses[i]));
		total = ntohs(ip6.payload_length);
		if (!total && skb->gso_size)
			total = length - sizeof(ip6);
		word = addresses_word(ip6.next);
		offset += sizeof(ip6);
		if (total + sizeof(ip6) <= length)
			roce = ipv6_word(skb, offset, offset + total, ip6.next, five_tuple, &word);
	} else {
		return 0;
	}
	*hash = hash_end(hash_word(state, word));
	return roce ? ROCE : OTHER_IP;
}

// The source port that a policy chooses for a frame of this kind, which is not NOT_IP.
static ALWAYS_INLINE __u32 port_of(const struct port_choice *choice, int kind, __u64 hash)
{
	__u32 bin;

	if (kind == ROCE && choice->bins) {
		bin = choose(hash, choice->bins);
		return choice->min + bin * (choice->ports - 1) / (choice->bins > 1 ? choice->bins - 1 : 1);
	}
	return choice->min + choose(hash, choice->ports);
}

// The smallest hash that kernel VXLAN scales to this port. It is never 0, which would mean that
// there is no hash.
static ALWAYS_INLINE __u32 hash_for(__u32 port, const struct port_choice *choice)
{
	__u64 width = choice->kernel_width;
	__u32 scaled = (((__u64)(port - choice->kernel_min) << 32) + width - 1) / width;

	if (!scaled)
		scaled = 1;
	return scaled ^ scaled << 16;
}
