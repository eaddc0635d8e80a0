// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// The frames that programs drop. User space remembers the last ones with their headers
// (crates/bpf/src/dropped.rs). Included by steering.bpf.c.

#define DROPPED_HEADERS 128
// Frames of a reason that user space is told of in a second (of 2^30 ns). Further ones are only
// counted, so that a flood of them costs little.
#define DROPPED_A_SECOND 128

// Why, and who sent the frame.
enum { DROPPED_FAILED = 0, DROPPED_UNKNOWN_SLOT = 1, DROPPED_REASONS };
enum { DROPPED_OF_UPLINK = 0, DROPPED_OF_HOST = 1, DROPPED_OF_WORKER = 2 };

struct dropped_frame {
	__u64 time;   // CLOCK_MONOTONIC in nanoseconds
	__u32 length; // bytes of the frame, without outer headers
	__u16 slot;   // of the VNI
	__u8 reason;
	__u8 origin;
	__u8 headers[DROPPED_HEADERS]; // 0 behind the end of a shorter frame
};

RING(dropped_frames, 65536);

// Of each reason two words: the second (upper half) with the frames of it, and the frames of all that
// user space was not told of.
MAP(ARRAY, dropped_limits, 2 * DROPPED_REASONS, BPF_F_MMAPABLE, __u32, __u64);

// Whether user space is told of one more frame of this reason.
static ALWAYS_INLINE int is_within_limit(__u32 reason, __u64 now)
{
	__u32 index = 2 * reason, second = now >> SECOND_SHIFT;
	__u64 *word = bpf_map_lookup_elem(&dropped_limits, &index);

	if (!word)
		return 0;
	// CPUs that do this at once tell of a few more.
	if (*word >> 32 != second)
		*word = (__u64)second << 32;
	if ((__u32)*word >= DROPPED_A_SECOND)
		return 0;
	__sync_fetch_and_add(word, 1);
	return 1;
}

// A place for a frame, with room for its headers, or 0 if user space is not told of it.
static ALWAYS_INLINE struct dropped_frame *new_dropped(__u32 reason, __u32 origin, __u32 slot, __u32 length)
{
	__u64 now = bpf_ktime_get_ns();
	struct dropped_frame *dropped = 0;
	__u32 index = 2 * reason + 1;
	__u64 *untold;

	if (is_within_limit(reason, now))
		dropped = bpf_ringbuf_reserve(&dropped_frames, sizeof(*dropped), 0);
	if (!dropped) {
		untold = bpf_map_lookup_elem(&dropped_limits, &index);
		if (untold)
			__sync_fetch_and_add(untold, 1);
		return 0;
	}
	dropped->time = now;
	dropped->length = length;
	dropped->slot = slot;
	dropped->reason = reason;
	dropped->origin = origin;
	__builtin_memset(dropped->headers, 0, sizeof(dropped->headers));
	return dropped;
}

// Copies the frame from `offset` on, behind the first `from` bytes of the headers, which are constant.
static ALWAYS_INLINE void copy_headers(struct __sk_buff *skb, struct dropped_frame *dropped, __u32 from, __u32 offset)
{
	const __u32 most = DROPPED_HEADERS - from - 1;
	__u32 last = skb->len - offset - 1;

	if (skb->len <= offset)
		return;
	if (last > most)
		last = most;
	// The verifier has to see the bounds of this very register. Before Linux 6.8, it learns from no
	// comparison that a length is not 0.
	asm volatile("" : "+r"(last));
	if (last <= most)
		bpf_skb_load_bytes(skb, offset, dropped->headers + from, last + 1);
}

// The functions that drop are not static, so that each is verified once.

// Drops a frame that has not been changed.
FUNCTION int drop_frame(struct __sk_buff *skb, __u32 reason, __u32 origin, __u32 slot)
{
	struct dropped_frame *dropped = new_dropped(reason, origin, slot, skb->len);

	if (!dropped)
		return DROP;
	copy_headers(skb, dropped, 0, 0);
	bpf_ringbuf_submit(dropped, 0);
	return DROP;
}

// The inner Ethernet header of a frame that has been changed, with a tag if there is one.
struct kept_ethernet {
	__u8 bytes[14 + 4];
};

// Drops a host's frame that has room for `outer` bytes of headers before its IP header. `ethernet`: its
// Ethernet header, with `tag` bytes of a tag.
FUNCTION int drop_encapsulated(struct __sk_buff *skb, const struct kept_ethernet *ethernet, __u32 tag, __u32 outer,
			       __u32 slot)
{
	struct dropped_frame *dropped;

	// The verifier of a function that is not static asks for it.
	if (!ethernet)
		return DROP;
	dropped = new_dropped(DROPPED_FAILED, DROPPED_OF_HOST, slot, skb->len - outer);
	if (!dropped)
		return DROP;
	if (tag) {
		__builtin_memcpy(dropped->headers, ethernet->bytes, 18);
		copy_headers(skb, dropped, 18, outer + 18);
	} else {
		__builtin_memcpy(dropped->headers, ethernet->bytes, 14);
		copy_headers(skb, dropped, 14, outer + 14);
	}
	bpf_ringbuf_submit(dropped, 0);
	return DROP;
}

// Drops a packet of an uplink whose outer headers have been removed. `ethernet`: the inner Ethernet
// header. The outer headers are not told: keeping them would cost each packet.
FUNCTION int drop_decapsulated(struct __sk_buff *skb, const struct kept_ethernet *ethernet, __u32 slot)
{
	struct dropped_frame *dropped;

	if (!ethernet)
		return DROP;
	dropped = new_dropped(DROPPED_FAILED, DROPPED_OF_UPLINK, slot, skb->len);
	if (!dropped)
		return DROP;
	__builtin_memcpy(dropped->headers, ethernet->bytes, 14);
	copy_headers(skb, dropped, 14, 14);
	bpf_ringbuf_submit(dropped, 0);
	return DROP;
}
