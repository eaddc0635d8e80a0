// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// The near end of the bridge punt pair: frames from the worker go into the vxlan netdev. Access ports:
// frames of stations go to the worker only. Included by steering.bpf.c.

// Access port ingress: AF_PACKET has the frame already. Dropping it keeps it from the IP stack.
SEC("classifier") int steer_access(struct __sk_buff *skb)
{
	return DROP;
}

// Near end of the bridge punt pair, ingress: frames from the worker, tagged with the slot of their
// VNI. They enter the vxlan netdev, as if the kernel had decapsulated them.
SEC("classifier") int steer_punt(struct __sk_buff *skb)
{
	__u32 slot = skb->vlan_tci & 0x0fff, *ifindex = bpf_map_lookup_elem(&slots, &slot);

	if (!skb->vlan_present || skb->vlan_proto != htons(ETH_P_8021AD) || !ifindex || !*ifindex) {
		count(COUNT_PUNT_UNKNOWN_SLOT);
		return drop_frame(skb, DROPPED_UNKNOWN_SLOT, DROPPED_OF_WORKER, slot);
	}
	if (bpf_skb_vlan_pop(skb)) {
		count(COUNT_OFFLOAD_FAILED);
		return drop_frame(skb, DROPPED_FAILED, DROPPED_OF_WORKER, slot);
	}
	count(COUNT_PUNT_RETURNED);
	return bpf_redirect(*ifindex, BPF_F_INGRESS);
}
