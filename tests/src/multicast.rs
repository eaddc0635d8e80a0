//! Multicast entries (MDB) of vxlan netdevs, over netlink, because the iproute2 of many
//! distributions does not support them.

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use ::fabric::Namespace;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto,
    socket,
};

fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + payload.len()).unwrap();
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), payload].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Does `bridge mdb add dev NETDEV port NETDEV grp GROUP dst VTEP permanent`, or `del`. Returns
/// false if the kernel refuses, as kernels before Linux 6.4 do.
pub fn set_entry(
    namespace: &Namespace,
    netdev: &str,
    (group, vtep): (Ipv4Addr, Ipv4Addr),
    there: bool,
) -> bool {
    let index = crate::lab::ifindex(namespace, netdev).to_ne_bytes();
    // RTM_NEWMDB with NLM_F_CREATE and NLM_F_EXCL, or RTM_DELMDB; NLM_F_REQUEST and NLM_F_ACK.
    let (kind, flags): (u16, u16) = if there { (84, 0x605) } else { (85, 5) };
    // `struct br_mdb_entry`: interface, MDB_PERMANENT, flags, VLAN, address, protocol.
    let entry =
        [&index[..], &[1, 0, 0, 0], &group.octets(), &[0; 12], &0x0800u16.to_be_bytes(), &[0; 2]]
            .concat();
    // MDBA_SET_ENTRY; MDBA_SET_ENTRY_ATTRS with MDBE_ATTR_DST.
    let attributes =
        [attribute(1, &entry), attribute(0x8002, &attribute(5, &vtep.octets()))].concat();
    // `struct br_port_msg`: AF_BRIDGE, interface.
    let body = [&[7, 0, 0, 0][..], &index, &attributes].concat();
    let length = u32::try_from(16 + body.len()).unwrap();
    let request =
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8], &body]
            .concat();
    let answer = namespace.enter(|| {
        let protocol = SockProtocol::NetlinkRoute;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
            .unwrap();
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).unwrap();
        sendto(fd.as_raw_fd(), &request, &NetlinkAddr::new(0, 0), MsgFlags::empty()).unwrap();
        let mut answer = vec![0; 4096];
        let length = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
        answer.truncate(length);
        answer
    });
    // NLMSG_ERROR, 0
    answer.unwrap().get(16..20) == Some(&[0; 4][..])
}
