// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// The steering programs: which frames vtepd's worker gets. A frame is decided about once: what is
// redirected here is vtepd's, what is passed is the kernel's.
//
// Only the entry programs are attached. Each tail-calls through `kill_switch`: filling it attaches
// all hooks together, emptying it detaches them, and the kernel empties it when the last file
// descriptor of it closes (kernel/bpf/arraymap.c, bpf_fd_array_map_clear on map_release_uref),
// which is when vtepd dies.
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UINT(name, value) int (*name)[value]
#define TYPE(name, type) type *name

#define htons(x) __builtin_bswap16(x)
#define ntohs(x) __builtin_bswap16(x)
#define htonl(x) __builtin_bswap32(x)
#define ntohl(x) __builtin_bswap32(x)
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "only little-endian machines have been thought through"
#endif

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*bpf_tail_call)(void *ctx, void *map, __u32 index) = (void *)BPF_FUNC_tail_call;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*bpf_redirect_peer)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect_peer;
static long (*bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) = (void *)BPF_FUNC_skb_load_bytes;
static long (*bpf_skb_store_bytes)(void *skb, __u32 offset, const void *from, __u32 len, __u64 flags) = (void *)BPF_FUNC_skb_store_bytes;
static long (*bpf_skb_vlan_push)(void *skb, __u16 proto, __u16 tci) = (void *)BPF_FUNC_skb_vlan_push;
static __u64 (*bpf_ktime_get_coarse_ns)(void) = (void *)BPF_FUNC_ktime_get_coarse_ns;
static long (*bpf_ringbuf_output)(void *ring, void *data, __u64 size, __u64 flags) = (void *)BPF_FUNC_ringbuf_output;
static long (*bpf_skb_adjust_room)(void *skb, __s32 len_diff, __u32 mode, __u64 flags) = (void *)BPF_FUNC_skb_adjust_room;
static long (*bpf_check_mtu)(void *skb, __u32 ifindex, __u32 *mtu_len, __s32 len_diff, __u64 flags) = (void *)BPF_FUNC_check_mtu;
static long (*bpf_set_hash_invalid)(void *skb) = (void *)BPF_FUNC_set_hash_invalid;
static long (*bpf_skb_vlan_pop)(void *skb) = (void *)BPF_FUNC_skb_vlan_pop;

// include/uapi/linux/pkt_cls.h. "Unspecified" lets the next filter, and then the kernel, go on
// (TCX_NEXT is the same).
#define PASS (-1)
#define DROP 2

#define PACKET_HOST 0 // include/uapi/linux/if_packet.h
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17

// The places of `kill_switch`.
enum { HOOK_UPLINK = 0, HOOK_VXLAN = 1, HOOK_PUNT = 2, HOOK_PORT = 3, HOOK_ACCESS = 4, HOOK_CHOOSE_PORT = 5 };

struct {
	UINT(type, BPF_MAP_TYPE_PROG_ARRAY);
	UINT(max_entries, 6);
	TYPE(key, __u32);
	TYPE(value, __u32);
} kill_switch SEC(".maps");

// A tunnel end that vtepd terminates, and the number of the worker that gets what is for it; beyond
// all workers where flows are dealt over them. Address and port in network order, VNI in host
// order.
struct tunnel_end {
	__u32 local;
	__u32 vni;
	__u16 port;
	__u16 zero;
};

struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(max_entries, 4096);
	TYPE(key, struct tunnel_end);
	TYPE(value, __u32);
} taken_tunnels SEC(".maps");

// Uplinks with a reverse path filter (source 0), and the sources whose packets certainly pass it
// there, in network order. All others are left to the kernel, which knows.
struct arrival {
	__u32 ifindex;
	__u32 source;
};

struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(max_entries, 65536);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	TYPE(key, struct arrival);
	TYPE(value, __u8);
} checked_sources SEC(".maps");

// Whether there is any such uplink.
struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, __u32);
} sources_are_checked SEC(".maps");

