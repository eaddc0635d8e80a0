//! The running kernel's answers to dump requests, as seeds of the netlink decoder.

use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;
use std::os::fd::AsRawFd;

/// Dump requests: links, addresses, routes, neighbours, rules, qdiscs, filters, next hops, VNI
/// filters.
const DUMPS: [u16; 9] = [18, 22, 26, 30, 34, 38, 46, 106, 118];
/// `AF_UNSPEC`, `AF_INET`, `AF_BRIDGE`.
const FAMILIES: [u8; 3] = [0, 2, 7];

/// Commands that configure a leaf in a namespace of its own.
const LEAF: &str = "\
ip link set lo up
ip addr add 10.0.0.1/32 dev lo
ip link add up1 type veth peer name up2
ip addr add 10.1.0.1/31 dev up1
ip link set up1 up
ip link set up2 up
ip route add 10.0.0.2/32 nexthop via 10.1.0.0 dev up1 weight 2 nexthop via 10.1.0.0 dev up1 onlink
ip route add blackhole 10.9.0.0/16
ip nexthop add id 7 via 10.1.0.0 dev up1
ip nexthop add id 8 group 7
ip nexthop add id 9 via 10.0.0.2 fdb
ip neigh add 10.1.0.0 lladdr 02:00:00:00:01:00 dev up1
ip link add br5 type bridge vlan_filtering 0
ip link add vx5 type vxlan id 5 local 10.0.0.1 dstport 4789 nolearning ttl 9 tos inherit df set
ip link add vx6 type vxlan id 6 group 239.1.1.1 dev up1 dstport 4789 ageing 100 srcport 50000 60000
ip link add vx7 type vxlan external dstport 4790
ip link set vx5 master br5 up
ip link set vx6 up
ip link set br5 up
bridge fdb append 00:00:00:00:00:00 dev vx5 dst 10.0.0.2
bridge fdb append 02:00:00:00:02:00 dev vx5 dst 10.0.0.2 static
bridge link set dev vx5 neigh_suppress on isolated on
ip rule add from 10.3.0.0/16 lookup 100
tc qdisc add dev up1 clsact
tc filter add dev up1 ingress protocol ip u32 match ip dst 10.0.0.1 action pass";

/// The answers to all dump requests, each message alone and each datagram as a whole.
pub fn dumps() -> Vec<Vec<u8>> {
    if !nix::unistd::Uid::effective().is_root() {
        return Vec::new();
    }
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    for line in LEAF.lines() {
        let mut words = line.split(' ');
        // A command that this kernel does not support yields no seeds.
        let _ = Command::new(words.next().unwrap()).args(words).output();
    }
    let requests = DUMPS.iter().flat_map(|kind| FAMILIES.map(|family| (*kind, family)));
    let mut seeds: Vec<_> = requests.flat_map(|(kind, family)| dump(kind, family)).collect();
    seeds.sort();
    seeds.dedup();
    seeds
}

fn dump(kind: u16, family: u8) -> Vec<Vec<u8>> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )
    .unwrap();
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, 200_000)).unwrap();
    // Flags: request, dump. The body is at least as long as that of a link's message, which is the
    // longest.
    let mut request = 32u32.to_ne_bytes().to_vec();
    request.extend(kind.to_ne_bytes());
    request.extend(0x301u16.to_ne_bytes());
    request.extend([1, 0, 0, 0, 0, 0, 0, 0, family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let length = request.len() as u32;
    request[..4].copy_from_slice(&length.to_ne_bytes());
    send(socket.as_raw_fd(), &request, MsgFlags::empty()).unwrap();
    let mut answers = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length) = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
        let mut rest = &buffer[..length];
        if rest.len() <= 4096 {
            answers.push(rest.to_vec());
        }
        let mut done = length == 0;
        while let Some(&[a, b, c, d, e, f, ..]) = rest.first_chunk::<16>() {
            let length = (u32::from_ne_bytes([a, b, c, d]) as usize).clamp(16, rest.len());
            // `NLMSG_ERROR`, `NLMSG_DONE`
            done |= matches!(u16::from_ne_bytes([e, f]), 2 | 3);
            answers.push(rest[..length].to_vec());
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        if done {
            break;
        }
    }
    answers
}
