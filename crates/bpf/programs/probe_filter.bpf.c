// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// Decides which packets reach the probing thread. It is the filter of the packet sockets of probes
// (crates/vtepd/src/probing/sockets.rs), which see every IP packet that the leaf receives itself.
//
// The thread checks a tag, which takes it some microseconds for each packet. So what comes from
// outside of the underlay, or from nobody that it knows, ends here, and each sender has a limit.
// Addresses can be forged; the tokens of two VTEPs cannot, unless somebody sees their packets
// (crates/pathmap/src/message.rs). So packets with a token have limits of their own, which those
// without one do not use up.
#include "common.bpf.h"

// Results of a socket filter: how much of the packet is read. The buffer of the thread has as much.
#define DROP 0
#define TAKE 2048

#define IPPROTO_ICMP 1
#define IPPROTO_ICMPV6 58
// The first byte of errors about an expired time to live (RFC 792) or hop limit (RFC 4443).
#define ICMP_TIME_EXCEEDED 11
#define ICMPV6_TIME_EXCEEDED 3

#define ETHERNET 14
#define IPV4 20
#define IPV6 40
#define UDP 8
#define VXLAN 8
#define ICMP 8
// Where addresses are in the headers of IPv4 and IPv6.
#define IPV4_SOURCE 12
#define IPV6_SOURCE 8
// VNI and inner EtherType of messages (crates/pathmap/src/packet.rs), and where the token is in one.
#define VNI 0xffffff
#define ETHERTYPE 0x88b5
#define TOKEN 24

// Outer addresses of packets that arrive, in network byte order. IPv4 addresses are mapped (RFC 4291
// section 2.5.5.2).
struct ends {
	__u32 from[4];
	__u32 to[4];
};

// A limit of the generic cell rate algorithm (ITU-T I.371): a packet moves `next` on by an interval,
// and is refused if that is too far ahead of the present. CPUs that count at the same time can let
// one packet more pass each.
struct limit {
	__u64 next;
};

// A VTEP, by its address and the local one. The tokens are in network byte order: those that both
// have told, and the one with which they begin.
struct sender {
	struct limit with_token;
	struct limit with_opening;
	struct limit without;
	__u32 tokens[3];
	__u32 opening;
};

MAP(HASH, probe_uplinks, 1024, BPF_F_NO_PREALLOC, __u32, __u32);

MAP(HASH, probe_senders, 65536, BPF_F_NO_PREALLOC, struct ends, struct sender);

// Limits for all senders together: messages without a token, and ICMP errors.
enum { ALL_WITHOUT = 0, ALL_ERRORS = 1 };

MAP(ARRAY, probe_limits, 2, 0, __u32, struct limit);

// Packets that were refused, by reason.
enum { NOT_FROM_UPLINK = 0, NOT_FROM_VTEP = 1, OVER_LIMIT = 2 };

MAP(PERCPU_ARRAY, probe_refused, 3, 0, __u32, __u64);

// Nanoseconds for each packet of the limits: 256 with the opening token in a second from one sender,
// and 256 without any, 8,192 of these from all, and 1,024 errors. vtepd traces with at most 200 packets
// in a second.
#define INTERVAL_OPENING 3906250
#define INTERVAL_WITHOUT 3906250
#define INTERVAL_ALL_WITHOUT 122070
#define INTERVAL_ERRORS 976562
// The same with a token that was told. User space sets it.
volatile const __u64 interval_with_token = 62500;
// So many nanoseconds of packets may come at once.
#define AT_ONCE 1000000000

static ALWAYS_INLINE int refuse(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&probe_refused, &reason);

	if (count)
		*count += 1;
	return DROP;
}

// Whether the limit lets one more packet pass.
static ALWAYS_INLINE int passes(struct limit *limit, __u64 interval, __u64 now)
{
	__u64 at = limit->next;

	if (at < now)
		at = now;
	if (at - now > AT_ONCE)
		return 0;
	limit->next = at + interval;
	return 1;
}

// Loads source and destination from an IP header. The source is `from`, or `to` if that is swapped.
static ALWAYS_INLINE int load_ends(struct __sk_buff *skb, __u32 ip, int is_ipv4, int swapped, struct ends *ends)
{
	__u32 *first = swapped ? ends->to : ends->from, *second = swapped ? ends->from : ends->to;
	__u32 addresses[8];

	if (is_ipv4) {
		if (bpf_skb_load_bytes(skb, ip + IPV4_SOURCE, addresses, 8))
			return -1;
		first[0] = first[1] = second[0] = second[1] = 0;
		first[2] = second[2] = ntohl(0xffff);
		first[3] = addresses[0];
		second[3] = addresses[1];
		return 0;
	}
	if (bpf_skb_load_bytes(skb, ip + IPV6_SOURCE, addresses, 32))
		return -1;
#pragma unroll
	for (int word = 0; word < 4; word++) {
		first[word] = addresses[word];
		second[word] = addresses[4 + word];
	}
	return 0;
}