// What to do with a frame that the bridge sends to a vxlan netdev (key: its ifindex).
struct taken_netdev {
	__u32 frame_limit; // longest Ethernet frame, with header and tags, that fits the underlay once encapsulated
	__u32 slot;        // 802.1ad VLAN identifier that numbers the VNI on the bridge punt pair
};

struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(max_entries, 4096);
	TYPE(key, __u32);
	TYPE(value, struct taken_netdev);
} taken_netdevs SEC(".maps");

// Slot to ifindex of the vxlan netdev; 0 is none.
struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, 4096);
	TYPE(key, __u32);
	TYPE(value, __u32);
} slots SEC(".maps");

// What the programs decided, so that frames which never reach the worker are counted as well.
enum {
	COUNT_UPLINK_REDIRECTED = 0,
	COUNT_VXLAN_REDIRECTED,
	COUNT_VXLAN_TOO_BIG,
	COUNT_PUNT_RETURNED,
	COUNT_PUNT_UNKNOWN_SLOT,
	COUNT_UPLINK_STALLED,
	COUNT_VXLAN_STALLED,
	COUNT_PUNT_DELIVERED,
	COUNT_PUNT_UNDELIVERABLE,
	COUNT_UPLINK_TUNNELLED,
	COUNT_UPLINK_UNTUNNELLED,
	COUNT_PORT_CHOSEN,
	COUNT_PORT_KEPT,
	COUNTS,
};

struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, COUNTS);
	TYPE(key, __u32);
	TYPE(value, __u64);
} counts SEC(".maps");

#include "workers.bpf.h"

// Whether frames from uplinks pass the punt pair's transmit queue, which cuts super-frames that the
// worker's socket could not read (Linux before 6.2: UDP); set before loading. All of them, or those
// that need no cutting would overtake the others.
const volatile __u32 through_queue = 0;

// Since when frames wait in a punt pair (key: which of its worker's, in that worker's line of the
// cache): nanoseconds of CLOCK_MONOTONIC_COARSE; 0 where the worker has looked since. The worker
// writes it too, by mmap(2). The lowest bit says that the worker was called.
enum { UNDERLAY = 0, BRIDGE = 1 };
#define WORDS 8
#define CALLED 1ULL

struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, WORDS * WORKERS);
	UINT(map_flags, BPF_F_MMAPABLE);
	TYPE(key, __u32);
	TYPE(value, __u64);
} waiting_since SEC(".maps");

// Calls to workers: the numbers of those that have left a punt pair alone for too long.
struct {
	UINT(type, BPF_MAP_TYPE_RINGBUF);
	UINT(max_entries, 4096);
} calls SEC(".maps");

// How long frames may wait before the kernel forwards what follows, in nanoseconds; set before
// loading.
const volatile __u64 stall_limit = 200000000;

// Whether a worker has left frames in this punt pair alone for too long: it hangs, or the process
// was stopped. An idle worker has nothing to do for this. Should the frames have been lost on their
// way, it does not know of them: so it is called, once.
static ALWAYS_INLINE int stalled(__u32 worker, __u32 which)
{
	__u32 punt = WORDS * worker + which;
	volatile __u64 *since = bpf_map_lookup_elem(&waiting_since, &punt);
	__u64 now, start;

	if (!since)
		return 0;
	start = *since;
	now = bpf_ktime_get_coarse_ns() & ~CALLED;
	if (!start) {
		*since = now;
		return 0;
	}
	if ((__s64)(now - start) <= (__s64)stall_limit)
		return 0;
	if (!(start & CALLED)) {
		*since = start | CALLED;
		bpf_ringbuf_output(&calls, &worker, sizeof(worker), 0);
	}
	return 1;
}

static ALWAYS_INLINE void count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&counts, &what);
	if (n)
		*n += 1;
}

