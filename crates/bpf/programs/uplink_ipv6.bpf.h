// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// Uplink ingress: packets that the kernel refuses, packets for the worker, and VXLAN packets over
// IPv6. Included by steering.bpf.c.

// Whether the inner headers are to be checked by is_refused(): the packet is short, or has the ECN
// mark CE.
static ALWAYS_INLINE int may_be_refused(__u8 tos, __u16 udp_length)
{
	return (tos & 3) == 3 || ntohs(udp_length) < 16 + 14 + 40;
}

// Whether kernel VXLAN refuses a packet because of its inner IP header: the header is not complete, or
// it is not ECN-capable and the outer one has the mark CE (vxlan_rcv()). Such a packet stays with the
// kernel, which counts it as a receive error of the netdev. A standalone VNI has no netdev.
static FUNCTION int is_refused(struct __sk_buff *skb, __u32 slot, __u32 at, __u8 tos, __u16 udp_length)
{
	__u32 *netdev = bpf_map_lookup_elem(&slots, &slot), length = ntohs(udp_length) - 16;
	struct {
		__u16 ethertype;
		__u8 ip[2];
	} inner;
	__u8 code;

	if (!netdev || !*netdev || bpf_skb_load_bytes(skb, at + 12, &inner, sizeof(inner)))
		return 0;
	if (inner.ethertype == htons(ETH_P_IP))
		code = inner.ip[1] & 3;
	else if (inner.ethertype == htons(ETH_P_IPV6))
		code = inner.ip[1] >> 4 & 3;
	else
		return 0;
	return length < (inner.ethertype == htons(ETH_P_IP) ? 14 + 20 : 14 + 40) || ((tos & 3) == 3 && !code);
}

// Redirects a packet to the worker. `offset`: of its inner frame.
static ALWAYS_INLINE int uplink_to_worker(struct __sk_buff *skb, struct taken_tunnel *taken, __u32 offset)
{
	__u32 worker = taken->worker < WORKERS ? taken->worker : worker_of(skb, offset);

	if (is_drained(taken->draining, &taken->drained, worker, UNDERLAY))
		return PASS;
	if (stalled(worker, UNDERLAY)) {
		count(COUNT_UPLINK_STALLED);
		return PASS;
	}
	count(COUNT_UPLINK_REDIRECTED);
	mark_punt(skb, worker, UNDERLAY);
	return redirect_past_backlog(skb, near_end(underlay_punts, worker));
}

// Whether the kernel may drop packets from this source (ip6_rcv_core(), net/ipv6/ip6_input.c):
// multicast, IPv4-mapped, loopback and unspecified addresses.
static ALWAYS_INLINE int is_odd_source(const struct headers_ipv6 *h)
{
	return (h->addresses[0] & htonl(0xff000000)) == htonl(0xff000000) || !(h->addresses[0] | h->addresses[1]);
}

// Redirects whole VXLAN packets without extension headers for the tunnel endpoints in the map.
static FUNCTION int steer_uplink_ipv6(struct __sk_buff *skb)
{
	struct headers_ipv6 h;
	struct tunnel_end end = {};
	struct taken_tunnel *taken;
	__u32 total;
	__u8 class;
	int offloaded;

	if (skb->vlan_present || skb->pkt_type != PACKET_HOST || !read_front(skb, h.destination, 0, ENCAPSULATION_IPV6))
		return PASS;
	if ((ntohl(h.version_class_label) >> 28) != 6 || h.next_header != IPPROTO_UDP || is_odd_source(&h))
		return PASS;
	if (h.vxlan_flags != htonl(0x08000000) || (ntohl(h.vni_reserved) & 0xff))
		return PASS;
	total = ntohs(h.payload_length);
	if (total + 54 > skb->len || ntohs(h.udp.length) < 16 + SHORTEST_INNER || ntohs(h.udp.length) > total)
		return PASS;
#pragma unroll
	for (int i = 0; i < 4; i++)
		end.local[i] = h.addresses[4 + i];
	end.vni = ntohl(h.vni_reserved) >> 8;
	end.port = h.udp.destination;
	taken = bpf_map_lookup_elem(&taken_tunnels, &end);
	if (!taken)
		return PASS;
	class = ntohl(h.version_class_label) >> 20;
	if (may_be_refused(class, h.udp.length) && is_refused(skb, taken->slot, ENCAPSULATION_IPV6, class, h.udp.length))
		return PASS;
	if (has_to_split(skb))
		return split(skb);
	offloaded = decapsulate(skb, 0, &h, taken->slot);
	return offloaded != TO_WORKER ? offloaded : uplink_to_worker(skb, taken, ENCAPSULATION_IPV6);
}
