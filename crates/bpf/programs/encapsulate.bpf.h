// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// The `offload` datapath: encapsulation. Included by steering.bpf.c.
//
// All fields are those that the worker writes (crates/pipeline/src/outer.rs);
// crates/bpf/tests/kernel/offload compares the two.

#define L3_OVERHEAD 36   // bytes by which the outer IPv4 packet is longer than the inner frame
#define L3_OVERHEAD_IPV6 56
#define UDP_OVERHEAD 16  // the same for the outer UDP datagram

// What the outer header takes from the inner one.
struct inherited {
	__u8 tos;
	__u8 ttl;
	__u16 fragment; // network byte order
	__u8 tag; // bytes of a tag that is beside the frame: 4 or 0
};

// The outer headers, and the inner Ethernet header, which may have a tag.
union encapsulated {
	struct {
		struct headers outer;
		__u8 ethernet[14 + 4];
	} ipv4;
	struct {
		struct headers_ipv6 outer;
		__u8 ethernet[14 + 4];
	} ipv6;
};

// What is decided about a frame.
struct tx_decision {
	struct offload_vni *vni;
	struct offload_hop *hop;
	__u64 vtep; // its entry in offload_vteps
	__u32 vtep_index;
	__u32 slot;
	__u32 length;   // bytes, with a tag
	__u32 segments; // of a super-frame, else 1
	__u32 repeated; // the bytes that each further segment repeats
	__u32 usage;    // where the queue pair's frames are counted; 0 if it is not pinned
	__u16 port;     // network byte order
	struct inherited inherited;
};

// Identifications of outer IPv4 headers. All CPUs take those towards a VTEP from one sequence, so that
// they differ as long as a fragment may live (RFC 6864 section 4.3). A CPU takes a block of them, and
// uses it for a second at most: the others may use up the sequence. Workers have the upper half
// (crates/pipeline/src/identification.rs).
#define IDENTIFICATIONS 0x8000
#define IDENTIFICATION_BLOCK 16
#define SEQUENCES 4096 // a VTEP has that of its index modulo this number

MAP(ARRAY, identifications, SEQUENCES, 0, __u32, __u32);

struct identification_block {
	__u32 second; // in which it was taken
	__u16 next;
	__u16 left;
};

MAP(PERCPU_ARRAY, identification_blocks, SEQUENCES, 0, __u32, struct identification_block);

// Takes a new block, for at least so many packets.
static FUNCTION int take_block(struct identification_block *block, __u32 sequence, __u32 count, __u32 second)
{
	__u32 *all = bpf_map_lookup_elem(&identifications, &sequence), first;

	if (!block || !all)
		return 0;
	if (count < IDENTIFICATION_BLOCK)
		count = IDENTIFICATION_BLOCK;
	first = __sync_fetch_and_add(all, count) % IDENTIFICATIONS;
	// The segments of a super-frame have consecutive ones.
	if (first + count > IDENTIFICATIONS)
		first = __sync_fetch_and_add(all, count) % IDENTIFICATIONS;
	block->next = first;
	block->left = count;
	block->second = second;
	return 0;
}

// The first of so many identifications towards a VTEP. `now`: CLOCK_MONOTONIC_COARSE in nanoseconds.
static ALWAYS_INLINE __u16 take_identifications(__u32 vtep, __u32 count, __u64 now)
{
	__u32 sequence = vtep % SEQUENCES, second = now >> SECOND_SHIFT;
	struct identification_block *block = bpf_map_lookup_elem(&identification_blocks, &sequence);
	__u16 first;

	if (!block)
		return 0;
	if (block->left < count || block->second != second)
		take_block(block, sequence, count, second);
	first = block->next;
	block->next += count;
	block->left -= count;
	return first;
}

// The source port of a flow with this hash (crates/path/src/stateless.rs).
static ALWAYS_INLINE __u32 offload_port(const struct offload_vni *vni, int kind, __u64 hash)
{
	__u32 bin, scaled;

	if (vni->flags & OFFLOAD_FIVE_TUPLE) {
		scaled = hash >> 32;
		scaled ^= scaled << 16;
		return vni->min + ((__u32)(((__u64)scaled * vni->ports) >> 32) & 0xffff);
	}
	if (kind == ROCE && vni->bins) {
		bin = choose(hash, vni->bins);
		return vni->min + bin * (vni->ports - 1) / (vni->bins > 1 ? vni->bins - 1 : 1);
	}
	return vni->min + choose(hash, vni->ports);
}

