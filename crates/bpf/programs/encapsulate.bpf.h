// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// The `offload` datapath: encapsulation. Included by steering.bpf.c.
//
// All fields are those that the worker writes (crates/pipeline/src/outer.rs);
// crates/bpf/tests/kernel/offload compares the two.

#define ENCAPSULATION 50 // bytes: outer Ethernet, IPv4, UDP and VXLAN headers
#define L3_OVERHEAD 36   // bytes by which the outer IPv4 packet is longer than the inner frame
#define UDP_OVERHEAD 16  // the same for the outer UDP datagram

// What the outer header takes from the inner one.
struct inherited {
	__u8 tos;
	__u8 ttl;
	__u16 fragment; // network byte order
};

// Identification of outer IPv4 headers, one sequence for each CPU.
struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, __u32);
} identification SEC(".maps");

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

// The next hop for an outer five-tuple. All arguments are in network byte order.
static ALWAYS_INLINE struct offload_hop *offload_next_hop(const struct offload_vni *vni, __u64 vtep, __u16 port)
{
	__u32 hops = vtep >> 32, bucket, index;
	struct offload_group *group;
	__u64 hash;

	if (hops == OFFLOAD_NO_HOPS)
		return 0;
	index = hops & ~OFFLOAD_SINGLE;
	if (!(hops & OFFLOAD_SINGLE)) {
		hash = hash_begin(vni->seed);
		hash = hash_word(hash, (__u64)ntohl(vni->local) << 32 | ntohl((__u32)vtep));
		hash = hash_end(hash_word(hash, PATH_HASH | (__u64)ntohs(port) << 16 | ntohs(vni->destination_port)));
		bucket = choose(hash, BUCKETS);
		group = bpf_map_lookup_elem(&offload_groups, &index);
		if (!group)
			return 0;
		index = group->hops[bucket & (BUCKETS - 1)];
	}
	return bpf_map_lookup_elem(&offload_hops, &index);
}

