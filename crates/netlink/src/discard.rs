//! Discards UDP packets before the IP stack, with an nftables chain at the ingress of an interface
//! (`include/uapi/linux/netfilter/nf_tables.h`).

use std::net::Ipv4Addr;

use crate::encode::{REQUEST, Request, put};
use crate::error::Error;
use crate::request::{ACKNOWLEDGE, Requests, terminated};

/// `NFNL_MSG_BATCH_BEGIN` and `NFNL_MSG_BATCH_END`: the kernel applies what is between them as one.
const BEGIN: u16 = 0x10;
const END: u16 = 0x11;
/// `NFNL_SUBSYS_NFTABLES`.
const NFTABLES: u16 = 10;
const NEW_TABLE: u16 = NFTABLES << 8;
const NEW_CHAIN: u16 = NFTABLES << 8 | 3;
const NEW_RULE: u16 = NFTABLES << 8 | 6;
/// `NLM_F_CREATE`.
const CREATE: u16 = 0x400;
/// `NFT_TABLE_F_OWNER`: the kernel removes the table when the socket is closed (Linux 5.12).
const OWNER: u32 = 2;
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// `NFPROTO_NETDEV`.
const NETDEV: u8 = 5;
/// `NFT_REG_VERDICT` and `NFT_REG_1`.
const VERDICT: u32 = 0;
const REGISTER: u32 = 1;
/// `NFT_META_L4PROTO`.
const PROTOCOL: u32 = 16;
const UDP: u8 = 17;
/// `NFT_PAYLOAD_NETWORK_HEADER` and `NFT_PAYLOAD_TRANSPORT_HEADER`.
const IP_HEADER: u32 = 1;
const UDP_HEADER: u32 = 2;
/// The name of the chain.
const CHAIN: &str = "ingress";

/// While this value exists, the IP stack does not receive UDP packets to one address and port that
/// arrive at an interface. Packet sockets receive them before. The kernel also ends it if the
/// process is killed.
#[derive(Debug)]
pub struct Discard {
    _owner: Requests,
}

impl Discard {
    /// Begins to discard, on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel refuses: it has no nftables or no tables with an owner, CAP_NET_ADMIN is
    /// missing (`EPERM`), or another process discards on this interface (`EPERM`).
    pub fn udp(interface: &str, to: Ipv4Addr, port: u16) -> Result<Self, Error> {
        let mut owner = Requests::open_netfilter()?;
        let table = terminated(&format!("discard-{interface}"));
        let hook = [(1, number(0)), (2, number(0)), (3, terminated(interface))];
        // NFT_DATA_VERDICT: NF_DROP
        let drop = nested(2, &[nested(2, &[(1, number(0))])]);
        let rule = [
            expression("meta", &[(1, number(REGISTER)), (2, number(PROTOCOL))]),
            equals(&[UDP]),
            load(UDP_HEADER, 2, 2),
            equals(&port.to_be_bytes()),
            load(IP_HEADER, 16, 4),
            equals(&to.octets()),
            expression("immediate", &[(1, number(VERDICT)), drop]),
        ];
        let table_of = |kind, flags| message(kind, flags).put(1, &table);
        let batch = Request::new(BEGIN, REQUEST, &resource(0, NFTABLES))
            .then(table_of(NEW_TABLE, CREATE).put(2, &OWNER.to_be_bytes()))
            .then(
                table_of(NEW_CHAIN, CREATE)
                    .put(3, &terminated(CHAIN))
                    .put(NESTED | 4, &attributes(&hook))
                    .put(7, &terminated("filter")),
            )
            .then(
                table_of(NEW_RULE, CREATE | ACKNOWLEDGE)
                    .put(2, &terminated(CHAIN))
                    .put(NESTED | 4, &attributes(&rule)),
            )
            .then(Request::new(END, REQUEST, &resource(0, NFTABLES)));
        owner.collect("discard UDP packets at an interface", &batch, |_| ())?;
        Ok(Self { _owner: owner })
    }
}

/// An attribute: its type and its payload.
type Attribute = (u16, Vec<u8>);

fn attributes(all: &[Attribute]) -> Vec<u8> {
    let mut bytes = Vec::new();
    all.iter().for_each(|(kind, payload)| put(&mut bytes, *kind, payload));
    bytes
}

fn nested(kind: u16, content: &[Attribute]) -> Attribute {
    (NESTED | kind, attributes(content))
}

fn number(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// An expression of a rule (`NFTA_LIST_ELEM`).
fn expression(name: &str, content: &[Attribute]) -> Attribute {
    nested(1, &[(1, terminated(name)), nested(2, content)])
}

/// Loads bytes of a header into the register.
fn load(header: u32, offset: u32, length: u32) -> Attribute {
    let content = [REGISTER, header, offset, length].map(number);
    expression("payload", &(1..).zip(content).collect::<Vec<_>>())
}

/// Ends the rule unless the register has this value (`NFT_CMP_EQ`).
fn equals(value: &[u8]) -> Attribute {
    expression("cmp", &[(1, number(REGISTER)), (2, number(0)), nested(3, &[(1, value.to_vec())])])
}

fn message(kind: u16, flags: u16) -> Request {
    Request::new(kind, REQUEST | flags, &resource(NETDEV, 0))
}

/// `struct nfgenmsg`: family, version, resource.
const fn resource(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}
