//! The length of a ring's slots follows from the MTUs of the vxlan netdevs.

use fabric::netns::Namespace;
use root_test::root_test;
use test_frames::{IPV4, IPV6, Ipv6, UDP, VXLAN, ethernet, ipv6, tagged, udp_over_ipv6, vxlan};

const MTU: usize = 1560;
const VTEPS: ([u8; 16], [u8; 16]) = ([1; 16], [2; 16]);

#[root_test]
fn a_tagged_frame_of_the_mtu_fits_over_ipv6() {
    let inner = tagged(&ethernet([2; 6], [4; 6], IPV4, &[0; MTU]), 0x8100, 5);
    let datagram = udp_over_ipv6(VTEPS, (50_000, VXLAN), &vxlan(10, 0, &inner));
    let frame = ethernet([6; 6], [8; 6], IPV6, &ipv6(VTEPS, UDP, &datagram, Ipv6::default()));

    let leaf = Namespace::create(format!("vtp-mtu-{}", std::process::id())).unwrap();
    let netdev = "ip link add vx10 mtu 1560 type vxlan id 10 local 2001:db8::1 dstport 4789";
    leaf.run(&netdev.split(' ').collect::<Vec<_>>()).unwrap();
    assert_eq!(leaf.enter(worker::longest_frame).unwrap(), frame.len());
}
