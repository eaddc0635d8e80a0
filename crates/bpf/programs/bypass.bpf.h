// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// The bridge bypass: a host's frame for a known remote MAC address does not pass the bridge. The
// program at the host port encapsulates it (`offload`), or redirects it to the worker. Included by
// steering.bpf.c.

#define IPPROTO_ICMPV6 58

// A bridge port with the bypass, or that only watches for source addresses (key: its ifindex).
struct bypass_port {
	__u64 refresh;     // nanoseconds after which the bridge has to see a host's frame again, so that its entry does not age out
	__u32 frame_limit; // as in struct taken_netdev; 0 if the port only watches, permanently or for now
	__u16 slot;        // slot of the port's VNI
	__u16 number;      // index in port_counts
	__u32 delivery_limit; // longest frame that may be sent to the port past the bridge; 0 if none may
	__u32 zero;
};

MAP(HASH, bypass_ports, 4096, 0, __u32, struct bypass_port);

// Counters of a port's frames (key: its number).
struct port_counts {
	__u64 bypass;
	__u64 refreshed;
	__u64 passed;
	__u64 stalled;
};

MAP(PERCPU_ARRAY, port_counts, 4096, 0, __u32, struct port_counts);

// The location of a MAC address: behind a port (scope: its ifindex), or behind a remote VTEP
// (scope: the VNI's slot). A host has a further entry under its VNI's slot.
enum { LOCATION_PORT = 0, LOCATION_REMOTE = 1, LOCATION_HOST = 2 };

struct mac_location {
	__u32 scope;
	__u16 kind;
	__u8 mac[6];
};

struct location_entry {
	// A time of CLOCK_MONOTONIC_COARSE in nanoseconds. For an address behind a port: when the
	// bridge last saw a frame of it. For an address behind a VTEP: when a local port last
	// received a frame from it, which means that the host has moved here.
	__u64 seen;
	__u32 index; // LOCATION_REMOTE: the VTEP's index in the snapshot; LOCATION_HOST: the port's ifindex
	__u32 learned; // LOCATION_REMOTE: when the worker last got a frame from the address (LEARN_UNIT_SHIFT); 0: not yet
};

#define MOVE_WINDOW 1000000000LL // nanoseconds; within this time the control task learns of a real move
MAP(HASH, mac_locations, 131072, BPF_F_NO_PREALLOC, struct mac_location, struct location_entry);

// Whether this is a valid IPv4 packet without options that fills the frame. With br_netfilter the
// bridge drops packets with a wrong version, length or checksum, and trims bytes behind a packet
// (br_validate_ipv4(), net/bridge/br_netfilter_hooks.c).
static ALWAYS_INLINE int is_plain_ipv4(struct __sk_buff *skb)
{
	const __u8 *frame = linear(skb, 14 + 20);
	const __u32 *words = (const __u32 *)(frame + 14);
	__u64 sum = 0;

	if (!frame)
		return 0;
	// Version, header length and packet length, which are in the first word.
	if ((words[0] & 0xff) != 0x45 || ntohs((__u16)(words[0] >> 16)) + 14U != skb->len)
		return 0;
#pragma unroll
	for (int i = 0; i < 5; i++)
		sum += words[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16) == 0xffff;
}

// Whether this is such an IPv4 packet, or an IPv6 packet of the right length (br_validate_ipv6())
// that is not neighbour discovery (RFC 4861: ICMPv6 types 133 to 137). Extension headers could hide
// neighbour discovery, so packets with those or with unknown protocols pass the bridge.
static ALWAYS_INLINE int may_bypass(struct __sk_buff *skb)
{
	struct {
		__u8 version;
		__u8 flow[3];
		__u16 length;
		__u8 next;
		__u8 hop_limit;
	} ip6;
	__u8 next, type;

	if (skb->protocol == htons(ETH_P_IP))
		return is_plain_ipv4(skb);
	if (skb->protocol != htons(ETH_P_IPV6) || bpf_skb_load_bytes(skb, 14, &ip6, sizeof(ip6)))
		return 0;
	if (ip6.version >> 4 != 6 || ntohs(ip6.length) + 14U + 40U != skb->len)
		return 0;
	next = ip6.next;
	if (next == IPPROTO_TCP || next == IPPROTO_UDP)
		return 1;
	return next == IPPROTO_ICMPV6 && !bpf_skb_load_bytes(skb, 14 + 40, &type, 1) && (type < 133 || type > 137);
}

