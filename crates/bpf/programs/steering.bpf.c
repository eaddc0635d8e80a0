// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// The steering programs decide who forwards a frame. They encapsulate and decapsulate it themselves
// (datapath `offload`), redirect it to a worker, or pass it to the kernel. For VNIs in the datapath
// `kernel`, they choose the source port.
//
// Only the entry programs are attached. Each one makes a tail call through `kill_switch`. Filling
// that map attaches all hooks together, and emptying it detaches them together. The kernel empties
// the map when its last file descriptor is closed, so also when vtepd dies (kernel/bpf/arraymap.c,
// bpf_fd_array_map_clear() on map_release_uref).
#include "common.bpf.h"

// include/uapi/linux/pkt_cls.h. TC_ACT_UNSPEC continues with the next filter, and then with the
// kernel (TCX_NEXT is the same value).
#define PASS (-1)
#define DROP 2

#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define IPPROTO_TCP 6

// The indices of `kill_switch`.
enum { HOOK_UPLINK = 0, HOOK_VXLAN = 1, HOOK_PUNT = 2, HOOK_PORT = 3, HOOK_ACCESS = 4 };

MAP(PROG_ARRAY, kill_switch, 5, 0, __u32, __u32);

// A tunnel endpoint whose packets vtepd decapsulates. Address and port are in network byte order,
// the VNI in host byte order. IPv4 addresses are mapped (RFC 4291 section 2.5.5.2).
struct tunnel_end {
	__u32 local[4];
	__u32 vni;
	__u16 port;
	__u16 zero;
};

struct taken_tunnel {
	__u32 worker;   // number of the worker that receives all packets; a number beyond all workers distributes the flows
	__u16 slot;     // of the VNI
	__u16 draining; // whether the VNI is given back: flows go to the kernel once the worker has sent all
	__u32 drained;  // the workers whose flows have gone, one bit each
};

MAP(HASH, taken_tunnels, 4096, 0, struct tunnel_end, struct taken_tunnel);

// Uplinks with a reverse path filter (source 0), and the sources whose packets pass it there, in
// network byte order. Packets of other sources are left to the kernel, which applies the filter.
struct checked_source {
	__u32 ifindex;
	__u32 source;
};

MAP(HASH, checked_sources, 65536, BPF_F_NO_PREALLOC, struct checked_source, __u8);

// Whether any uplink has a reverse path filter.
MAP(ARRAY, sources_are_checked, 1, 0, __u32, __u32);

// How to redirect a frame that the bridge sends to a vxlan netdev (key: the netdev's ifindex).
struct taken_netdev {
	__u32 frame_limit; // longest Ethernet frame, with header and tags, that fits the underlay once encapsulated
	__u16 slot;        // 802.1ad VLAN identifier of the VNI on the bridge punt pair
	__u16 draining;    // as in struct taken_tunnel
	__u32 drained;
};

MAP(HASH, taken_netdevs, 4096, 0, __u32, struct taken_netdev);

// Slot of a VNI to ifindex of its vxlan netdev; 0 for none.
MAP(ARRAY, slots, 4096, 0, __u32, __u32);

// Counters of the programs' decisions. They include frames that never reach a worker.
enum {
	COUNT_UPLINK_REDIRECTED = 0,
	COUNT_VXLAN_REDIRECTED,
	COUNT_VXLAN_TOO_BIG,
	COUNT_PUNT_RETURNED,
	COUNT_PUNT_UNKNOWN_SLOT,
	COUNT_UPLINK_STALLED,
	COUNT_VXLAN_STALLED,
	COUNT_PORT_CHOSEN,
	COUNT_PORT_KEPT,
	COUNT_VXLAN_OFFLOADED,
	COUNT_OFFLOAD_ENCAPSULATED,
	COUNT_OFFLOAD_DECAPSULATED,
	COUNT_OFFLOAD_FAILED,
	COUNT_OFFLOAD_COPIES,
	COUNT_OFFLOAD_BY_DEFAULT,
	COUNT_OFFLOAD_PAST_BRIDGE,
	COUNTS,
};

MAP(PERCPU_ARRAY, counts, COUNTS, 0, __u32, __u64);

#include "workers.bpf.h"
#include "watchdog.bpf.h"

static ALWAYS_INLINE void count_several(__u32 what, __u32 number)
{
	__u64 *n = bpf_map_lookup_elem(&counts, &what);
	if (n)
		*n += number;
}

static ALWAYS_INLINE void count(__u32 what)
{
	count_several(what, 1);
}

// A tail call with an index that the verifier does not know. With a constant index the JIT writes a
// direct jump. Emptying the map then patches one jump after another, each with an RCU grace period
// (bpf_arch_poke_desc_update(), arch/x86/net/bpf_jit_comp.c). With a variable index the program is
// looked up in the map at run time, and all hooks let go together. See
// docs/adr/0004-kill-switch-index-unknown-to-the-verifier.md.
static ALWAYS_INLINE void steer(struct __sk_buff *skb, __u32 hook)
{
	bpf_tail_call(skb, &kill_switch, hook + (skb->len >> 31));
}