// "path" in ASCII, in the upper half (crates/path/src/path_hash.rs).
#define PATH_HASH 0x7061746800000000ULL

// The path hash of an outer five-tuple over IPv6, as a function of its own.
static FUNCTION __u64 path_hash_ipv6(const struct offload_vni *vni, __u32 index, __u16 port)
{
	struct offload_address *remote = bpf_map_lookup_elem(&offload_addresses, &index);
	__u64 hash = vni->state;

	if (!remote)
		return 0;
#pragma unroll
	for (int i = 0; i < 4; i += 2)
		hash = hash_word(hash, (__u64)ntohl(vni->local[i]) << 32 | ntohl(vni->local[i + 1]));
#pragma unroll
	for (int i = 0; i < 4; i += 2)
		hash = hash_word(hash, (__u64)ntohl(remote->words[i]) << 32 | ntohl(remote->words[i + 1]));
	return hash_end(hash_word(hash, PATH_HASH | (__u64)ntohs(port) << 16 | ntohs(vni->destination_port)));
}

// The next hop for an outer five-tuple. The port is in network byte order.
static ALWAYS_INLINE struct offload_hop *offload_next_hop(const struct offload_vni *vni, __u64 vtep, __u16 port)
{
	__u32 hops = vtep >> 32, bucket, index;
	struct offload_group *group;
	__u64 hash;

	if (hops == OFFLOAD_NO_HOPS)
		return 0;
	index = hops & ~OFFLOAD_SINGLE;
	if (!(hops & OFFLOAD_SINGLE)) {
		if (vni->flags & OFFLOAD_IPV6) {
			hash = path_hash_ipv6(vni, vtep, port);
		} else {
			hash = hash_word(vni->state, (__u64)ntohl(vni->local[0]) << 32 | ntohl((__u32)vtep));
			hash = hash_end(hash_word(hash, PATH_HASH | (__u64)ntohs(port) << 16 | ntohs(vni->destination_port)));
		}
		bucket = choose(hash, BUCKETS);
		group = bpf_map_lookup_elem(&offload_groups, &index);
		if (!group)
			return 0;
		index = group->hops[bucket & (BUCKETS - 1)];
	}
	return bpf_map_lookup_elem(&offload_hops, &index);
}

// Reads the inner Ethernet header, to which a tag beside the frame is added, and chooses type of
// service, time to live and don't-fragment bit as vxlan_xmit_one() and INET_ECN_encapsulate() do.
// Returns 0 if the inner IP header is incomplete.
static ALWAYS_INLINE int inherit(struct __sk_buff *skb, const struct offload_vni *vni, __u8 *ethernet, struct inherited *outer)
{
	const __u8 *frame = linear(skb, 14 + 20), *ip = frame + 14;
	__u8 tos, ttl, ecn, dont_fragment;
	__u16 ethertype;

	if (!frame)
		return 0;
	for (int i = 0; i < 12; i += 4)
		*(__u32 *)(ethernet + i) = *(const __u32 *)(frame + i);
	ethertype = *(const __u16 *)(frame + 12);
	if (ethertype == htons(ETH_P_IP)) {
		tos = ip[1];
		ttl = ip[8];
		dont_fragment = ip[6] & 0x40;
	} else if (ethertype == htons(ETH_P_IPV6)) {
		tos = ip[0] << 4 | ip[1] >> 4;
		ttl = ip[7];
		dont_fragment = 0x40;
	} else {
		return 0;
	}
	if (skb->vlan_present) {
		*(__u16 *)(ethernet + 12) = skb->vlan_proto;
		*(__u16 *)(ethernet + 14) = htons((__u16)skb->vlan_tci);
		*(__u16 *)(ethernet + 16) = ethertype;
		outer->tag = 4;
		dont_fragment = 0;
	} else {
		*(__u16 *)(ethernet + 12) = ethertype;
		outer->tag = 0;
	}
	ecn = tos & 3;
	if (ecn == 3)
		ecn = 2; // ECT(0) instead of CE
	outer->tos = ((vni->flags & OFFLOAD_TOS_INHERIT ? tos : vni->tos) & ~3) | ecn;
	outer->ttl = vni->flags & OFFLOAD_TTL_INHERIT && ttl ? ttl : vni->ttl;
	outer->fragment = 0;
	if (vni->flags & OFFLOAD_DF_SET || (vni->flags & OFFLOAD_DF_INHERIT && dont_fragment))
		outer->fragment = htons(0x4000);
	return 1;
}

