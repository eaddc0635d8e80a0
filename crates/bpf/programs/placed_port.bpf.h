// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// The `kernel` datapath: the source ports of frames that kernel VXLAN encapsulates, and those of
// queue pairs that the policy `qp-pin` has placed. Included by steering.bpf.c.
//
// There is no worker that places a queue pair with its first frame. That frame has the port of
// `qp-hash`, and user space is told. It answers with an index (crates/bpf/src/placed.rs). From then
// on, the word with this index has the port, and the port to which the queue pair moves at its first
// frame after a pause. The program judges the pause, so that no frame comes in between.

// A queue pair in a vxlan netdev.
struct placed_key {
	__u64 hash; // of the flow, under the VNI's seed
	__u32 ifindex;
	__u32 zero;
};

#define PLACED 65536

// The index of a queue pair's word and counts; 0 while user space has not placed it.
MAP(HASH, placed_indices, PLACED, BPF_F_NO_PREALLOC, struct placed_key, __u32);

// From the lowest bit: the port (16 bits), the port to which it moves or 0 (16 bits), and the pause in
// microseconds that this needs (32 bits). User space sets the number of entries when it loads the
// programs.
MAP(ARRAY, placed_ports, 1, BPF_F_MMAPABLE, __u32, __u64);

// The first frame of a queue pair.
struct new_queue_pair {
	__u64 hash;
	__u32 ifindex;
	__u32 length;     // of the frame
	__u8 frame[128];  // its beginning
};

#define SHORTEST_ROCE (14 + 20 + 8 + BTH_LENGTH)

RING(new_queue_pairs, 262144);

// Tells user space of a queue pair, once. If there is no room, its next frame does so again.
static FUNCTION int tell_new(struct __sk_buff *skb, struct placed_key *key)
{
	__u32 none = 0, length = skb->len;
	struct new_queue_pair *new;

	if (length < SHORTEST_ROCE)
		return 0;
	if (length > sizeof(new->frame))
		length = sizeof(new->frame);
	new = bpf_ringbuf_reserve(&new_queue_pairs, sizeof(*new), 0);
	if (!new)
		return 0;
	new->hash = key->hash;
	new->ifindex = key->ifindex;
	new->length = skb->len;
	__builtin_memset(new->frame, 0, sizeof(new->frame));
	if (bpf_skb_load_bytes(skb, 0, new->frame, length) ||
	    bpf_map_update_elem(&placed_indices, key, &none, BPF_NOEXIST)) {
		bpf_ringbuf_discard(new, 0);
		return 0;
	}
	bpf_ringbuf_submit(new, 0);
	return 0;
}

// The port of a queue pair; 0 if it is not placed.
static FUNCTION __u32 placed_port(struct __sk_buff *skb, __u64 hash)
{
	struct placed_key key = {.hash = hash, .ifindex = skb->ifindex};
	__u32 *found = bpf_map_lookup_elem(&placed_indices, &key), index;
	struct pinned_usage *usage;
	__u64 *word, place, next, last, now;

	if (!found) {
		tell_new(skb, &key);
		return 0;
	}
	index = *found;
	if (!index)
		return 0;
	word = bpf_map_lookup_elem(&placed_ports, &index);
	usage = bpf_map_lookup_elem(&offload_usage, &index);
	if (!word || !usage)
		return 0;
	place = *(volatile __u64 *)word;
	next = place >> 16 & 0xffff;
	if (next) {
		// Another CPU may write a later time meanwhile.
		last = *(volatile __u64 *)&usage->last;
		now = bpf_ktime_get_ns();
		// User space may be changing the word. Then the frame keeps the port.
		if (now > last && now - last > (place >> 32) * 1000 &&
		    __sync_bool_compare_and_swap(word, place, next))
			place = next;
	}
	count_pinned(skb, index, skb->len + (skb->vlan_present ? 4 : 0), 0);
	return place & 0xffff;
}

// The settings of the VNI in the frame's tunnel metadata; 0 if it has none of its own.
static FUNCTION struct port_choice *own_choice(struct __sk_buff *skb)
{
	struct port_key key = {.ifindex = skb->ifindex};
	struct bpf_tunnel_key tunnel;

	if (bpf_skb_get_tunnel_key(skb, &tunnel, sizeof(tunnel), 0))
		return 0;
	key.vni = tunnel.tunnel_id;
	return bpf_map_lookup_elem(&port_choices, &key);
}

// vxlan netdev egress, for frames that kernel VXLAN encapsulates. Frames that are not IP keep the
// kernel's own hash.
static ALWAYS_INLINE int choose_port(struct __sk_buff *skb)
{
	struct port_key key = {.ifindex = skb->ifindex};
	struct port_choice *choice = bpf_map_lookup_elem(&port_choices, &key), *own;
	__u64 hash = 0;
	__u32 port, placed;
	int kind;

	if (!choice)
		return PASS;
	if (choice->external) {
		own = own_choice(skb);
		if (own)
			choice = own;
	}
	// With a mark, kernel VXLAN does not use its per-CPU route cache. It looks the route up for
	// each frame, with the frame's source port.
	if (choice->mark && !skb->mark)
		skb->mark = choice->mark;
	if (!choice->ports)
		return PASS;
	kind = flow_hash(skb, choice->state, 0, &hash);
	if (kind == NOT_IP) {
		count(COUNT_PORT_KEPT);
		return PASS;
	}
	port = port_of(choice, kind, hash);
	if (kind == ROCE && choice->pins) {
		placed = placed_port(skb, hash);
		if (placed >= choice->kernel_min && placed - choice->kernel_min < choice->kernel_width)
			port = placed;
	}
	bpf_set_hash(skb, hash_for(port, choice));
	count(COUNT_PORT_CHOSEN);
	return PASS;
}
