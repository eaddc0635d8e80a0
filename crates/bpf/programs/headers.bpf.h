// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//
// The outer headers. Included by steering.bpf.c.

// The outer headers. The IP header is at a multiple of four bytes, as in the kernel (NET_IP_ALIGN):
// the compiler accesses fields that are not aligned byte by byte.
#define ENCAPSULATION 50      // bytes: outer Ethernet, IPv4, UDP and VXLAN headers
#define ENCAPSULATION_IPV6 70 // with IPv6

struct headers {
	__u16 zero;
	__u8 destination[6];
	__u8 source[6];
	__u16 ethertype;
	struct ipv4 ip;
	struct udp udp;
	__u32 vxlan_flags;
	__u32 vni_reserved;
};

struct headers_ipv6 {
	__u16 zero;
	__u8 destination[6];
	__u8 source[6];
	__u16 ethertype;
	__u32 version_class_label;
	__u16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	__u32 addresses[8]; // source, destination
	struct udp udp;
	__u32 vxlan_flags;
	__u32 vni_reserved;
};