// A tail call whose index the verifier cannot know. With a known one the JIT writes a direct jump,
// and emptying the kill switch then patches one jump after the other, each with a grace period
// (arch/x86/net/bpf_jit_comp.c, bpf_arch_poke_desc_update): the second hook follows the first 16 ms
// later, measured. Read from the map at run time, all hooks let go together.
static ALWAYS_INLINE void steer(struct __sk_buff *skb, __u32 hook)
{
	bpf_tail_call(skb, &kill_switch, hook + (skb->len >> 31));
}

SEC("classifier") int vtepd_uplink(struct __sk_buff *skb)
{
	steer(skb, HOOK_UPLINK);
	return PASS;
}

SEC("classifier") int vtepd_vxlan(struct __sk_buff *skb)
{
	steer(skb, HOOK_VXLAN);
	return PASS;
}

SEC("classifier") int vtepd_port(struct __sk_buff *skb)
{
	steer(skb, HOOK_PORT);
	return PASS;
}

SEC("classifier") int vtepd_access(struct __sk_buff *skb)
{
	steer(skb, HOOK_ACCESS);
	return PASS;
}

// The near end of the bridge punt pair speaks to nobody but us: what is not redirected must not
// reach the leaf's stack.
SEC("classifier") int vtepd_punt(struct __sk_buff *skb)
{
	steer(skb, HOOK_PUNT);
	return DROP;
}

// Frames reach the far end of the bridge punt pair in two ways: by its transmit queue and this
// CPU's backlog, or at once, which spares both. Those at once would overtake those in the backlog;
// so each of these bears a number (in tc_index, which nobody else needs there), and none goes at
// once but where the last number of this CPU has arrived. Where the backlog lost that, the next one
// to go there makes up for it.
struct passage {
	__u16 queued;
	__u16 arrived;
};

struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, struct passage);
} passage SEC(".maps");

static ALWAYS_INLINE struct passage *this_passage(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&passage, &zero);
}

// 0 is no number.
static ALWAYS_INLINE __u16 next_number(struct passage *passage)
{
	passage->queued += passage->queued == 0xffff ? 2 : 1;
	return passage->queued;
}

// Into a bridge punt pair, by the backlog.
static ALWAYS_INLINE int by_backlog(struct __sk_buff *skb, __u32 worker, struct passage *passage)
{
	if (!passage)
		return DROP;
	skb->tc_index = next_number(passage);
	// The punt pair may cut it, and the first piece does not say that the last has arrived; what comes
	// next does.
	if (skb->gso_size)
		next_number(passage);
	return bpf_redirect(near_end(bridge_punts, worker), 0);
}

// To the far end of a punt pair, past its transmit queue and the backlog. A ring notes when each
// frame came, and tpacket_rcv() reads the clock for those that do not say so: some 35 ns, measured.
// Nobody looks at that time.
static ALWAYS_INLINE int at_once(struct __sk_buff *skb, __u32 punt)
{
	skb->tc_index = 0;
	skb->tstamp = 1;
	return bpf_redirect_peer(punt, 0);
}

// The far ends: AF_PACKET has seen the frame before this runs; no stack may see it after.
SEC("classifier") int vtepd_far_end(struct __sk_buff *skb)
{
	struct passage *passage = this_passage();

	if (passage && skb->tc_index)
		passage->arrived = skb->tc_index;
	return DROP;
}

struct headers {
	__u8 destination[6];
	__u8 source[6];
	__u16 ethertype;
	struct ipv4 ip;
	__u16 source_port;
	__u16 destination_port;
	__u16 udp_length;
	__u16 udp_checksum;
	__u32 vxlan_flags;
	__u32 vni_reserved;
} __attribute__((packed));

// An Ethernet header, a tag and its EtherType. The punt pair cannot carry an inner frame of less
// than 16 bytes (crates/pipeline/src/decapsulate.rs), and of the rest only the kernel's receive
// path knows which it drops: those that end within a tag (skb_vlan_untag(), net/core/skbuff.c). So
// kernel VXLAN gets all that are shorter.
#define SHORTEST_INNER 20