// Type of service, time to live and don't-fragment bit, as vxlan_xmit_one() and
// INET_ECN_encapsulate() choose them. Returns 0 if the inner IP header is incomplete.
static ALWAYS_INLINE int inherit(struct __sk_buff *skb, const struct offload_vni *vni, struct inherited *outer)
{
	struct {
		__u16 ethertype;
		__u8 bytes[20];
	} __attribute__((packed)) h;
	__u8 tos, ttl, ecn, dont_fragment;

	if (bpf_skb_load_bytes(skb, 12, &h, sizeof(h)))
		return 0;
	if (h.ethertype == htons(ETH_P_IP)) {
		tos = h.bytes[1];
		ttl = h.bytes[8];
		dont_fragment = h.bytes[6] & 0x40;
	} else if (h.ethertype == htons(ETH_P_IPV6)) {
		tos = h.bytes[0] << 4 | h.bytes[1] >> 4;
		ttl = h.bytes[7];
		dont_fragment = 0x40;
	} else {
		return 0;
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

// Counts an encapsulated frame. `header`: the bytes that each further segment repeats.
static ALWAYS_INLINE void count_sent(__u32 slot, __u32 vtep, const struct offload_hop *hop, __u32 length, __u32 segments, __u32 header)
{
	struct offload_traffic *of_vni = bpf_map_lookup_elem(&offload_vni_traffic, &slot);
	struct offload_traffic *of_vtep = bpf_map_lookup_elem(&offload_vtep_traffic, &vtep);
	__u32 path = hop->path;
	struct offload_path_traffic *of_path = bpf_map_lookup_elem(&offload_path_traffic, &path);
	__u64 bytes = length + (__u64)(segments - 1) * header;

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
	if (of_path) {
		of_path->frames += segments;
		of_path->bytes += bytes + segments * ENCAPSULATION;
	}
}

// Encapsulates a frame for a remote VTEP and sends it to its next hop. The frame begins with its
// Ethernet header, and it fits the underlay.
static ALWAYS_INLINE int encapsulate(struct __sk_buff *skb, __u32 slot, __u32 vtep_index)
{
	struct offload_vni *vni = offload_of(skb, slot, BRIDGE, 0);
	struct encapsulated o;
	struct inherited inherited;
	struct offload_hop *hop;
	__u32 length = skb->len, segment = length, segments = 1, header = 0, zero = 0, *id, port;
	__u64 hash = 0, *vtep, flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
				  BPF_F_ADJ_ROOM_ENCAP_L2(14) | BPF_F_ADJ_ROOM_ENCAP_L2_ETH;
	__u64 sum;
	int kind;

	if (!vni || skb->vlan_present)
		return TO_WORKER;
	if (is_lifeless())
		return PASS;
	vtep = bpf_map_lookup_elem(&offload_vteps, &vtep_index);
	if (!vtep || !inherit(skb, vni, &inherited))
		return TO_WORKER;
	kind = flow_hash(skb, vni->seed, vni->flags & OFFLOAD_FIVE_TUPLE, &hash);
	if (!kind)
		return TO_WORKER;
	port = offload_port(vni, kind, hash);
	o.udp.source = htons((__u16)port);
	hop = offload_next_hop(vni, *vtep, o.udp.source);
	// An uplink that impairs packets gets no super-frames. The worker splits them, and gets the
	// other frames too, so that a flow keeps its order.
	if (!hop || !hop->ifindex || (hop->impaired && kind != ROCE))
		return TO_WORKER;
	if (skb->gso_size) {
		segment = segment_length(skb, 0);
		// Each segment of RoCE may have a queue pair of its own.
		if (!segment || kind == ROCE)
			return super_frame_to_worker(skb, slot, BRIDGE, 0);
		header = segment - skb->gso_size;
		segments = (length - header + skb->gso_size - 1) / skb->gso_size;
	}
	id = bpf_map_lookup_elem(&identification, &zero);
	if (segment + L3_OVERHEAD > hop->mtu || length + L3_OVERHEAD > 0xffff || !id)
		return TO_WORKER;
	if (bpf_skb_load_bytes(skb, 0, o.inner, sizeof(o.inner)))
		return TO_WORKER;
	*id += segments;
	__builtin_memcpy(o.destination, hop->destination, 6);
	__builtin_memcpy(o.source, hop->source, 6);
	o.ethertype = htons(ETH_P_IP);
	o.ip.version_ihl = 0x45;
	o.ip.tos = inherited.tos;
	o.ip.total_length = htons((__u16)(length + L3_OVERHEAD));
	o.ip.id = htons((__u16)(*id - segments + 1));
	o.ip.fragment = inherited.fragment;
	o.ip.ttl = inherited.ttl;
	o.ip.protocol = IPPROTO_UDP;
	o.ip.addresses[0] = vni->local;
	o.ip.addresses[1] = (__u32)*vtep;
	sum = (__u64)(o.ip.version_ihl | o.ip.tos << 8) + o.ip.total_length + o.ip.id + o.ip.fragment +
	      (o.ip.ttl | o.ip.protocol << 8) + o.ip.addresses[0] + o.ip.addresses[1];
	o.ip.header_checksum = ~fold_sum(sum);
	o.udp.destination = vni->destination_port;
	o.udp.length = htons((__u16)(length + UDP_OVERHEAD));
	o.udp.checksum = 0;
	o.vxlan_flags = htonl(0x08000000);
	o.vni = vni->vni;
	if (bpf_skb_adjust_room(skb, ENCAPSULATION, BPF_ADJ_ROOM_MAC, flags))
		return TO_WORKER;
	if (bpf_skb_store_bytes(skb, 0, &o, sizeof(o), 0)) {
		count(COUNT_OFFLOAD_FAILED);
		return DROP;
	}
	// The kernel could not compute an outer checksum for each segment of a super-frame.
	if (vni->flags & OFFLOAD_CHECKSUM && !skb->gso_size && !complete_checksum(skb, &o)) {
		count(COUNT_OFFLOAD_FAILED);
		return DROP;
	}
	count(COUNT_OFFLOAD_ENCAPSULATED);
	count_sent(slot, vtep_index, hop, length, segments, header);
	return bpf_redirect(hop->ifindex, 0);
}
