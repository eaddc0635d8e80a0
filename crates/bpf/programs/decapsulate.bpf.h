// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// The `offload` datapath: decapsulation. Included by steering.bpf.c.
//
// What the worker would drop or count goes to the worker.

// Whether the outer UDP checksum is right, or the kernel trusts it. `at`: offset of the UDP header,
// `sum`: that of the pseudo header.
static FUNCTION int is_checked(struct __sk_buff *skb, __u16 checksum, __u32 at, __u64 sum)
{
	__u64 bytes;

	if (!checksum || bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0 || is_partial(skb) > 0)
		return 1;
	bytes = sum_bytes(skb, at);
	return bytes && fold_sum(sum + bytes) == 0xffff;
}

// The inner headers.
struct inside {
	__u16 zero; // for the alignment, as in struct headers
	__u8 destination[6];
	__u8 source[6];
	__u16 ethertype;
	__u8 ip[20] __attribute__((aligned(4)));
};

// Whether a station can have the inner source address (vxlan_set_mac()).
static ALWAYS_INLINE int is_station(const struct inside *inner, const struct offload_vni *vni)
{
	__u32 high, own_high;
	__u16 low, own_low;

	__builtin_memcpy(&high, inner->source, 4);
	__builtin_memcpy(&low, inner->source + 4, 2);
	__builtin_memcpy(&own_high, vni->mac, 4);
	__builtin_memcpy(&own_low, vni->mac + 4, 2);
	return !(high & 1) && (high | low) && (high != own_high || low != own_low);
}

// Length in bytes of the inner IP packet by its header; 0 if it is not IP.
static ALWAYS_INLINE __u32 inner_packet(const struct inside *inner)
{
	if (inner->ethertype == htons(ETH_P_IP) && inner->ip[0] >> 4 == 4)
		return inner->ip[2] << 8 | inner->ip[3];
	if (inner->ethertype == htons(ETH_P_IPV6) && inner->ip[0] >> 4 == 6)
		return (inner->ip[4] << 8 | inner->ip[5]) + 40;
	return 0;
}

static ALWAYS_INLINE int is_udp(const struct inside *inner)
{
	return (inner->ethertype == htons(ETH_P_IP) ? inner->ip[9] : inner->ip[6]) == IPPROTO_UDP;
}

// The code point that the outer header gives to the inner one (RFC 6040 figure 4).
#define CODE_POINT_KEPT 4
#define CODE_POINT_OF_WORKER 5 // the worker drops the packet, or counts it

static ALWAYS_INLINE __u8 code_point(const struct inside *inner, __u8 outer)
{
	__u8 code;

	if (inner->ethertype == htons(ETH_P_IP))
		code = inner->ip[1] & 3;
	else if (inner->ethertype == htons(ETH_P_IPV6))
		code = inner->ip[1] >> 4 & 3;
	else
		return CODE_POINT_KEPT;
	outer &= 3;
	if (outer == 0 || outer == 2 || code == 3 || (outer == 1 && code != 2))
		return CODE_POINT_KEPT;
	return code && inner_packet(inner) ? outer : CODE_POINT_OF_WORKER;
}

// Writes a code point into the IP header of a decapsulated frame. Returns 0 if that fails.
static ALWAYS_INLINE int write_code_point(struct __sk_buff *skb, struct inside *inner, __u8 code)
{
	__u16 before, after;

	__builtin_memcpy(&before, inner->ip, 2);
	if (inner->ethertype == htons(ETH_P_IP))
		inner->ip[1] = (inner->ip[1] & ~3) | code;
	else
		inner->ip[1] = (inner->ip[1] & ~0x30) | code << 4;
	__builtin_memcpy(&after, inner->ip, 2);
	if (inner->ethertype == htons(ETH_P_IP) && bpf_l3_csum_replace(skb, 14 + 10, before, after, 2))
		return 0;
	// The sum that a device has computed follows (CHECKSUM_COMPLETE). For IPv4 it stays the same.
	return !bpf_skb_store_bytes(skb, 14, &after, sizeof(after), inner->ethertype == htons(ETH_P_IP) ? 0 : BPF_F_RECOMPUTE_CSUM);
}

// Whether only the bridge's forwarding is needed: see crates/pipeline/src/host_delivery.rs. The
// packet must fill the frame, and an IPv4 header must be valid.
static ALWAYS_INLINE int is_plain(const struct inside *inner, __u32 length)
{
	__u64 sum = 0;
	__u32 words[5];
	__u8 next = inner->ip[6];

	if (inner_packet(inner) + 14 != length)
		return 0;
	if (inner->ethertype == htons(ETH_P_IPV6))
		return next == IPPROTO_TCP || next == IPPROTO_UDP || next == IPPROTO_FRAGMENT;
	if (inner->ip[0] != 0x45)
		return 0;
	__builtin_memcpy(words, inner->ip, sizeof(words));
#pragma unroll
	for (int i = 0; i < 5; i++)
		sum += words[i];
	return fold_sum(sum) == 0xffff;
}