// Counts the frames of an encapsulated packet: each segment of a super-frame is one.
static ALWAYS_INLINE void count_sent(const struct tx_decision *d, __u32 encapsulation)
{
	__u32 slot = d->slot, vtep = d->vtep_index, segments = d->segments;
	const struct offload_hop *hop = d->hop;
	struct offload_traffic *of_vni = bpf_map_lookup_elem(&offload_vni_traffic, &slot);
	struct offload_traffic *of_vtep = bpf_map_lookup_elem(&offload_vtep_traffic, &vtep);
	__u32 path = hop->path;
	struct offload_path_traffic *of_path = bpf_map_lookup_elem(&offload_path_traffic, &path);
	__u64 bytes = d->length + (__u64)(segments - 1) * d->repeated;

	if (of_vni) {
		of_vni->sent += segments;
		of_vni->sent_bytes += bytes;
	}
	if (of_vtep) {
		of_vtep->sent += segments;
		of_vtep->sent_bytes += bytes;
		if (hop->by_default)
			of_vtep->by_default += segments;
	}
	if (hop->by_default)
		count_several(COUNT_OFFLOAD_BY_DEFAULT, segments);
	if (segments > 1)
		count_several(COUNT_OFFLOAD_COPIES, segments - 1);
	if (of_path) {
		of_path->frames += segments;
		of_path->bytes += bytes + segments * encapsulation;
	}
}

// Puts the outer headers before the frame. `headers` begin with those of the packet, and end with the
// inner Ethernet header. bpf_skb_adjust_room() refuses frames that are in a tunnel of the host
// (skb->encapsulation): the kernel gets them, so nothing may have been changed before.
static ALWAYS_INLINE int prepend(struct __sk_buff *skb, const struct tx_decision *d, const void *headers, __u32 length)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
		      (length == ENCAPSULATION_IPV6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);

	if (d->inherited.tag) {
		if (bpf_skb_adjust_room(skb, length + 4, BPF_ADJ_ROOM_MAC, flags | BPF_F_ADJ_ROOM_ENCAP_L2(18)))
			return PASS;
		if (bpf_skb_vlan_pop(skb) || bpf_skb_store_bytes(skb, 0, headers, length + 18, 0))
			goto failed;
	} else {
		if (bpf_skb_adjust_room(skb, length, BPF_ADJ_ROOM_MAC, flags | BPF_F_ADJ_ROOM_ENCAP_L2(14)))
			return PASS;
		if (!write_front(skb, headers, length + 14))
			goto failed;
	}
	return 0;
failed:
	count(COUNT_OFFLOAD_FAILED);
	struct kept_ethernet ethernet = {};
	__builtin_memcpy(ethernet.bytes, headers + length, 14);
	if (d->inherited.tag)
		__builtin_memcpy(ethernet.bytes + 14, headers + length + 14, 4);
	return drop_encapsulated(skb, &ethernet, d->inherited.tag, length, d->slot);
}

