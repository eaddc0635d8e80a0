// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// For tests only: returns the source port of a frame as the result of a program, because
// BPF_PROG_TEST_RUN does not return skb->hash. The lower half is the chosen port. The upper half is
// the port that kernel VXLAN computes from the hash.
#include "steering.bpf.c"

struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, struct port_choice);
} tested_choice SEC(".maps");

SEC("classifier") int test_port(struct __sk_buff *skb)
{
	__u32 zero = 0, port, hash;
	struct port_choice *choice = bpf_map_lookup_elem(&tested_choice, &zero);

	if (!choice)
		return 0;
	port = port_of(skb, choice);
	if (!port)
		return 0;
	// udp_flow_src_port() (include/net/udp.h)
	hash = hash_for(port, choice);
	hash ^= hash << 16;
	hash = (((__u64)hash * choice->kernel_width) >> 32) + choice->kernel_min;
	return hash << 16 | port;
}