// Whether a packet that an uplink received passes its reverse path filter for certain.
static ALWAYS_INLINE int source_passes(struct __sk_buff *skb, __u32 source)
{
	struct arrival arrival = {.ifindex = skb->ifindex};
	__u32 zero = 0, *any = bpf_map_lookup_elem(&sources_are_checked, &zero);

	if (!any || !*any || !bpf_map_lookup_elem(&checked_sources, &arrival))
		return 1;
	arrival.source = source;
	return source && bpf_map_lookup_elem(&checked_sources, &arrival) != 0;
}

// Uplink ingress: a whole VXLAN frame for a tunnel end of ours. Odd flags, options and fragments
// stay the kernel's.
SEC("classifier") int steer_uplink(struct __sk_buff *skb)
{
	struct headers h;
	struct tunnel_end end = {};
	__u32 total, ifindex, worker, *serves;

	if (skb->protocol != htons(ETH_P_IP) || skb->vlan_present || skb->pkt_type != PACKET_HOST)
		return PASS;
	if (bpf_skb_load_bytes(skb, 0, &h, sizeof(h)))
		return PASS;
	if (h.ip.version_ihl != 0x45 || h.ip.protocol != IPPROTO_UDP || (h.ip.fragment & htons(FRAGMENT)))
		return PASS;
	if (h.vxlan_flags != htonl(0x08000000) || (ntohl(h.vni_reserved) & 0xff))
		return PASS;
	total = ntohs(h.ip.total_length);
	if (total + 14 > skb->len || ntohs(h.udp_length) < 16 || ntohs(h.udp_length) + 20U > total)
		return PASS;
	if (ntohs(h.udp_length) < 16 + SHORTEST_INNER)
		return PASS;
	end.local = h.ip.addresses[1];
	end.vni = ntohl(h.vni_reserved) >> 8;
	end.port = h.destination_port;
	serves = bpf_map_lookup_elem(&taken_tunnels, &end);
	if (!serves || !source_passes(skb, h.ip.addresses[0]))
		return PASS;
	worker = *serves < WORKERS ? *serves : worker_of(skb, sizeof(h));
	if (stalled(worker, UNDERLAY)) {
		count(COUNT_UPLINK_STALLED);
		return PASS;
	}
	count(COUNT_UPLINK_REDIRECTED);
	ifindex = near_end(underlay_punts, worker);
	if (!through_queue)
		return at_once(skb, ifindex);
	skb->tc_index = 0;
	return bpf_redirect(ifindex, 0);
}

// Length of one segment of a GSO frame: its headers and gso_size; 0 where the headers are not
// understood.
static ALWAYS_INLINE __u32 segment_length(struct __sk_buff *skb)
{
	__u32 offset;
	__u16 ethertype;
	__u8 byte, protocol;

	offset = behind_tags(skb, 0, &ethertype);
	if (!offset)
		return 0;
	if (ethertype == htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, offset, &byte, 1) || bpf_skb_load_bytes(skb, offset + 9, &protocol, 1))
			return 0;
		offset += (byte & 0x0f) * 4;
	} else if (ethertype == htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, offset + 6, &protocol, 1))
			return 0;
		offset += 40;
	} else {
		return 0;
	}
	if (protocol == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, offset + 12, &byte, 1))
			return 0;
		offset += (byte >> 4) * 4;
	} else if (protocol == IPPROTO_UDP) {
		offset += 8;
	} else {
		return 0;
	}
	return offset + skb->gso_size;
}

// Whether a frame, or each segment of a GSO frame, is at most this long.
static ALWAYS_INLINE int fits(struct __sk_buff *skb, __u32 frame_limit)
{
	__u32 length = skb->gso_size ? segment_length(skb) : skb->len;

	if (skb->vlan_present)
		length += 4;
	// 65,549: the longest IPv4 packet behind an Ethernet header; larger GSO frames (BIG TCP) stay the
	// kernel's.
	return length <= frame_limit && !(skb->gso_size && length == 0) && skb->len <= 65549;
}