// Writes the outer headers over IPv4. Returns the sum of the UDP pseudo header.
static ALWAYS_INLINE __u64 write_ipv4(const struct tx_decision *d, struct headers *h, __u32 id)
{
	const struct offload_vni *vni = d->vni;
	__u64 sum;

	__builtin_memcpy(h->destination, d->hop->destination, 6);
	__builtin_memcpy(h->source, d->hop->source, 6);
	h->ethertype = htons(ETH_P_IP);
	h->ip.version_ihl = 0x45;
	h->ip.tos = d->inherited.tos;
	h->ip.total_length = htons((__u16)(d->length + L3_OVERHEAD));
	h->ip.id = htons((__u16)id);
	h->ip.fragment = d->inherited.fragment;
	h->ip.ttl = d->inherited.ttl;
	h->ip.protocol = IPPROTO_UDP;
	h->ip.addresses[0] = vni->local[0];
	h->ip.addresses[1] = (__u32)d->vtep;
	sum = (__u64)(h->ip.version_ihl | h->ip.tos << 8) + h->ip.total_length + h->ip.id + h->ip.fragment +
	      (h->ip.ttl | h->ip.protocol << 8) + h->ip.addresses[0] + h->ip.addresses[1];
	h->ip.header_checksum = ~fold_sum(sum);
	h->udp.source = d->port;
	h->udp.destination = vni->destination_port;
	h->udp.length = htons((__u16)(d->length + UDP_OVERHEAD));
	h->udp.checksum = 0;
	h->vxlan_flags = htonl(0x08000000);
	h->vni_reserved = vni->vni;
	return pseudo_header(&h->ip, h->udp.length);
}

// The same over IPv6. Returns 0 if the worker gets the frame.
static FUNCTION __u64 write_ipv6(const struct tx_decision *d, union encapsulated *o)
{
	const struct offload_vni *vni = d->vni;
	struct headers_ipv6 *h = &o->ipv6.outer;
	__u32 index = d->vtep, label;
	struct offload_address *remote = bpf_map_lookup_elem(&offload_addresses, &index);

	if (!remote)
		return 0;
	__builtin_memcpy(o->ipv6.ethernet, o->ipv4.ethernet, 14 + 4);
	__builtin_memcpy(h->destination, d->hop->destination, 6);
	__builtin_memcpy(h->source, d->hop->source, 6);
	h->ethertype = htons(ETH_P_IPV6);
	label = vni->flags & OFFLOAD_PORT_LABEL ? ntohs(d->port) : vni->label;
	h->version_class_label = htonl(6 << 28 | d->inherited.tos << 20 | label);
	h->payload_length = htons((__u16)(d->length + UDP_OVERHEAD));
	h->next_header = IPPROTO_UDP;
	h->hop_limit = d->inherited.ttl;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		h->addresses[i] = vni->local[i];
		h->addresses[4 + i] = remote->words[i];
	}
	h->udp.source = d->port;
	h->udp.destination = vni->destination_port;
	h->udp.length = h->payload_length;
	h->udp.checksum = 0;
	h->vxlan_flags = htonl(0x08000000);
	h->vni_reserved = vni->vni;
	return pseudo_header_ipv6(h);
}

// Leaves a super-frame of TCP to the worker, which splits it. One of UDP may be TCP in a tunnel of the
// host: the kernel splits those. A function of its own, because the stack of the callers is full.
static FUNCTION int super_frame_to_worker(struct __sk_buff *skb, __u32 slot)
{
	__u32 at = skb->protocol == htons(ETH_P_IP) ? 14 + 9 : 14 + 6;
	__u8 protocol;

	if (bpf_skb_load_bytes(skb, at, &protocol, sizeof(protocol)) || protocol != IPPROTO_TCP)
		return PASS;
	return flow_to_worker(skb, slot, BRIDGE, 0);
}

