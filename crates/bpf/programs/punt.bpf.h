// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// The near end of the bridge punt pair: frames from the worker go into the vxlan netdev or out of a
// host port. Included by steering.bpf.c.

// Where the contents of a bundle go (crates/pipeline/src/bundle.rs). This is the wrapper's source
// address. Its destination address is the slot or the ifindex.
enum { WAY_BRIDGE = 1, WAY_PORT = 2 };
#define WRAPPER ((__s32)__builtin_offsetof(struct headers, vxlan_flags)) // Ethernet, IPv4 and UDP header

// Redirects into the ingress of a slot's vxlan netdev, as if the kernel had decapsulated the frame.
static ALWAYS_INLINE int to_bridge(__u32 slot)
{
	__u32 *ifindex = bpf_map_lookup_elem(&slots, &slot);

	if (!ifindex || !*ifindex) {
		count(COUNT_PUNT_UNKNOWN_SLOT);
		return DROP;
	}
	count(COUNT_PUNT_RETURNED);
	return bpf_redirect(*ifindex, BPF_F_INGRESS);
}

// Unwraps a piece of a bundle. This removes the IPv4 and UDP headers of the wrapper and one of the
// two Ethernet headers, which are equal.
static ALWAYS_INLINE int unwrap(struct __sk_buff *skb)
{
	struct {
		__u32 way;
		__u32 to;
	} address;
	__u32 mtu = 0;

	if (bpf_skb_load_bytes(skb, __builtin_offsetof(struct headers, ip.addresses), &address, sizeof(address)) ||
	    bpf_skb_adjust_room(skb, -WRAPPER, BPF_ADJ_ROOM_MAC, 0)) {
		count(COUNT_PUNT_UNDELIVERABLE);
		return DROP;
	}
	// The hash of the wrapper's addresses does not belong to the inner frame.
	bpf_set_hash_invalid(skb);
	if (ntohl(address.way) == WAY_BRIDGE)
		return to_bridge(ntohl(address.to));
	if (ntohl(address.way) != WAY_PORT || bpf_check_mtu(skb, ntohl(address.to), &mtu, 0, 0)) {
		count(COUNT_PUNT_UNDELIVERABLE);
		return DROP;
	}
	count(COUNT_PUNT_DELIVERED);
	return bpf_redirect(ntohl(address.to), 0);
}

// Near end of the bridge punt pair, ingress: frames from the worker, with a tag or a wrapper.
SEC("classifier") int steer_punt(struct __sk_buff *skb)
{
	__u32 slot;

	if (!skb->vlan_present && skb->protocol == htons(ETH_P_IP))
		return unwrap(skb);
	slot = skb->vlan_tci & 0x0fff;
	if (!skb->vlan_present || skb->vlan_proto != htons(ETH_P_8021AD)) {
		count(COUNT_PUNT_UNKNOWN_SLOT);
		return DROP;
	}
	if (bpf_skb_vlan_pop(skb))
		return DROP;
	return to_bridge(slot);
}
