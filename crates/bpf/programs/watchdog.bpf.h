// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// What workers and programs tell each other in shared memory: whether a worker hangs, whether it has
// sent everything, and whether the process lives. Included by steering.bpf.c.

// Each worker has WORDS words, a cache line of its own:
// - UNDERLAY, BRIDGE: since when frames wait in this punt pair, in nanoseconds of
//   CLOCK_MONOTONIC_COARSE; 0 if the worker has begun to read the punt pair since. The lowest bit
//   tells that the worker was woken.
// - IDLE: whether the worker has sent all that it has read. It clears this word before it clears
//   the others.
// Behind the workers follows a line of the process. Its first word is when a frame first came after
// the last heartbeat, or with CALLED when the programs asked for the next one.
enum { UNDERLAY = 0, BRIDGE = 1, IDLE = 2 };
#define WORDS 8
#define CALLED 1ULL
#define HEARTBEAT_WORD 64 // WORDS * WORKERS

MAP(ARRAY, waiting_since, WORDS * WORKERS + WORDS, BPF_F_MMAPABLE, __u32, __u64);

// Numbers of workers to wake, because they have not read a punt pair for too long. WORKERS asks the
// process for a heartbeat.
RING(calls, 4096);

// How long frames may wait before the kernel forwards further ones, in nanoseconds. Set before
// loading.
const volatile __u64 stall_limit = 200000000;

static ALWAYS_INLINE volatile __u64 *shared_word(__u32 index)
{
	return bpf_map_lookup_elem(&waiting_since, &index);
}

// Wakes a worker, or with WORKERS the process.
static ALWAYS_INLINE void call(__u32 who)
{
	bpf_ringbuf_output(&calls, &who, sizeof(who), 0);
}

// Whether a worker has not read a punt pair for too long: it hangs, or the process was stopped. The
// worker clears the entry whenever it reads, so an idle worker needs no timer. If the waiting
// frames were lost on their way, a sleeping worker does not notice. It is therefore woken once.
static ALWAYS_INLINE int stalled(__u32 worker, __u32 which)
{
	volatile __u64 *since = shared_word(WORDS * worker + which);
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
		call(worker);
	}
	return 1;
}

// Whether the process sends no heartbeat, so that the tables may be old. The programs ask for one a
// quarter of the limit after the last one. The process clears the entry, and needs no timer. `now`:
// CLOCK_MONOTONIC_COARSE in nanoseconds.
static ALWAYS_INLINE int heartbeat_expired(__u64 now)
{
	volatile __u64 *since = shared_word(HEARTBEAT_WORD);
	__u64 start;

	if (!since)
		return 0;
	start = *since;
	now &= ~CALLED;
	if (!start) {
		*since = now;
	} else if (start & CALLED) {
		return (__s64)(now - start) > (__s64)(stall_limit / 4 * 3);
	} else if ((__s64)(now - start) > (__s64)(stall_limit / 4)) {
		*since = now | CALLED;
		call(WORKERS);
	}
	return 0;
}

// Notes that a frame will be redirected to a punt pair. stalled() does the same.
static ALWAYS_INLINE void note_waiting(__u32 worker, __u32 which)
{
	volatile __u64 *since = shared_word(WORDS * worker + which);

	if (since && !*since)
		*since = bpf_ktime_get_coarse_ns() & ~CALLED;
}

// Marks a frame for a punt pair, so that the program at the far end knows the punt pair.
#define PUNT_MARK 0x76746500 // in skb->priority, with UNDERLAY or BRIDGE of the worker added

static ALWAYS_INLINE void mark_punt(struct __sk_buff *skb, __u32 worker, __u32 which)
{
	skb->priority = PUNT_MARK | (WORDS * worker + which);
}

// The worker's socket has received a frame. The worker may have read the punt pair between the
// frame's redirection and its arrival, so the time is noted again.
static ALWAYS_INLINE void note_arrival(struct __sk_buff *skb)
{
	volatile __u64 *since;

	if ((skb->priority & ~0xff) != PUNT_MARK)
		return;
	since = shared_word(skb->priority & 0xff);
	if (since && !*since)
		*since = bpf_ktime_get_coarse_ns() & ~CALLED;
}

// Whether the worker has sent all frames of this punt pair that have arrived there.
static ALWAYS_INLINE int has_sent_all(__u32 worker, __u32 which)
{
	volatile __u64 *since = shared_word(WORDS * worker + which), *idle = shared_word(WORDS * worker + IDLE);

	return since && idle && !*since && *idle;
}