// The two MAC addresses of a frame, read without calls.
static ALWAYS_INLINE int read_addresses(struct __sk_buff *skb, __u8 *destination, __u8 *source)
{
	const __u16 *words = (const __u16 *)(long)skb->data;

	if ((const __u8 *)(words + 6) > (const __u8 *)(long)skb->data_end)
		return 0;
#pragma unroll
	for (int i = 0; i < 3; i++) {
		((__u16 *)destination)[i] = words[i];
		((__u16 *)source)[i] = words[3 + i];
	}
	return 1;
}

// Host port ingress: encapsulates or redirects untagged IP frames. The bridge must have the source address on this
// port and the destination address behind the vxlan netdev. After each refresh interval, one frame
// of each host passes the bridge, which keeps the host's entry. That path is longer, so further
// frames take the same backlog until it has arrived.
SEC("classifier") int steer_port(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct bypass_port *port = bpf_map_lookup_elem(&bypass_ports, &ifindex);
	struct mac_location destination = {.kind = LOCATION_REMOTE}, source = {.kind = LOCATION_PORT};
	struct port_counts *counts;
	struct backlog *backlog;
	struct location_entry *remote, *host;
	__u64 now;
	__u32 number, worker;
	int offloaded;

	if (!port)
		return PASS;
	number = port->number;
	counts = bpf_map_lookup_elem(&port_counts, &number);
	if (!counts)
		return PASS;
	destination.scope = port->slot;
	source.scope = ifindex;
	if (!read_addresses(skb, destination.mac, source.mac))
		return PASS;
	now = bpf_ktime_get_coarse_ns();
	// Group addresses are never in the map.
	remote = bpf_map_lookup_elem(&mac_locations, &destination);
	if (!remote || (__s64)(now - remote->seen) < MOVE_WINDOW || skb->vlan_present || !may_bypass(skb) || !fits(skb, port->frame_limit))
		goto pass;
	host = bpf_map_lookup_elem(&mac_locations, &source);
	if (!host)
		goto pass;
	if (now - host->seen >= port->refresh) {
		host->seen = now;
		counts->refreshed += 1;
		return PASS;
	}
	offloaded = encapsulate(skb, port->slot, remote->index, now);
	if (offloaded == PASS)
		goto pass;
	if (offloaded != TO_WORKER) {
		counts->bypass += 1;
		return offloaded;
	}
	worker = worker_of(skb, 0);
	if (stalled(worker, BRIDGE)) {
		counts->stalled += 1;
		return PASS;
	}
	if (bpf_skb_vlan_push(skb, htons(ETH_P_8021AD), port->slot)) {
		count(COUNT_OFFLOAD_FAILED);
		return drop_frame(skb, DROPPED_FAILED, DROPPED_OF_HOST, port->slot);
	}
	counts->bypass += 1;
	backlog = backlog_of(TO_PUNT);
	// A super-frame takes the backlog, where kinds that the worker could not read are split.
	if (!backlog || backlog->arrived != backlog->queued || skb->gso_size)
		return redirect_by_backlog(skb, worker, backlog);
	mark_punt(skb, worker, BRIDGE);
	return redirect_past_backlog(skb, near_end(bridge_punts, worker));
pass:
	// The bridge learns from this frame that its sender is on this port. Frames to that address
	// have to pass the bridge from now on, before the control task is notified.
	source.kind = LOCATION_REMOTE;
	source.scope = port->slot;
	remote = bpf_map_lookup_elem(&mac_locations, &source);
	if (remote)
		remote->seen = now;
	if (port->frame_limit)
		counts->passed += 1;
	return PASS;
}

// Encapsulates what the bridge sends to a vxlan netdev, if the VTEP is known.
static ALWAYS_INLINE int encapsulate_known(struct __sk_buff *skb, __u32 slot)
{
	struct mac_location destination = {.scope = slot, .kind = LOCATION_REMOTE};
	struct location_entry *remote;

	if (bpf_skb_load_bytes(skb, 0, destination.mac, 6))
		return TO_WORKER;
	remote = bpf_map_lookup_elem(&mac_locations, &destination);
	return remote ? encapsulate(skb, slot, remote->index, bpf_ktime_get_coarse_ns()) : TO_WORKER;
}
