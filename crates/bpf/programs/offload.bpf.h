// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// The `offload` datapath: the programs repeat what the control plane and the path policy have
// decided. Its tables, which user space writes. Included by steering.bpf.c.
//
// Objects that a frame needs in several words are written once, at an index that is not in use.
// Only then the word that leads to the index changes. A frame therefore sees either the old object
// or the new one. Indices are used again late (crates/bpf/src/offload/indices.rs).

// The settings of a VNI. Numbers are in host byte order where nothing else is said.
struct offload_vni {
	__u64 state;            // of the policy's hash, with its seed
	__u32 local[4];         // this leaf's VTEP address, network byte order; IPv4: the first word
	__u32 vni;              // last word of the VXLAN header, network byte order
	__u32 label;            // of outer IPv6 headers, 20 bits, without OFFLOAD_PORT_LABEL
	__u16 destination_port; // network byte order
	__u16 min;              // the policy's range
	__u16 ports;            // their number; for five-tuple one less, as in the kernel
	__u16 bins;             // of qp-bins; 0 for others
	__u16 flags;
	__u8 tos;
	__u8 ttl;               // also for frames without one to inherit
	__u8 mac[6];            // of the vxlan netdev: frames from it are loops
	__u8 zero[2];
	__u32 refresh;          // LEARN_UNITs after which the worker sees a known source again; 0: never
};

#define OFFLOAD_FIVE_TUPLE 1   // the policy does not look at queue pairs and scales as the kernel
#define OFFLOAD_TOS_INHERIT 2
#define OFFLOAD_TTL_INHERIT 4
#define OFFLOAD_DF_SET 8
#define OFFLOAD_DF_INHERIT 16
#define OFFLOAD_CHECKSUM 32    // the outer UDP checksum is computed
#define OFFLOAD_LEARNS 64      // the worker reports the source addresses of received frames
#define OFFLOAD_IPV6 128        // the VTEPs have IPv6 addresses
#define OFFLOAD_NO_CHECKSUM 256 // packets without a UDP checksum are accepted over IPv6
#define OFFLOAD_PINS 512        // queue pairs have the path that user space has placed them on
#define OFFLOAD_PORT_LABEL 1024 // the outer flow label is the source port

// Times of learning are in units of 2^20 nanoseconds of CLOCK_MONOTONIC_COARSE, modulo 2^32.
#define LEARN_UNIT_SHIFT 20

#define OFFLOAD_VNIS 8192

MAP(ARRAY, offload_vnis, OFFLOAD_VNIS, 0, __u32, struct offload_vni);

// Slot of a VNI to the index of its settings, in the lower 16 bits; 0 if its frames are not offloaded.
// With OFFLOAD_MOVING, flows come from the worker. Each goes there until the worker has sent all,
// which is then noted for the worker and the direction (OFFLOAD_MOVED, OFFLOAD_LEFT). When the worker
// gets a frame of a flow later, only OFFLOAD_LEFT stays. Then the flows in `followers` come from it, and
// no others.
#define OFFLOAD_MOVING 0x100000000
#define OFFLOAD_LEFT(worker, which) (1ULL << (16 + 8 * (which) + (worker)))
#define OFFLOAD_MOVED(worker, which) (1ULL << (40 + 8 * (which) + (worker)))

MAP(ARRAY, offload_slots, 4096, BPF_F_MMAPABLE, __u32, __u64);

// Remote VTEPs by their index in the snapshot: the address in network byte order in the lower half,
// its next hops in the upper half. Over IPv6, the lower half is the index of the address.
#define OFFLOAD_VTEPS 16384
#define OFFLOAD_SINGLE 0x80000000 // one next hop: the rest is its index, not that of a group
#define OFFLOAD_NO_HOPS 0

MAP(ARRAY, offload_vteps, OFFLOAD_VTEPS, BPF_F_MMAPABLE, __u32, __u64);

#define OFFLOAD_ADDRESSES 4096

struct offload_address {
	__u32 words[4]; // network byte order
};

MAP(ARRAY, offload_addresses, OFFLOAD_ADDRESSES, 0, __u32, struct offload_address);

MAP(HASH, offload_senders_ipv6, OFFLOAD_ADDRESSES, BPF_F_NO_PREALLOC, struct offload_address, __u32);

// Address of a remote VTEP in network byte order to its index.
MAP(HASH, offload_senders, OFFLOAD_VTEPS, BPF_F_NO_PREALLOC, __u32, __u32);

// The next hop of each bucket of a group (crates/path/src/group.rs).
#define BUCKETS 1024
#define OFFLOAD_GROUPS 512

struct offload_group {
	__u16 hops[1024];
};

MAP(ARRAY, offload_groups, OFFLOAD_GROUPS, 0, __u32, struct offload_group);

