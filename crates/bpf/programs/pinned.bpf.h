// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// The `offload` datapath: queue pairs whose path the policy `qp-pin` has placed. Included by
// steering.bpf.c.
//
// The worker places a queue pair with its first frame. User space then writes the place here
// (crates/bpf/src/offload/pinned.rs). A queue pair without an entry goes to the worker.

// A queue pair towards a remote VTEP.
struct pinned_key {
	__u64 hash; // of the flow, under the VNI's seed
	__u32 vtep; // index of the VTEP
	__u32 slot; // of the VNI
};

// Its path.
struct pinned {
	__u64 moved; // OFFLOAD_MOVED once the worker has sent all that it had of the queue pair
	__u32 hop;   // index of the next hop
	__u32 usage; // index of its counts
	__u16 port;  // outer UDP source port, network byte order
	__u16 zero[3];
};

#define OFFLOAD_PINNED 65536

MAP(HASH, offload_pinned, OFFLOAD_PINNED, BPF_F_NO_PREALLOC, struct pinned_key, struct pinned);

// User space sets the number of entries when it loads the programs: one without `qp-pin`.
MAP(ARRAY, offload_usage, 1, BPF_F_MMAPABLE, __u32, struct pinned_usage);

// The path of a queue pair; 0 if it is not placed.
static FUNCTION struct pinned *pinned_path(__u32 slot, __u32 vtep, __u64 hash)
{
	struct pinned_key key = {.hash = hash, .vtep = vtep, .slot = slot};

	return bpf_map_lookup_elem(&offload_pinned, &key);
}

// Counts an encapsulated frame of a queue pair. `outer`: length of the outer headers in bytes.
static FUNCTION int count_pinned(struct __sk_buff *skb, __u32 index, __u32 length, __u32 outer)
{
	struct pinned_usage *usage = bpf_map_lookup_elem(&offload_usage, &index);

	if (!usage)
		return 0;
	// Before the frame is counted: user space compares the two numbers of frames.
	record_frame(skb, usage, outer);
	__sync_fetch_and_add(&usage->bytes, length);
	__sync_fetch_and_add(&usage->frames, 1);
	usage->last = bpf_ktime_get_ns();
	return 0;
}