static ALWAYS_INLINE int is_message(struct __sk_buff *skb, __u32 transport)
{
	__u32 vni;
	__u16 ethertype;

	return !bpf_skb_load_bytes(skb, transport + UDP + 4, &vni, sizeof(vni)) && ntohl(vni) >> 8 == VNI &&
	       !bpf_skb_load_bytes(skb, transport + UDP + VXLAN + 12, &ethertype, sizeof(ethertype)) &&
	       ntohs(ethertype) == ETHERTYPE;
}

static ALWAYS_INLINE int is_from_uplink(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;

	// Broadcasts, and what is for others, have another type (eth_type_trans()).
	return skb->pkt_type == PACKET_HOST && bpf_map_lookup_elem(&probe_uplinks, &ifindex);
}

// A router's error about a trace: that is for a VTEP, and from here.
static ALWAYS_INLINE int filter_error(struct __sk_buff *skb, __u32 transport, int is_ipv4, __u64 now)
{
	__u32 all = ALL_ERRORS;
	struct limit *limit;
	struct ends ends;

	if (load_ends(skb, transport + ICMP, is_ipv4, 1, &ends))
		return DROP;
	if (!bpf_map_lookup_elem(&probe_senders, &ends))
		return DROP;
	limit = bpf_map_lookup_elem(&probe_limits, &all);
	return limit && passes(limit, INTERVAL_ERRORS, now) ? TAKE : refuse(OVER_LIMIT);
}

static ALWAYS_INLINE int filter_message(struct __sk_buff *skb, __u32 transport, int is_ipv4, __u64 now)
{
	__u32 all = ALL_WITHOUT, token;
	struct sender *sender;
	struct limit *limit;
	struct ends ends;

	if (load_ends(skb, ETHERNET, is_ipv4, 0, &ends))
		return DROP;
	sender = bpf_map_lookup_elem(&probe_senders, &ends);
	if (!sender)
		return refuse(NOT_FROM_VTEP);
	if (bpf_skb_load_bytes(skb, transport + UDP + VXLAN + ETHERNET + TOKEN, &token, sizeof(token)))
		return DROP;
	// At first, the others are the same.
	if (token == sender->opening)
		return passes(&sender->with_opening, INTERVAL_OPENING, now) ? TAKE : refuse(OVER_LIMIT);
	if (token == sender->tokens[0] || token == sender->tokens[1] || token == sender->tokens[2])
		return passes(&sender->with_token, interval_with_token, now) ? TAKE : refuse(OVER_LIMIT);
	// The limit of this sender comes first: it alone is to blame for what is beyond.
	if (!passes(&sender->without, INTERVAL_WITHOUT, now))
		return refuse(OVER_LIMIT);
	limit = bpf_map_lookup_elem(&probe_limits, &all);
	return limit && passes(limit, INTERVAL_ALL_WITHOUT, now) ? TAKE : refuse(OVER_LIMIT);
}

SEC("socket") int filter_probes(struct __sk_buff *skb)
{
	__u8 first, protocol, type;
	__u32 transport;
	__u16 fragment;
	int is_ipv4 = skb->protocol == ntohs(ETH_P_IP);

	if (is_ipv4) {
		if (bpf_skb_load_bytes(skb, ETHERNET, &first, 1) || bpf_skb_load_bytes(skb, ETHERNET + 9, &protocol, 1) ||
		    bpf_skb_load_bytes(skb, ETHERNET + 6, &fragment, 2))
			return DROP;
		if (ntohs(fragment) & 0x3fff)
			return DROP;
		transport = ETHERNET + (first & 15) * 4;
	} else {
		if (bpf_skb_load_bytes(skb, ETHERNET + 6, &protocol, 1))
			return DROP;
		transport = ETHERNET + IPV6;
	}
	if (protocol == IPPROTO_UDP) {
		if (!is_message(skb, transport))
			return DROP;
		return is_from_uplink(skb) ? filter_message(skb, transport, is_ipv4, bpf_ktime_get_ns())
					   : refuse(NOT_FROM_UPLINK);
	}
	if (protocol != (is_ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6) || bpf_skb_load_bytes(skb, transport, &type, 1) ||
	    type != (is_ipv4 ? ICMP_TIME_EXCEEDED : ICMPV6_TIME_EXCEEDED))
		return DROP;
	// Errors about other packets are nothing special.
	return is_from_uplink(skb) ? filter_error(skb, transport, is_ipv4, bpf_ktime_get_ns()) : DROP;
}

char _license[] SEC("license") = "Dual MIT/GPL";
