// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// Super-frames from uplinks that the programs cannot forward whole are split. They are redirected to
// a veth pair whose near end does not transmit UDP super-frames: the kernel splits them there. The far
// end sends the segments straight back, and they arrive on the near end, as if on their uplink.
// Included by steering.bpf.c.

// Interface index of the near end, and whether all super-frames are split: before Linux 6.2 a
// worker's socket could not read those of UDP. Set before loading.
const volatile __u32 splitter = 0;
const volatile __u32 splits_all = 0;

// Whether a frame is a super-frame that has not passed the splitter.
static ALWAYS_INLINE int can_be_split(const struct __sk_buff *skb)
{
	return skb->gso_size && skb->ifindex != splitter;
}

// Whether a frame from an uplink has to pass the splitter whatever becomes of it: it is not to
// overtake those of this CPU that are on their way.
static ALWAYS_INLINE int has_to_split(const struct __sk_buff *skb)
{
	struct backlog *backlog = backlog_of(TO_SPLITTER);

	if (splits_all && can_be_split(skb))
		return 1;
	return backlog && backlog->arrived != backlog->queued && skb->ifindex != splitter;
}

// Redirects a frame from an uplink to the splitter. The hash carries the uplink: mark and priority
// do not survive the way to another namespace.
static ALWAYS_INLINE int split(struct __sk_buff *skb)
{
	struct backlog *backlog = backlog_of(TO_SPLITTER);

	if (!backlog)
		return DROP;
	number_frame(skb, backlog);
	bpf_set_hash(skb, skb->ifindex);
	return bpf_redirect(splitter, 0);
}

// Gives a frame from the splitter back to its uplink, where the kernel gets it.
static ALWAYS_INLINE int back_to_uplink(struct __sk_buff *skb)
{
	__u32 uplink = skb->hash;

	bpf_set_hash_invalid(skb);
	skb->tc_index = RETURNED;
	return bpf_redirect(uplink, BPF_F_INGRESS);
}

// Finishes a frame from the splitter.
static ALWAYS_INLINE int from_splitter(struct __sk_buff *skb, int result)
{
	if (result == PASS)
		return back_to_uplink(skb);
	bpf_set_hash_invalid(skb);
	return result;
}

// The far end, ingress. The near end's own frames have no number.
SEC("classifier") int vtepd_split_far(struct __sk_buff *skb)
{
	return skb->tc_index ? bpf_redirect_peer(skb->ifindex, 0) : DROP;
}

// The near end, ingress.
SEC("classifier") int vtepd_split(struct __sk_buff *skb)
{
	struct backlog *backlog = backlog_of(TO_SPLITTER);

	if (backlog)
		backlog->arrived = skb->tc_index;
	skb->tc_index = 0;
	bpf_skb_change_type(skb, PACKET_HOST);
	steer(skb, HOOK_UPLINK);
	return back_to_uplink(skb);
}