// Counts a decapsulated frame. As in the worker, the bytes of a super-frame are those received.
static ALWAYS_INLINE void count_received(__u32 slot, __u32 vtep, __u32 length, __u32 segments, int past_bridge)
{
	struct offload_traffic *of_vni = bpf_map_lookup_elem(&offload_vni_traffic, &slot);
	struct offload_traffic *of_vtep = bpf_map_lookup_elem(&offload_vtep_traffic, &vtep);

	if (of_vni) {
		of_vni->received += segments;
		of_vni->received_bytes += length;
	}
	if (of_vtep) {
		of_vtep->received += segments;
		of_vtep->received_bytes += length;
	}
	if (past_bridge)
		count_several(COUNT_OFFLOAD_PAST_BRIDGE, segments);
	if (segments > 1)
		count_several(COUNT_OFFLOAD_COPIES, segments - 1);
}

// The host port for a decapsulated frame; 0 if it has to pass the bridge.
static ALWAYS_INLINE __u32 host_port(struct __sk_buff *skb, const struct inside *inner, __u32 slot, __u32 length)
{
	struct mac_location host = {.scope = slot, .kind = LOCATION_HOST};
	struct location_entry *entry;
	struct bypass_port *port;
	__u32 ifindex;

	__builtin_memcpy(host.mac, inner->destination, 6);
	entry = bpf_map_lookup_elem(&mac_locations, &host);
	if (!entry)
		return 0;
	ifindex = entry->index;
	port = bpf_map_lookup_elem(&bypass_ports, &ifindex);
	if (!port || !port->delivery_limit || port->slot != slot || !is_plain(inner, length))
		return 0;
	// The segments of a super-frame fit.
	return skb->gso_size || length <= port->delivery_limit ? ifindex : 0;
}

enum source_state {
	SOURCE_UNKNOWN, // new or moved: the worker reports it
	SOURCE_DUE,     // known; the worker reports it before it ages out
	SOURCE_KNOWN,
};

// What a VNI that learns knows of the inner source address behind this VTEP. The first frame after the
// address became known is due: the worker may have earlier ones.
static FUNCTION int source_state(const struct inside *inner, const struct offload_vni *vni, __u32 slot, __u32 vtep, __u64 now)
{
	struct mac_location source = {.scope = slot, .kind = LOCATION_REMOTE};
	__u32 time = now >> LEARN_UNIT_SHIFT;
	struct location_entry *entry;

	__builtin_memcpy(source.mac, inner->source, 6);
	entry = bpf_map_lookup_elem(&mac_locations, &source);
	if (!entry || entry->index != vtep)
		return SOURCE_UNKNOWN;
	if (entry->learned && (!vni->refresh || time - entry->learned < vni->refresh))
		return SOURCE_KNOWN;
	entry->learned = time ? time : 1;
	return SOURCE_DUE;
}

// Removes the outer headers. A host port splits a super-frame by skb->protocol, which has to become
// that of the inner frame. Kernels before 6.3 cannot set it: there the worker gets such super-frames.
#define DECAP_L3_IPV4 (1ULL << 7) // BPF_F_ADJ_ROOM_DECAP_L3_IPV4 (include/uapi/linux/bpf.h)
#define DECAP_L3_IPV6 (1ULL << 8)

