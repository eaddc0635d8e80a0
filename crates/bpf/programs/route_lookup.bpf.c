// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// Looks up the route of a packet that this host sends, for the `kernel` datapath with the policy
// `qp-pin`. User space runs the program with BPF_PROG_TEST_RUN (crates/bpf/src/route_lookup.rs). It
// is not attached.
//
// The helper hashes flow keys, as kernel VXLAN does when it sends. A lookup by netlink hashes a
// packet, and with the custom policy (fib_multipath_hash_policy 3) the two differ: see
// fib_multipath_custom_hash_fl4() and fib_multipath_custom_hash_skb() in net/ipv4/route.c.
#include "common.bpf.h"

static long (*bpf_fib_lookup)(void *skb, struct bpf_fib_lookup *params, int len, __u32 flags) = (void *)BPF_FUNC_fib_lookup;

#define ETHERNET 14
#define FAILED (-1)

// Behind an Ethernet header, the packet is a `struct bpf_fib_lookup`, which gets the answer.
SEC("classifier") int look_up_route(struct __sk_buff *skb)
{
	struct bpf_fib_lookup params;
	long result;

	if (bpf_skb_load_bytes(skb, ETHERNET, &params, sizeof(params)))
		return FAILED;
	result = bpf_fib_lookup(skb, &params, sizeof(params), 0);
	if (bpf_skb_store_bytes(skb, ETHERNET, &params, sizeof(params), 0))
		return FAILED;
	return result;
}

char _license[] SEC("license") = "Dual MIT/GPL";