// Encapsulates a frame for a remote VTEP and sends it to its next hop. The frame begins with its
// Ethernet header, and it fits the underlay. Returns PASS if the kernel has to encapsulate it, or
// TO_WORKER. `now`: CLOCK_MONOTONIC_COARSE in nanoseconds.
static ALWAYS_INLINE int encapsulate(struct __sk_buff *skb, __u32 slot, __u32 vtep_index, __u64 now)
{
	struct offload_vni *vni = offload_of(skb, slot, BRIDGE, 0);
	struct tx_decision d = {.vni = vni, .slot = slot, .vtep_index = vtep_index, .segments = 1};
	union encapsulated o;
	struct offload_hop *hop;
	struct pinned *pinned;
	const int is_ipv6 = vni && vni->flags & OFFLOAD_IPV6;
	__u64 hash = 0, *vtep, sum = 0, pseudo;
	int kind, result, has_checksum;
	__u32 segment;

	if (!vni)
		return TO_WORKER;
	if (heartbeat_expired(now))
		return PASS;
	vtep = bpf_map_lookup_elem(&offload_vteps, &vtep_index);
	if (!vtep || !inherit(skb, vni, o.ipv4.ethernet, &d.inherited))
		return TO_WORKER;
	d.vtep = *vtep;
	kind = flow_hash(skb, vni->state, vni->flags & OFFLOAD_FIVE_TUPLE, &hash);
	if (!kind)
		return TO_WORKER;
	if (kind == ROCE && vni->flags & OFFLOAD_PINS) {
		__u32 index;

		pinned = pinned_path(slot, vtep_index, hash);
		if (!pinned || (!pinned->moved && comes_from_worker(skb, &pinned->moved, slot, BRIDGE, 0)))
			return TO_WORKER;
		d.port = pinned->port;
		d.usage = pinned->usage;
		index = pinned->hop;
		hop = bpf_map_lookup_elem(&offload_hops, &index);
	} else {
		d.port = htons((__u16)offload_port(vni, kind, hash));
		hop = offload_next_hop(vni, d.vtep, d.port);
	}
	// An uplink that impairs packets gets no super-frames. The worker splits them, and gets the
	// other frames too, so that a flow keeps its order.
	if (!hop || !hop->ifindex || (hop->impaired && kind != ROCE))
		return TO_WORKER;
	d.hop = hop;
	d.length = skb->len + d.inherited.tag;
	segment = d.length;
	if (skb->gso_size) {
		segment = segment_length(skb, 0);
		// Each segment of RoCE may have a queue pair of its own.
		if (!segment || kind == ROCE || d.inherited.tag)
			return kind == ROCE ? flow_to_worker(skb, slot, BRIDGE, 0) : super_frame_to_worker(skb, slot);
		d.repeated = segment - skb->gso_size;
		d.segments = (d.length - d.repeated + skb->gso_size - 1) / skb->gso_size;
	}
	if (segment + (is_ipv6 ? L3_OVERHEAD_IPV6 : L3_OVERHEAD) > hop->mtu ||
	    d.length + (is_ipv6 ? L3_OVERHEAD_IPV6 : L3_OVERHEAD) > 0xffff)
		return TO_WORKER;
	// The kernel could not compute an outer checksum for each segment of a super-frame. A packet over
	// IPv6 needs one, if the netdev does not say otherwise (RFC 6935).
	has_checksum = vni->flags & OFFLOAD_CHECKSUM && (is_ipv6 || (!skb->gso_size && skb->len <= LONGEST_SUMMED));
	if (has_checksum && skb->gso_size)
		return super_frame_to_worker(skb, slot);
	if (has_checksum) {
		sum = sum_frame(skb);
		if (!sum)
			return PASS;
	}
	if (is_ipv6) {
		pseudo = write_ipv6(&d, &o);
		if (!pseudo)
			return TO_WORKER;
		if (has_checksum)
			o.ipv6.outer.udp.checksum = checksum_of((struct tunnelled *)&o.ipv6.outer.udp, d.inherited.tag, sum + pseudo);
		result = prepend(skb, &d, o.ipv6.outer.destination, ENCAPSULATION_IPV6);
	} else {
		pseudo = write_ipv4(&d, &o.ipv4.outer, take_identifications(vtep_index, d.segments, now));
		if (has_checksum)
			o.ipv4.outer.udp.checksum = checksum_of((struct tunnelled *)&o.ipv4.outer.udp, d.inherited.tag, sum + pseudo);
		result = prepend(skb, &d, o.ipv4.outer.destination, ENCAPSULATION);
	}
	if (result)
		return result;
	// A router on a veth link would use the inner frame's hash instead of the outer ports
	// (fib_multipath_hash(), net/ipv4/route.c).
	bpf_set_hash_invalid(skb);
	count(COUNT_OFFLOAD_ENCAPSULATED);
	count_sent(&d, is_ipv6 ? ENCAPSULATION_IPV6 : ENCAPSULATION);
	if (d.usage)
		count_pinned(skb, d.usage, d.length, is_ipv6 ? ENCAPSULATION_IPV6 : ENCAPSULATION);
	return bpf_redirect(hop->ifindex, 0);
}
