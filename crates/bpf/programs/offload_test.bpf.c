// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// For tests only: runs the programs of the `offload` datapath, and tells where they redirect a
// frame. The context passes arguments and results: in `cb[0]` the index of the VTEP, in `cb[1]` and
// `cb[2]` interface and flags of the redirection, in `cb[3]` and `cb[4]` the protocol and the hash of
// the resulting frame.
#include <linux/bpf.h>

static inline __attribute__((always_inline)) long noted(__u32 ifindex, __u64 flags);

#define bpf_redirect(ifindex, flags) noted(ifindex, flags)
#define bpf_redirect_peer(ifindex, flags) noted(ifindex, flags)
// Whether changes of headers fail.
static volatile __u32 fails;

#define bpf_skb_vlan_pop(skb) (fails ? -1 : (bpf_skb_vlan_pop)(skb))
#define bpf_l3_csum_replace(...) (fails ? -1 : (bpf_l3_csum_replace)(__VA_ARGS__))
#define bpf_skb_store_bytes(...) (fails ? -1 : (bpf_skb_store_bytes)(__VA_ARGS__))
#include "steering.bpf.c"

// Where the last frame was redirected to.
static volatile __u32 to_ifindex;
static volatile __u64 to_flags;

static inline __attribute__((always_inline)) long noted(__u32 ifindex, __u64 flags)
{
	to_ifindex = ifindex;
	to_flags = flags;
	return (bpf_redirect)(ifindex, flags);
}

#define TESTED_SLOT 7

static ALWAYS_INLINE int finished(struct __sk_buff *skb, int result)
{
	struct backlog *backlog = backlog_of(TO_BRIDGE);

	// No frame arrives after a test run.
	if (backlog)
		backlog->arrived = backlog->queued;
	skb->cb[1] = to_ifindex;
	skb->cb[2] = to_flags;
	skb->cb[3] = ntohs(skb->protocol);
	skb->cb[4] = skb->hash;
	to_ifindex = 0;
	to_flags = 0;
	return result;
}

SEC("classifier") int test_encapsulate(struct __sk_buff *skb)
{
	// As the socket of a host does.
	bpf_set_hash(skb, 1);
	return finished(skb, encapsulate(skb, TESTED_SLOT, skb->cb[0], bpf_ktime_get_coarse_ns()));
}

// A host port's frames, all for the first VTEP.
SEC("classifier") int test_port(struct __sk_buff *skb)
{
	int result = encapsulate(skb, TESTED_SLOT, 0, bpf_ktime_get_coarse_ns());

	if (result != TO_WORKER)
		return result;
	// The tag tells what the worker gets from what the kernel gets.
	bpf_skb_vlan_push(skb, htons(ETH_P_8021AD), TESTED_SLOT);
	return PASS;
}

// A host's frames, as an interface for this tag sends them.
SEC("classifier") int test_tag(struct __sk_buff *skb)
{
	bpf_skb_vlan_push(skb, htons(ETH_P_8021Q), 5);
	return PASS;
}

// An uplink's super-frames, all to the splitter.
SEC("classifier") int test_split(struct __sk_buff *skb)
{
	return can_be_split(skb) ? split(skb) : PASS;
}

// With the checks of a packet from the underlay.
SEC("classifier") __attribute__((flatten)) int test_uplink(struct __sk_buff *skb)
{
	return finished(skb, steer_uplink(skb));
}

// A host's tagged frame whose headers cannot be changed.
SEC("classifier") int test_failing(struct __sk_buff *skb)
{
	int result;

	bpf_skb_vlan_push(skb, htons(ETH_P_8021Q), 5);
	fails = 1;
	result = encapsulate(skb, TESTED_SLOT, skb->cb[0], bpf_ktime_get_coarse_ns());
	fails = 0;
	return result;
}

// The same with a packet from the underlay.
SEC("classifier") __attribute__((flatten)) int test_failing_uplink(struct __sk_buff *skb)
{
	int result;

	fails = 1;
	result = steer_uplink(skb);
	fails = 0;
	return result;
}
