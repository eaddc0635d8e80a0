//! Adds and removes nftables rules over netlink. The tests need no `nft` program, and a change has
//! taken effect when the function returns.

use std::os::fd::AsRawFd;

use ::fabric::Namespace;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto,
    socket,
};

/// `NFPROTO_INET`.
pub const INET: u8 = 1;
/// `NFPROTO_BRIDGE`.
pub const BRIDGE: u8 = 7;

/// `NLM_F_CREATE | NLM_F_ACK`.
const CREATE: u16 = 0x404;
/// `NLM_F_ACK`.
const ACKNOWLEDGE: u16 = 4;
const TABLE: &[u8] = b"story\0";
const CHAIN: &[u8] = b"forward\0";

/// Adds a table of this family with a chain at the forward hook. The chain accepts everything.
pub fn add_chain(namespace: &Namespace, family: u8) {
    // NF_BR_FORWARD, NF_INET_FORWARD; priority 0
    let hook = [attribute(1, &2u32.to_be_bytes()), attribute(2, &[0; 4])].concat();
    let chain = [
        attribute(1, TABLE),
        attribute(3, CHAIN),
        attribute(NESTED | 4, &hook),
        attribute(7, b"filter\0"),
    ];
    change(
        namespace,
        &[(0, CREATE, family, attribute(1, TABLE)), (3, CREATE, family, chain.concat())],
    );
}

/// Adds a rule that drops everything to the chain.
pub fn drop_everything(namespace: &Namespace, family: u8) {
    // An `immediate` expression that puts the verdict NF_DROP (0) into the verdict register (0).
    let verdict = attribute(NESTED | 2, &attribute(1, &[0; 4]));
    let data = [attribute(1, &[0; 4]), attribute(NESTED | 2, &verdict)].concat();
    let expression = [attribute(1, b"immediate\0"), attribute(NESTED | 2, &data)].concat();
    let expressions = attribute(NESTED | 1, &expression);
    let rule =
        [attribute(1, TABLE), attribute(2, CHAIN), attribute(NESTED | 4, &expressions)].concat();
    // NLM_F_APPEND
    change(namespace, &[(6, CREATE | 0x800, family, rule)]);
}

/// Deletes all rules of the chain.
pub fn delete_rules(namespace: &Namespace, family: u8) {
    change(
        namespace,
        &[(8, ACKNOWLEDGE, family, [attribute(1, TABLE), attribute(2, CHAIN)].concat())],
    );
}

/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;

fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + payload.len()).unwrap();
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), payload].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + body.len()).unwrap();
    [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8], body].concat()
}

/// Sends one batch of messages: kind, flags in addition to `NLM_F_REQUEST`, family, attributes.
fn change(namespace: &Namespace, messages: &[(u16, u16, u8, Vec<u8>)]) {
    // NFNL_MSG_BATCH_BEGIN and _END, for NFNL_SUBSYS_NFTABLES.
    let nftables = [0, 0, 0, 10];
    let mut batch = message(0x10, 1, &nftables);
    for (kind, flags, family, attributes) in messages {
        batch.extend(message(
            0xa00 | kind,
            1 | flags,
            &[&[*family, 0, 0, 0][..], attributes].concat(),
        ));
    }
    batch.extend(message(0x11, 1, &nftables));
    let answer = namespace.enter(|| {
        let protocol = SockProtocol::NetlinkNetFilter;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
            .unwrap();
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).unwrap();
        sendto(fd.as_raw_fd(), &batch, &NetlinkAddr::new(0, 0), MsgFlags::empty()).unwrap();
        let mut answer = vec![0; 4096];
        let length = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
        answer.truncate(length);
        answer
    });
    let answer = answer.unwrap();
    // NLMSG_ERROR, 0
    assert_eq!((&answer[4..6], &answer[16..20]), (&[2, 0][..], &[0; 4][..]), "{messages:02x?}");
}