// A frame that the splitter has given back to its uplink, where the kernel gets it (split.bpf.h). Its
// mark, in tc_index.
#define RETURNED 0xffff

SEC("classifier") int vtepd_uplink(struct __sk_buff *skb)
{
	if (skb->tc_index == RETURNED)
		skb->tc_index = 0;
	else
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

// The near end of the bridge punt pair: frames that are not redirected are dropped, so that none
// reaches the leaf's IP stack.
SEC("classifier") int vtepd_punt(struct __sk_buff *skb)
{
	steer(skb, HOOK_PUNT);
	return DROP;
}

// Frames reach the far end of the bridge punt pair in two ways: through its transmit queue and this
// CPU's backlog, or directly. A direct frame must not overtake one in the backlog. Each frame for
// the backlog therefore carries a sequence number in tc_index. A direct frame is only sent if the
// last number of this CPU has arrived. If the backlog dropped that frame, the next frame through
// the backlog corrects the state.
struct backlog {
	__u16 queued;
	__u16 arrived;
};

MAP(PERCPU_ARRAY, backlog, 3, 0, __u32, struct backlog);

// The same holds for frames that were decapsulated here, on their way into the ingress of vxlan
// netdevs (TO_BRIDGE), and for those on their way to the splitter (TO_SPLITTER).
enum { TO_PUNT = 0, TO_BRIDGE = 1, TO_SPLITTER = 2 };

static ALWAYS_INLINE struct backlog *backlog_of(__u32 which)
{
	return bpf_map_lookup_elem(&backlog, &which);
}

// Returns the next sequence number. 0 means "no number", and RETURNED is none.
static ALWAYS_INLINE __u16 next_number(struct backlog *backlog)
{
	backlog->queued = backlog->queued == RETURNED - 1 ? 1 : backlog->queued + 1;
	return backlog->queued;
}

// Numbers a frame for a transmit queue. Of a super-frame that is split there, all pieces carry its
// number. Skipping one keeps direct frames waiting until a later frame by the backlog has arrived.
static ALWAYS_INLINE void number_frame(struct __sk_buff *skb, struct backlog *backlog)
{
	skb->tc_index = next_number(backlog);
	if (skb->gso_size)
		next_number(backlog);
}

// Redirects into a bridge punt pair through its transmit queue and the backlog.
static ALWAYS_INLINE int redirect_by_backlog(struct __sk_buff *skb, __u32 worker, struct backlog *backlog)
{
	if (!backlog)
		return DROP;
	number_frame(skb, backlog);
	mark_punt(skb, worker, BRIDGE);
	return bpf_redirect(near_end(bridge_punts, worker), 0);
}

// Whether a flow of a VNI that is given back goes to the kernel: the worker has nothing of it left.
static ALWAYS_INLINE int is_drained(__u16 draining, __u32 *drained, __u32 worker, __u32 which)
{
	struct backlog *backlog = backlog_of(TO_PUNT);

	if (!draining)
		return 0;
	if (*drained & 1U << worker)
		return 1;
	if ((which == BRIDGE && (!backlog || backlog->arrived != backlog->queued)) || !has_sent_all(worker, which))
		return 0;
	__sync_fetch_and_or(drained, 1U << worker);
	return 1;
}

// Redirects directly to the far end of a punt pair, past its transmit queue and the backlog.
static ALWAYS_INLINE int redirect_past_backlog(struct __sk_buff *skb, __u32 punt)
{
	skb->tc_index = 0;
	return bpf_redirect_peer(punt, 0);
}

// The far ends: AF_PACKET has received the frame before this program runs. Dropping it keeps it
// from the IP stack.
SEC("classifier") int vtepd_far_end(struct __sk_buff *skb)
{
	struct backlog *backlog = backlog_of(TO_PUNT);

	if (backlog && skb->tc_index)
		backlog->arrived = skb->tc_index;
	note_arrival(skb);
	return DROP;
}

// vxlan netdev ingress: a frame that was decapsulated here has left the backlog.
SEC("classifier") int vtepd_arrived(struct __sk_buff *skb)
{
	struct backlog *backlog = backlog_of(TO_BRIDGE);

	if (backlog && skb->tc_index) {
		backlog->arrived = skb->tc_index;
		skb->tc_index = 0;
	}
	return PASS;
}

#include "headers.bpf.h"

// Bytes of an Ethernet header, a tag and its EtherType. Kernel VXLAN forwards all shorter inner
// frames. The punt pair cannot carry those of less than 16 bytes
// (crates/pipeline/src/decapsulate.rs). Of the others, the kernel's receive path drops those that
// end within a tag (skb_vlan_untag(), net/core/skbuff.c).
#define SHORTEST_INNER 20

// Whether a packet is known to pass the reverse path filter of the uplink that received it.
static ALWAYS_INLINE int source_passes(struct __sk_buff *skb, __u32 source)
{
	struct checked_source checked = {.ifindex = skb->ifindex};
	__u32 zero = 0, *any = bpf_map_lookup_elem(&sources_are_checked, &zero);

	if (!any || !*any || !bpf_map_lookup_elem(&checked_sources, &checked))
		return 1;
	checked.source = source;
	return source && bpf_map_lookup_elem(&checked_sources, &checked) != 0;
}

#define SECOND_SHIFT 30 // of CLOCK_MONOTONIC in nanoseconds to seconds, of 2^30 ns

#include "dropped.bpf.h"
#include "segments.bpf.h"
#include "chosen_port.bpf.h"
#include "offload.bpf.h"
#include "record.bpf.h"
#include "pinned.bpf.h"
#include "placed_port.bpf.h"
#include "checksum.bpf.h"
#include "encapsulate.bpf.h"
#include "bypass.bpf.h"
#include "split.bpf.h"
#include "decapsulate.bpf.h"
#include "uplink_ipv6.bpf.h"

// Uplink ingress: redirects whole VXLAN packets for the tunnel endpoints in the map. Packets with
// other flags, IP options, extension headers or fragments stay with the kernel.
static FUNCTION int steer_uplink_ipv4(struct __sk_buff *skb)
{
	struct headers h;
	struct tunnel_end end = {};
	struct taken_tunnel *taken;
	__u32 total;
	int offloaded;

	if (skb->vlan_present || skb->pkt_type != PACKET_HOST || !read_front(skb, h.destination, 0, ENCAPSULATION))
		return PASS;
	if (h.ip.version_ihl != 0x45 || h.ip.protocol != IPPROTO_UDP || (h.ip.fragment & htons(FRAGMENT)))
		return PASS;
	if (h.vxlan_flags != htonl(0x08000000) || (ntohl(h.vni_reserved) & 0xff))
		return PASS;
	total = ntohs(h.ip.total_length);
	if (total + 14 > skb->len || ntohs(h.udp.length) < 16 || ntohs(h.udp.length) + 20U > total)
		return PASS;
	if (ntohs(h.udp.length) < 16 + SHORTEST_INNER)
		return PASS;
	end.local[2] = htonl(0xffff);
	end.local[3] = h.ip.addresses[1];
	end.vni = ntohl(h.vni_reserved) >> 8;
	end.port = h.udp.destination;
	taken = bpf_map_lookup_elem(&taken_tunnels, &end);
	if (!taken || !source_passes(skb, h.ip.addresses[0]))
		return PASS;
	if (may_be_refused(h.ip.tos, h.udp.length) && is_refused(skb, taken->slot, ENCAPSULATION, h.ip.tos, h.udp.length))
		return PASS;
	if (has_to_split(skb))
		return split(skb);
	offloaded = decapsulate(skb, &h, 0, taken->slot);
	return offloaded != TO_WORKER ? offloaded : uplink_to_worker(skb, taken, ENCAPSULATION);
}

// IPv4 and IPv6 have a function each. In one function, the headers of both would need more than the
// 512 bytes of stack that a program has.
SEC("classifier") int steer_uplink(struct __sk_buff *skb)
{
	int result = PASS;

	if (skb->protocol == htons(ETH_P_IP))
		result = steer_uplink_ipv4(skb);
	else if (skb->protocol == htons(ETH_P_IPV6))
		result = steer_uplink_ipv6(skb);
	return skb->ifindex == splitter ? from_splitter(skb, result) : result;
}

// vxlan netdev egress: redirects what the bridge sends to the overlay, if it fits the underlay.
// Frames that the kernel encapsulates get a source port that vtepd chooses.
SEC("classifier") int steer_vxlan(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex, worker;
	struct taken_netdev *taken = bpf_map_lookup_elem(&taken_netdevs, &ifindex);
	int offloaded;

	if (!taken)
		goto kernel;
	if (!fits(skb, taken->frame_limit)) {
		count(COUNT_VXLAN_TOO_BIG);
		goto kernel;
	}
	offloaded = encapsulate_known(skb, taken->slot);
	if (offloaded == PASS)
		goto kernel;
	if (offloaded != TO_WORKER) {
		count(COUNT_VXLAN_OFFLOADED);
		return offloaded;
	}
	worker = worker_of(skb, 0);
	if (is_drained(taken->draining, &taken->drained, worker, BRIDGE))
		goto kernel;
	if (stalled(worker, BRIDGE)) {
		count(COUNT_VXLAN_STALLED);
		goto kernel;
	}
	if (bpf_skb_vlan_push(skb, htons(ETH_P_8021AD), taken->slot)) {
		count(COUNT_OFFLOAD_FAILED);
		return drop_frame(skb, DROPPED_FAILED, DROPPED_OF_HOST, taken->slot);
	}
	count(COUNT_VXLAN_REDIRECTED);
	return redirect_by_backlog(skb, worker, backlog_of(TO_PUNT));
kernel:
	return choose_port(skb);
}

#include "punt.bpf.h"

char _license[] SEC("license") = "Dual MIT/GPL";
