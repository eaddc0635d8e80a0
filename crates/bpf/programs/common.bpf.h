// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// What all programs are written with: sections, maps, helpers of the kernel, and numbers of headers.
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define ALWAYS_INLINE inline __attribute__((always_inline))
// A function with a stack frame of its own. If it is not static, it is verified once for all calls.
#define FUNCTION __attribute__((noinline))

// Definitions of maps, which the loader reads from types (BTF).
#define UINT(name, value) int (*name)[value]
#define TYPE(name, type) type *name
#define MAP(kind, name, entries, flags, k, v) \
	struct { \
		UINT(type, BPF_MAP_TYPE_##kind); \
		UINT(max_entries, entries); \
		UINT(map_flags, flags); \
		TYPE(key, k); \
		TYPE(value, v); \
	} name SEC(".maps")
#define RING(name, bytes) \
	struct { \
		UINT(type, BPF_MAP_TYPE_RINGBUF); \
		UINT(max_entries, bytes); \
	} name SEC(".maps")

#define htons(x) __builtin_bswap16(x)
#define ntohs(x) __builtin_bswap16(x)
#define htonl(x) __builtin_bswap32(x)
#define ntohl(x) __builtin_bswap32(x)
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "only little-endian machines have been thought through"
#endif

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static long (*bpf_tail_call)(void *ctx, void *map, __u32 index) = (void *)BPF_FUNC_tail_call;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*bpf_redirect_peer)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect_peer;
static long (*bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) = (void *)BPF_FUNC_skb_load_bytes;
static long (*bpf_skb_store_bytes)(void *skb, __u32 offset, const void *from, __u32 len, __u64 flags) = (void *)BPF_FUNC_skb_store_bytes;
static long (*bpf_skb_vlan_push)(void *skb, __u16 proto, __u16 tci) = (void *)BPF_FUNC_skb_vlan_push;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u64 (*bpf_ktime_get_coarse_ns)(void) = (void *)BPF_FUNC_ktime_get_coarse_ns;
static long (*bpf_ringbuf_output)(void *ring, void *data, __u64 size, __u64 flags) = (void *)BPF_FUNC_ringbuf_output;
static void *(*bpf_ringbuf_reserve)(void *ring, __u64 size, __u64 flags) = (void *)BPF_FUNC_ringbuf_reserve;
static void (*bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)BPF_FUNC_ringbuf_submit;
static void (*bpf_ringbuf_discard)(void *data, __u64 flags) = (void *)BPF_FUNC_ringbuf_discard;
static long (*bpf_skb_adjust_room)(void *skb, __s32 len_diff, __u32 mode, __u64 flags) = (void *)BPF_FUNC_skb_adjust_room;
static long (*bpf_l3_csum_replace)(void *skb, __u32 offset, __u64 from, __u64 to, __u64 size) = (void *)BPF_FUNC_l3_csum_replace;
static long (*bpf_l4_csum_replace)(void *skb, __u32 offset, __u64 from, __u64 to, __u64 flags) = (void *)BPF_FUNC_l4_csum_replace;
static __s64 (*bpf_csum_diff)(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __wsum seed) = (void *)BPF_FUNC_csum_diff;
static long (*bpf_csum_level)(void *skb, __u64 level) = (void *)BPF_FUNC_csum_level;
static long (*bpf_skb_pull_data)(void *skb, __u32 length) = (void *)BPF_FUNC_skb_pull_data;
static void (*bpf_set_hash_invalid)(void *skb) = (void *)BPF_FUNC_set_hash_invalid;
static long (*bpf_skb_change_type)(void *skb, __u32 type) = (void *)BPF_FUNC_skb_change_type;
static long (*bpf_skb_vlan_pop)(void *skb) = (void *)BPF_FUNC_skb_vlan_pop;

#define PACKET_HOST 0 // include/uapi/linux/if_packet.h
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IPPROTO_UDP 17