// A next hop.
struct offload_hop {
	__u32 ifindex; // 0 if its MAC address is unknown
	__u32 mtu;     // of the uplink, layer 3
	__u8 destination[6];
	__u8 source[6];
	__u16 path;       // index of its counters
	__u8 by_default;  // whether only the default route leads here
	__u8 impaired;    // whether its queueing discipline shapes or impairs packets
};

#define OFFLOAD_HOPS 4096

MAP(ARRAY, offload_hops, OFFLOAD_HOPS, 0, __u32, struct offload_hop);

// Frames and their bytes in both directions: of a VNI, by its slot, and of a remote VTEP, by its
// index. Each segment of a super-frame counts. Bytes are those of inner frames.
struct offload_traffic {
	__u64 sent;
	__u64 sent_bytes;
	__u64 received;
	__u64 received_bytes;
	__u64 by_default; // of `sent`
};

MAP(PERCPU_ARRAY, offload_vni_traffic, 4096, 0, __u32, struct offload_traffic);

MAP(PERCPU_ARRAY, offload_vtep_traffic, 4096, 0, __u32, struct offload_traffic);

// Frames sent to a next hop, by its path index, and their bytes with outer headers.
struct offload_path_traffic {
	__u64 frames;
	__u64 bytes;
};

#define OFFLOAD_PATHS 1024

MAP(PERCPU_ARRAY, offload_path_traffic, OFFLOAD_PATHS, 0, __u32, struct offload_path_traffic);

// What a program does with a frame that it does not offload: the worker gets it.
#define TO_WORKER (-2)

// Whether the flows with a hash follow a frame to the worker.
#define FOLLOWERS 4096

MAP(ARRAY, followers, FOLLOWERS, 0, __u32, __u32);

// The entry of a frame's flow. All frames of a super-frame have one, also those of RoCE.
static ALWAYS_INLINE __u32 *follower_of(struct __sk_buff *skb, __u32 slot, __u32 which, __u32 start)
{
	__u32 index = mix(flow_of(skb, start, 0), slot << 1 | which) & (FOLLOWERS - 1);

	return bpf_map_lookup_elem(&followers, &index);
}

// Whether a flow still has to go to the worker, which may have earlier frames of it. `start`: offset
// of the frame's Ethernet header.
static FUNCTION int comes_from_worker(struct __sk_buff *skb, __u64 *entry, __u32 slot, __u32 which, __u32 start)
{
	struct backlog *backlog = backlog_of(TO_PUNT);
	__u32 worker = worker_of(skb, start) & (WORKERS - 1), *follows = 0;
	const __u64 moved = OFFLOAD_MOVED(worker, which), left = OFFLOAD_LEFT(worker, which);

	if (!entry || *entry & moved)
		return 0;
	if (*entry & left) {
		follows = follower_of(skb, slot, which, start);
		if (!follows)
			return 0;
	}
	if ((which == BRIDGE && (!backlog || backlog->arrived != backlog->queued)) || !has_sent_all(worker, which))
		return !follows || *follows;
	if (follows)
		*follows = 0;
	__sync_fetch_and_or(entry, moved | left);
	return 0;
}

// Leaves a frame to the worker although others of its flow are offloaded. Later frames of the flow
// follow it until the worker has sent all, so that they do not overtake it.
static FUNCTION int flow_to_worker(struct __sk_buff *skb, __u32 slot, __u32 which, __u32 start)
{
	__u64 *entry = bpf_map_lookup_elem(&offload_slots, &slot);
	__u32 worker = worker_of(skb, start) & (WORKERS - 1), *follows = follower_of(skb, slot, which, start);

	if (follows)
		*follows = 1;
	// First the frame is waited for. Otherwise another flow could find that the worker has sent all.
	note_waiting(worker, which);
	if (entry)
		__sync_fetch_and_and(entry, ~OFFLOAD_MOVED(worker, which));
	return TO_WORKER;
}

// Whether no flow of a slot in this direction has to go to the worker any more.
static ALWAYS_INLINE int all_moved(__u64 entry, __u32 which)
{
	const __u64 moved = (OFFLOAD_MOVED(workers, which) - 1) & ~(OFFLOAD_MOVED(0, which) - 1);

	return (entry & moved) == moved;
}

// The settings of a slot whose frames are offloaded; 0 if the worker gets the frame. `start`: offset
// of the frame's Ethernet header.
static ALWAYS_INLINE struct offload_vni *offload_of(struct __sk_buff *skb, __u32 slot, __u32 which, __u32 start)
{
	__u64 *entry = bpf_map_lookup_elem(&offload_slots, &slot);
	__u32 index;

	if (!entry)
		return 0;
	index = (__u16)*entry;
	if (!index ||
	    (*entry & OFFLOAD_MOVING && !all_moved(*entry, which) && comes_from_worker(skb, entry, slot, which, start)))
		return 0;
	return bpf_map_lookup_elem(&offload_vnis, &index);
}

// One's complement sum of five 32-bit words, folded to 16 bits.
static ALWAYS_INLINE __u16 fold_sum(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}