static ALWAYS_INLINE int remove_outer(struct __sk_buff *skb, __s32 length, __u16 ethertype)
{
	int changes = (ethertype == htons(ETH_P_IP) || ethertype == htons(ETH_P_IPV6)) && skb->protocol != ethertype;
	__u64 to = ethertype == htons(ETH_P_IP) ? DECAP_L3_IPV4 : DECAP_L3_IPV6;

	if (changes && !bpf_skb_adjust_room(skb, -length, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO | to))
		return 0;
	if (changes && skb->gso_size)
		return -1;
	return bpf_skb_adjust_room(skb, -length, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
}

// The remote VTEP that sent a packet over IPv4 with an intact header; 0 if there is none.
static ALWAYS_INLINE __u32 *sender_of(const struct headers *h)
{
	__u32 source = h->ip.addresses[0];
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += ((const __u16 *)&h->ip)[i];
	return fold_sum(sum) == 0xffff ? bpf_map_lookup_elem(&offload_senders, &source) : 0;
}

// The same over IPv6. A packet needs a UDP checksum, if the netdev does not say otherwise.
static ALWAYS_INLINE __u32 *sender_of_ipv6(const struct headers_ipv6 *h, const struct offload_vni *vni)
{
	struct offload_address source;

#pragma unroll
	for (int i = 0; i < 4; i++)
		source.words[i] = h->addresses[i];
	if (!h->udp.checksum && !(vni->flags & OFFLOAD_NO_CHECKSUM))
		return 0;
	return bpf_map_lookup_elem(&offload_senders_ipv6, &source);
}

// Decapsulates a packet that steer_uplink has checked, and sends the frame to its host or into the
// bridge. The headers are those of IPv4 or of IPv6, and the others are 0.
static ALWAYS_INLINE int decapsulate(struct __sk_buff *skb, const struct headers *h, const struct headers_ipv6 *h6, __u32 slot)
{
	const __u32 at = h6 ? ENCAPSULATION_IPV6 : ENCAPSULATION;
	const struct udp *udp = h6 ? &h6->udp : &h->udp;
	struct offload_vni *vni = offload_of(skb, slot, UNDERLAY, at);
	__u8 code, tos = h6 ? ntohl(h6->version_class_label) >> 20 : h->ip.tos;
	__u64 sum = h6 ? pseudo_header_ipv6(h6) : pseudo_header(&h->ip, udp->length);
	__u32 *vtep, *netdev, length, port, segments = 1, header, segment;
	struct inside inner;
	struct backlog *backlog;
	int source;
	__u64 now;

	if (!vni)
		return TO_WORKER;
	now = bpf_ktime_get_coarse_ns();
	if (heartbeat_expired(now))
		return PASS;
	length = ntohs(udp->length) - UDP_OVERHEAD;
	if (length + at != skb->len || !read_front(skb, inner.destination, at, 14 + 20))
		return TO_WORKER;
	// The worker drops a truncated IPv6 header.
	if (inner.ethertype == htons(ETH_P_IPV6) && length < 14 + 40)
		return TO_WORKER;
	vtep = h6 ? sender_of_ipv6(h6, vni) : sender_of(h);
	if (!vtep || !is_station(&inner, vni))
		return TO_WORKER;
	if (skb->gso_size) {
		// Of many packets in one super-frame, each has its own headers. A super-frame in one packet
		// is forwarded whole, but for UDP: its description of the tunnel stays, and the kernel would
		// split it there (udp4_ufo_fragment()).
		segment = inner_packet(&inner) + 14 == length && !is_udp(&inner) ? segment_length(skb, at) : 0;
		if (segment <= skb->gso_size)
			return can_be_split(skb) ? split(skb) : flow_to_worker(skb, slot, UNDERLAY, at);
		header = segment - skb->gso_size;
		segments = (length - header + skb->gso_size - 1) / skb->gso_size;
	}
	if (vni->flags & OFFLOAD_LEARNS) {
		source = source_state(&inner, vni, slot, *vtep, now);
		if (source != SOURCE_KNOWN)
			return source == SOURCE_DUE ? flow_to_worker(skb, slot, UNDERLAY, at) : TO_WORKER;
	}
	netdev = bpf_map_lookup_elem(&slots, &slot);
	if (!netdev || !*netdev)
		return TO_WORKER;
	code = code_point(&inner, tos);
	if (code == CODE_POINT_OF_WORKER || !is_checked(skb, udp->checksum, at - UDP_OVERHEAD, sum))
		return TO_WORKER;
	port = host_port(skb, &inner, slot, length);
	// A frame past the bridge must not overtake those that wait for the bridge on this CPU.
	backlog = backlog_of(TO_BRIDGE);
	if (backlog && backlog->arrived != backlog->queued)
		port = 0;
	// The last check by which the worker may get the packet. Nothing has been changed yet.
	if (remove_outer(skb, at, inner.ethertype))
		return skb->gso_size ? flow_to_worker(skb, slot, UNDERLAY, at) : TO_WORKER;
	if (!write_front(skb, inner.destination, 14) ||
	    (code != CODE_POINT_KEPT && !write_code_point(skb, &inner, code))) {
		count(COUNT_OFFLOAD_FAILED);
		return drop_decapsulated(skb, (const struct kept_ethernet *)inner.destination, slot);
	}
	count(COUNT_OFFLOAD_DECAPSULATED);
	count_received(slot, *vtep, length, segments, port != 0);
	if (port)
		return bpf_redirect(port, 0);
	if (backlog)
		skb->tc_index = next_number(backlog);
	return bpf_redirect(*netdev, BPF_F_INGRESS);
}
