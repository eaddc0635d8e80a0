// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// For tests only: returns the source port of a frame as the result of a program, because
// BPF_PROG_TEST_RUN does not return skb->hash.
#include "steering.bpf.c"

MAP(ARRAY, tested_choice, 1, 0, __u32, struct port_choice);

// udp_flow_src_port() (include/net/udp.h)
static ALWAYS_INLINE __u32 port_of_kernel(__u32 hash, const struct port_choice *choice)
{
	hash ^= hash << 16;
	return (((__u64)hash * choice->kernel_width) >> 32) + choice->kernel_min;
}

// The lower half is the chosen port. The upper half is the port that kernel VXLAN computes from the
// hash.
SEC("classifier") int test_port(struct __sk_buff *skb)
{
	__u32 zero = 0, port;
	__u64 flow = 0;
	int kind;
	struct port_choice *choice = bpf_map_lookup_elem(&tested_choice, &zero);

	if (!choice)
		return 0;
	kind = flow_hash(skb, choice->state, 0, &flow);
	if (kind == NOT_IP)
		return 0;
	port = port_of(choice, kind, flow);
	return port_of_kernel(hash_for(port, choice), choice) << 16 | port;
}

// The port that kernel VXLAN computes behind the egress program of this interface.
SEC("classifier") int test_placed(struct __sk_buff *skb)
{
	struct port_key key = {.ifindex = skb->ifindex};
	struct port_choice *choice = bpf_map_lookup_elem(&port_choices, &key);

	if (!choice)
		return 0;
	choose_port(skb);
	return port_of_kernel(skb->hash, choice);
}
