// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// What the frames of a queue pair tell about its transport. Included by steering.bpf.c.
//
// The worker does the same (crates/path/src/record.rs); crates/bpf/tests/kernel/offload/pinned.rs
// compares the two. Nothing is locked: if two CPUs update a record at once, updates get lost, and the
// number of frames in `state` falls behind.

// What was sent of a queue pair. From `state` on, it is a record, which the worker updates too.
struct pinned_usage {
	__u64 bytes; // of inner frames
	__u64 frames;
	__u64 last;  // when the last frame was sent, CLOCK_MONOTONIC in nanoseconds
	__u64 state; // bits 0 to 23: highest PSN; then flags; upper half: number of recorded frames
	__u64 gaps;
	__u64 repeats;
	__u64 naks;
	__u64 cnps;
	__u64 marks;
};

#define RECORD_KNOWN (1 << 24) // a PSN was seen
#define RECORD_OPEN (1 << 25)  // it is that of a read request, which takes several

#define RC_READ_REQUEST 0x0c
#define RC_ACKNOWLEDGE 0x11
#define CONGESTION_NOTIFICATION 0x81
// Opcodes of requests of a reliable connection: sends, writes, reads and atomic operations.
#define RC_REQUESTS (0x1fff | 1 << 0x13 | 1 << 0x14 | 1 << 0x16 | 1 << 0x17)

#define PSN 0xffffff

// Base transport header and the first word behind it.
struct transport {
	__u8 opcode;
	__u8 flags[3];
	__u32 queue_pair;
	__u32 sequence;
	__u8 syndrome;
	__u8 rest;
};
#define TRANSPORT 14 // bytes

static ALWAYS_INLINE void record_packet(struct pinned_usage *record, const struct transport *packet, int is_marked)
{
	__u64 state = *(volatile __u64 *)&record->state, next = state + (1ULL << 32);
	__u32 opcode = packet->opcode, sequence = ntohl(packet->sequence) & PSN, ahead;

	if (is_marked)
		record->marks++;
	if (opcode == RC_ACKNOWLEDGE) {
		if ((packet->syndrome & 0x60) == 0x60)
			record->naks++;
	} else if (opcode == CONGESTION_NOTIFICATION) {
		record->cnps++;
	} else if (opcode < 32 && (RC_REQUESTS >> opcode & 1)) {
		ahead = (sequence - (__u32)state) & PSN;
		if ((state & RECORD_KNOWN) && (!ahead || ahead > PSN / 2)) {
			record->repeats++;
		} else {
			if ((state & RECORD_KNOWN) && !(state & RECORD_OPEN))
				record->gaps += ahead - 1;
			next = (next >> 32 << 32) | RECORD_KNOWN | sequence;
			if (opcode == RC_READ_REQUEST)
				next |= RECORD_OPEN;
		}
	}
	// The last step, so that of two updates at once one gets lost.
	*(volatile __u64 *)&record->state = next;
}

// Records a RoCE frame behind outer headers of this length. One with IPv6 extension headers is not
// recorded. There is at most one tag: the one that prepend() put in.
static ALWAYS_INLINE void record_frame(struct __sk_buff *skb, struct pinned_usage *record, __u32 outer)
{
	struct transport packet = {};
	__u32 at = outer + 12;
	__u16 ethertype;
	__u8 ip[10];

	if (!read_front(skb, &ethertype, at, 2))
		return;
	if (ethertype == htons(ETH_P_8021Q) || ethertype == htons(ETH_P_8021AD)) {
		at += 4;
		if (!read_front(skb, &ethertype, at, 2))
			return;
	}
	at += 2;
	if (!read_front(skb, ip, at, sizeof(ip)))
		return;
	if (ethertype == htons(ETH_P_IP)) {
		ip[1] &= 3;
		at += (ip[0] & 0x0f) * 4;
	} else if (ethertype == htons(ETH_P_IPV6) && ip[6] == IPPROTO_UDP) {
		ip[1] = ip[1] >> 4 & 3;
		at += sizeof(struct ipv6);
	} else {
		return;
	}
	at += sizeof(struct udp);
	// A frame that is too short for a syndrome has none.
	if (!read_front(skb, &packet, at, TRANSPORT) && !read_front(skb, &packet, at, BTH_LENGTH))
		return;
	record_packet(record, &packet, ip[1] == 3);
}