#include "chosen_port.bpf.h"

// vxlan netdev egress: what the bridge sends to the overlay, unless it would not fit the underlay.
// Frames that the kernel encapsulates get a source port of ours.
SEC("classifier") int steer_vxlan(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex, worker;
	struct taken_netdev *taken = bpf_map_lookup_elem(&taken_netdevs, &ifindex);

	if (!taken)
		goto kernel;
	if (!fits(skb, taken->frame_limit)) {
		count(COUNT_VXLAN_TOO_BIG);
		goto kernel;
	}
	worker = worker_of(skb, 0);
	if (stalled(worker, BRIDGE)) {
		count(COUNT_VXLAN_STALLED);
		goto kernel;
	}
	if (bpf_skb_vlan_push(skb, htons(ETH_P_8021AD), taken->slot))
		return DROP;
	count(COUNT_VXLAN_REDIRECTED);
	return by_backlog(skb, worker, this_passage());
kernel:
	steer(skb, HOOK_CHOOSE_PORT);
	return PASS;
}

#include "bypass.bpf.h"

// An access port's ingress: AF_PACKET has seen the frame before this runs; the stack is not to see
// it after.
SEC("classifier") int steer_access(struct __sk_buff *skb)
{
	return DROP;
}

// The way on for what is in a bundle (crates/pipeline/src/bundle.rs): the wrapper's source address.
// The destination address says which.
enum { WAY_BRIDGE = 1, WAY_PORT = 2 };
#define WRAPPER ((__s32)__builtin_offsetof(struct headers, vxlan_flags)) // Ethernet, IPv4 and UDP header

// Into the vxlan netdev of a slot, as if the kernel had decapsulated the frame.
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

// A piece of a bundle. What is removed is the wrapper but for its Ethernet header, and the Ethernet
// header of the frame, which is the same.
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
	// A hash of the wrapper's addresses says nothing of the frame.
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

// Bridge punt pair, near end ingress: from the worker, by tag or wrapper.
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

// The mark of encapsulated TCP super-frames from the worker (crates/ports/src/outbox.rs).
#define WHOLE 0x76746570

// Uplink egress: AF_PACKET has no words for a TCP super-frame inside a tunnel, so the worker sends
// one that is described as if there were no tunnel. Here the outer headers are taken off and put on
// again, this time by the helper that tells the kernel what they are: it then carries the
// super-frame whole, and whoever cuts it cuts it right (__skb_udp_tunnel_segment(),
// net/ipv4/udp_offload.c). Not behind the kill switch: no other frame bears the mark, and such a
// frame must not go on as it is.
SEC("classifier") int vtepd_tunnel(struct __sk_buff *skb)
{
	struct {
		struct headers outer;
		__u8 destination[6];
		__u8 source[6];
		__u16 ethertype;
	} __attribute__((packed)) h;
	const __s32 behind = sizeof(h) - 14;

	if (skb->mark != WHOLE)
		return PASS;
	skb->mark = 0;
	if (bpf_skb_load_bytes(skb, 0, &h, sizeof(h)) ||
	    bpf_skb_adjust_room(skb, -behind, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) ||
	    bpf_skb_adjust_room(skb, behind, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
					BPF_F_ADJ_ROOM_ENCAP_L2(14) | BPF_F_ADJ_ROOM_ENCAP_L2_ETH)) {
		count(COUNT_UPLINK_UNTUNNELLED);
		return DROP;
	}
	// It says what is inside, for the kernel to take the super-frame from the worker.
	h.outer.ethertype = htons(ETH_P_IP);
	if (bpf_skb_store_bytes(skb, 0, &h, sizeof(h), 0)) {
		count(COUNT_UPLINK_UNTUNNELLED);
		return DROP;
	}
	count(COUNT_UPLINK_TUNNELLED);
	return PASS;
}

// The kernel lets only programs under a licence compatible with the GPL call bpf_check_mtu().
char _license[] SEC("license") = "Dual MIT/GPL";
