//! Asking the kernel: dumps, and the few changes that this project makes.
//!
//! The kernel handles a request inside the `send` call, so these calls block for as long as the
//! kernel works and not for a peer. From asynchronous code go through [`crate::Kernel::request`].

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc::{EAFNOSUPPORT, EAGAIN, EINVAL, ENODEV, EOPNOTSUPP, ETIMEDOUT};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;
use wire::MacAddr;

use crate::attribute::Attributes;
use crate::decode::{AF_BRIDGE, AF_INET, AF_INET6, DecodeError, Envelope, Envelopes, ipsec};
use crate::encode::{Request, link_body, neighbour_body, put};
use crate::error::Error;
use crate::message::{Link, Message, Operation, Rule};
use crate::socket::{BUFFER, Socket, failed};

/// `NLM_F_REQUEST`.
pub(crate) const REQUEST: u16 = 0x01;
/// `NLM_F_ACK`.
pub(crate) const ACKNOWLEDGE: u16 = 0x04;
/// `NLM_F_DUMP_INTR`, of answers.
const INTERRUPTED: u16 = 0x10;
/// `NLM_F_DUMP`.
pub(crate) const DUMP: u16 = 0x300;
/// `NLM_F_REPLACE | NLM_F_CREATE`.
const CREATE_OR_REPLACE: u16 = 0x500;
/// `NLM_F_CREATE | NLM_F_EXCL`.
const CREATE_NEW: u16 = 0x600;
/// `NLM_F_ACK_TLVS`, of answers: attributes follow the error.
const EXPLAINED: u16 = 0x200;
/// `NLMSG_ERROR`, also the acknowledgement.
const ERROR: u16 = 2;
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// `IFF_UP`.
const UP: u32 = 0x1;
/// `IFF_NOARP`.
const NO_ARP: u32 = 0x80;
/// `NTF_USE`.
pub(crate) const USE: u8 = 0x01;
/// How often an interrupted dump is tried.
pub(crate) const ATTEMPTS: u32 = 32;
/// The kernel answers at once; this only keeps a lost answer from blocking for ever.
const PATIENCE_SECONDS: i64 = 30;

/// How an answer is read.
type Decode = fn(&Envelope<'_>) -> Result<Message, DecodeError>;

fn rtnetlink(envelope: &Envelope<'_>) -> Result<Message, DecodeError> {
    envelope.message()
}

/// What to dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dump {
    /// All links.
    Links,
    /// All IPv4 and IPv6 addresses.
    Addresses,
    /// All next-hop objects.
    NextHops,
    /// All IPv4 and IPv6 routes, of all tables.
    Routes,
    /// All IPv4 and IPv6 neighbours.
    Neighbours,
    /// All FDB entries: of bridges, and of vxlan netdevs themselves.
    Fdb,
    /// All rules of policy routing for IPv4. Where the kernel has no policy routing: those that it
    /// behaves as.
    Rules,
    /// All IPsec policies that may concern VXLAN over IPv4, and the default policy. Nothing where
    /// the kernel has no IPsec. [`Requests::dump`] opens a socket of its own for it, in the calling
    /// thread's namespace.
    IpsecPolicies,
    /// The multicast databases of bridges and of vxlan netdevs. Nothing where the kernel has none.
    Mdb,
    /// The values of `rp_filter` for IPv4.
    ReversePathFilters,
}

impl Dump {
    /// All of them, in an order in which what is referred to comes first.
    pub const ALL: [Self; 10] = [
        Self::Links,
        Self::Addresses,
        Self::NextHops,
        Self::Routes,
        Self::Neighbours,
        Self::Fdb,
        Self::Mdb,
        Self::ReversePathFilters,
        Self::Rules,
        Self::IpsecPolicies,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Links => "read links",
            Self::Addresses => "read addresses",
            Self::NextHops => "read next hops",
            Self::Routes => "read routes",
            Self::Neighbours => "read neighbours",
            Self::Fdb => "read FDB entries",
            Self::Rules => "read routing rules",
            Self::IpsecPolicies => "read IPsec policies",
            Self::Mdb => "read multicast databases",
            Self::ReversePathFilters => "read reverse path filters",
        }
    }

    /// `RTM_GET*` requests with the structure of each type and nothing but a family in it.
    fn requests(self) -> Vec<Request> {
        let get = |kind, size: usize, family| {
            let mut body = vec![0; size];
            body.iter_mut().take(1).for_each(|octet| *octet = family);
            Request::new(kind, REQUEST | DUMP, &body)
        };
        match self {
            Self::Links => vec![get(18, 16, 0)],
            Self::Addresses => vec![get(22, 8, AF_INET), get(22, 8, AF_INET6)],
            Self::NextHops => vec![get(106, 8, 0)],
            Self::Routes => vec![get(26, 12, AF_INET), get(26, 12, AF_INET6)],
            Self::Neighbours => vec![get(30, 12, AF_INET), get(30, 12, AF_INET6)],
            Self::Fdb => vec![get(30, 12, AF_BRIDGE)],
            Self::Rules => vec![get(34, 12, AF_INET)],
            // XFRM_MSG_GETPOLICY with struct xfrm_userpolicy_id.
            Self::IpsecPolicies => vec![get(0x15, 64, 0)],
            // struct br_port_msg
            Self::Mdb => vec![get(86, 8, AF_BRIDGE)],
            // struct netconfmsg, with its padding
            Self::ReversePathFilters => vec![get(82, 4, AF_INET)],
        }
    }
}

/// One end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct VethEnd<'a> {
    /// Interface name, 1 to 15 octets.
    pub name: &'a str,
    /// The namespace it is created in; the socket's own where absent.
    pub namespace: Option<BorrowedFd<'a>>,
    /// MAC address; a random one where absent.
    pub mac: Option<MacAddr>,
}

/// A veth pair to create.
#[derive(Debug, Clone, Copy)]
pub struct Veth<'a> {
    /// One end.
    pub near: VethEnd<'a>,
    /// The other end.
    pub far: VethEnd<'a>,
    /// MTU of both, in bytes, layer 3.
    pub mtu: u32,
    /// Length of both transmit queues, in frames.
    pub transmit_queue_length: u32,
}

/// What to change of a link; what is absent stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkChange {
    /// Administratively up.
    pub up: Option<bool>,
    /// Whether ARP and neighbour discovery are spoken.
    pub arp: Option<bool>,
    /// MTU in bytes, layer 3.
    pub mtu: Option<u32>,
    /// `IFLA_INET6_ADDR_GEN_MODE`: 0 from the MAC address, 1 none. It takes effect when the link
    /// comes up, so it is applied before `up`.
    pub ipv6_address_generation: Option<u8>,
}

/// A socket for requests, of the namespace in which it was opened.
#[derive(Debug)]
pub struct Requests {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Requests {
    /// Opens one in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Self::with(Socket::open(None)?)
    }

    /// Opens one to the packet filters instead.
    pub(crate) fn open_netfilter() -> Result<Self, Error> {
        Self::with(Socket::open_netfilter()?)
    }

    /// Opens one to the IPsec database instead; `None` where the kernel has none.
    ///
    /// # Errors
    /// When the socket cannot be opened for another reason.
    pub(crate) fn open_ipsec() -> Result<Option<Self>, Error> {
        match Socket::open_ipsec() {
            Ok(socket) => Self::with(socket).map(Some),
            Err(error) if error.is_missing_protocol() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn with(socket: Socket) -> Result<Self, Error> {
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(PATIENCE_SECONDS, 0))
            .map_err(|errno| failed("set the timeout")(errno.into()))?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(BUFFER) })
    }

    /// Everything of one kind. A dump that changes overtook is repeated.
    ///
    /// # Errors
    /// When the kernel refuses, or changes overtake every attempt.
    pub fn dump(&mut self, what: Dump) -> Result<Vec<Message>, Error> {
        match what {
            Dump::IpsecPolicies => Self::open_ipsec()?
                .map_or_else(|| Ok(Vec::new()), |mut ipsec| ipsec.ipsec_policies()),
            Dump::Rules => match self.dump_by(what, rtnetlink) {
                Err(error) if matches!(error.refusal(), Some(EAFNOSUPPORT | EOPNOTSUPP)) => {
                    Ok(Rule::defaults().map(|rule| Message::Rule(Operation::New, rule)).into())
                }
                rules => rules,
            },
            _ => self.dump_by(what, rtnetlink),
        }
    }

    /// [`Dump::IpsecPolicies`], from a socket to the IPsec database.
    pub(crate) fn ipsec_policies(&mut self) -> Result<Vec<Message>, Error> {
        let mut policies = self.dump_by(Dump::IpsecPolicies, ipsec::message)?;
        // XFRM_MSG_GETDEFAULT with struct xfrm_userpolicy_default; since Linux 5.14.
        let request = Request::new(0x28, REQUEST | ACKNOWLEDGE, &[0; 4]);
        match self.exchange_by("read the default IPsec policy", &request, ipsec::message) {
            Ok(default) => policies.extend(default.unwrap_or_default()),
            Err(error) if error.refusal() == Some(EINVAL) => {}
            Err(error) => return Err(error),
        }
        Ok(policies)
    }

    fn dump_by(&mut self, what: Dump, decode: Decode) -> Result<Vec<Message>, Error> {
        let mut all = Vec::new();
        for request in what.requests() {
            let complete = (0..ATTEMPTS)
                .find_map(|_| self.exchange_by(what.name(), &request, decode).transpose());
            let messages = complete.ok_or_else(|| Error::Interrupted {
                operation: what.name().into(),
                attempts: ATTEMPTS,
            })?;
            match messages {
                // A kernel whose bridge module is not loaded has no such databases.
                Err(error) if what == Dump::Mdb && error.refusal() == Some(EOPNOTSUPP) => {}
                messages => all.extend(messages?),
            }
        }
        Ok(all)
    }

    /// The link of that name, if there is one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>, Error> {
        let request =
            Request::new(18, REQUEST | ACKNOWLEDGE, &link_body(0, 0, 0)).put(3, &terminated(name));
        let answer = match self.exchange(&format!("look up the link {name}"), &request) {
            Err(error) if error.refusal() == Some(ENODEV) => return Ok(None),
            answer => answer?,
        };
        Ok(answer.unwrap_or_default().into_iter().find_map(|message| match message {
            Message::Link(Operation::New, link) => Some(link),
            _ => None,
        }))
    }

    /// Creates a veth pair, both ends down, one queue each way.
    ///
    /// # Errors
    /// When the kernel refuses: a name is taken (`EEXIST`), the privilege is missing (`EPERM`), …
    pub fn create_veth(&mut self, veth: &Veth<'_>) -> Result<(), Error> {
        let end = |end: &VethEnd<'_>| {
            let mut attributes = Vec::new();
            put(&mut attributes, 3, &terminated(end.name));
            put(&mut attributes, 4, &veth.mtu.to_ne_bytes());
            put(&mut attributes, 13, &veth.transmit_queue_length.to_ne_bytes());
            put(&mut attributes, 31, &1u32.to_ne_bytes());
            put(&mut attributes, 32, &1u32.to_ne_bytes());
            if let Some(namespace) = end.namespace {
                put(&mut attributes, 28, &namespace.as_raw_fd().to_ne_bytes());
            }
            if let Some(MacAddr(octets)) = end.mac {
                put(&mut attributes, 1, &octets);
            }
            attributes
        };
        let body = link_body(0, 0, 0);
        let mut data = Vec::new();
        put(&mut data, 1, &[body.as_slice(), &end(&veth.far)].concat());
        let mut info = Vec::new();
        put(&mut info, 1, b"veth");
        put(&mut info, 2, &data);
        let request = Request::new(
            16,
            REQUEST | ACKNOWLEDGE | CREATE_NEW,
            &[body.as_slice(), &end(&veth.near)].concat(),
        )
        .put(18, &info);
        let operation = format!("create the veth pair {} and {}", veth.near.name, veth.far.name);
        self.exchange(&operation, &request).map(drop)
    }

    /// Deletes a link; of a veth pair, both ends.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn delete_link(&mut self, ifindex: u32) -> Result<(), Error> {
        let request = Request::new(17, REQUEST | ACKNOWLEDGE, &link_body(ifindex, 0, 0));
        self.exchange(&format!("delete link {ifindex}"), &request).map(drop)
    }

    /// Changes a link.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_link(&mut self, ifindex: u32, change: &LinkChange) -> Result<(), Error> {
        // The kernel applies flags before IFLA_AF_SPEC, hence two messages.
        if change.mtu.is_some() || change.ipv6_address_generation.is_some() {
            let mut request = Request::new(19, REQUEST | ACKNOWLEDGE, &link_body(ifindex, 0, 0))
                .put_some(4, change.mtu.map(u32::to_ne_bytes));
            if let Some(mode) = change.ipv6_address_generation {
                let mut inet6 = Vec::new();
                put(&mut inet6, 8, &[mode]);
                let mut families = Vec::new();
                put(&mut families, AF_INET6.into(), &inet6);
                request = request.put(26, &families);
            }
            self.exchange(&format!("change link {ifindex}"), &request)?;
        }
        let mut flags = 0;
        let mut changed = 0;
        for (flag, wanted) in [(UP, change.up), (NO_ARP, change.arp.map(|on| !on))] {
            changed |= if wanted.is_some() { flag } else { 0 };
            flags |= if wanted == Some(true) { flag } else { 0 };
        }
        if changed != 0 {
            let request =
                Request::new(19, REQUEST | ACKNOWLEDGE, &link_body(ifindex, flags, changed));
            self.exchange(&format!("change the flags of link {ifindex}"), &request)?;
        }
        Ok(())
    }

    /// Has the kernel resolve a neighbour, as if it had a packet for it. The result comes as a
    /// [`Message::Neighbour`] event.
    ///
    /// # Errors
    /// When the kernel refuses: no such link (`ENODEV`), the link is down (`ENETDOWN`), …
    pub fn resolve(&mut self, ifindex: u32, address: IpAddr) -> Result<(), Error> {
        let family = if address.is_ipv4() { AF_INET } else { AF_INET6 };
        let request = Request::new(
            28,
            REQUEST | ACKNOWLEDGE | CREATE_OR_REPLACE,
            &neighbour_body(family, ifindex, 0, USE),
        );
        let request = match address {
            IpAddr::V4(address) => request.put(1, &address.octets()),
            IpAddr::V6(address) => request.put(1, &address.octets()),
        };
        self.exchange(&format!("resolve {address} on link {ifindex}"), &request).map(drop)
    }

    /// The MTU that the kernel has for packets between these addresses that leave through this
    /// interface: one that a router has told (path MTU discovery), or the route's own. `None` where
    /// neither is there, or no such route.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn path_mtu(
        &mut self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        ifindex: u32,
    ) -> Result<Option<u32>, Error> {
        // RTM_GETROUTE with struct rtmsg: both addresses have 32 bits.
        let request =
            Request::new(26, REQUEST | ACKNOWLEDGE, &[AF_INET, 32, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0])
                .put(1, &destination.octets())
                .put(2, &source.octets())
                .put(4, &ifindex.to_ne_bytes());
        let mut mtu = None;
        let answer = self.collect("look up a path", &request, |envelope| {
            mtu = crate::decode::cached_mtu(envelope);
        });
        match answer {
            Err(error) if error.refusal().is_some() => Ok(None),
            answer => answer.map(|_| mtu),
        }
    }

    /// Sends a request and collects its answer; `None` when it was a dump that changes overtook.
    pub(crate) fn exchange(
        &mut self,
        operation: &str,
        request: &Request,
    ) -> Result<Option<Vec<Message>>, Error> {
        self.exchange_by(operation, request, rtnetlink)
    }

    fn exchange_by(
        &mut self,
        operation: &str,
        request: &Request,
        decode: Decode,
    ) -> Result<Option<Vec<Message>>, Error> {
        let mut messages = Vec::new();
        let whole = self.collect(operation, request, |envelope| match decode(envelope) {
            Ok(message) => messages.push(message),
            // One object that is not understood must not hide all others.
            Err(error) => tracing::warn!(%error, operation, "an object is left out"),
        })?;
        Ok(whole.then_some(messages))
    }

    /// Sends many requests at once and collects what became of each: 0, or the error's number.
    ///
    /// Only the last one is acknowledged: the kernel names every error unasked, and handles them in
    /// order.
    pub(crate) fn send_all(
        &mut self,
        operation: &str,
        requests: Vec<Request>,
    ) -> Result<Vec<i32>, Error> {
        let mut outcomes = vec![0; requests.len()];
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            bytes.extend(request.bytes(self.sequence));
        }
        if bytes.is_empty() {
            return Ok(outcomes);
        }
        self.socket.send(&bytes).map_err(failed("send requests"))?;
        loop {
            self.receive()?;
            for envelope in Envelopes::new(&self.buffer) {
                let Ok(envelope) = envelope else {
                    tracing::warn!(operation, "the kernel's answer is malformed");
                    break;
                };
                let index =
                    usize::try_from(envelope.sequence.wrapping_sub(first)).unwrap_or(usize::MAX);
                let number =
                    envelope.payload.first_chunk().map_or(0, |number| i32::from_ne_bytes(*number));
                if let (ERROR, Some(outcome)) = (envelope.kind, outcomes.get_mut(index)) {
                    *outcome = number.saturating_neg();
                    if envelope.sequence == self.sequence {
                        return Ok(outcomes);
                    }
                }
            }
        }
    }

    /// One datagram of the kernel's answer into the buffer.
    fn receive(&mut self) -> Result<(), Error> {
        let length =
            self.socket.receive(&mut self.buffer).map_err(|error| match error.raw_os_error() {
                Some(EAGAIN) => {
                    failed("wait for an answer")(io::Error::from_raw_os_error(ETIMEDOUT))
                }
                _ => failed("receive an answer")(error),
            })?;
        if length > self.buffer.len() {
            return Err(Error::Truncated { length, capacity: self.buffer.len() });
        }
        Ok(())
    }

    /// Sends a request and hands over each message of its answer; false when it was a dump that
    /// changes overtook.
    pub(crate) fn collect(
        &mut self,
        operation: &str,
        request: &Request,
        mut each: impl FnMut(&Envelope<'_>),
    ) -> Result<bool, Error> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request.bytes(self.sequence)).map_err(failed("send a request"))?;
        let mut interrupted = false;
        loop {
            self.receive()?;
            for envelope in Envelopes::new(&self.buffer) {
                let envelope = match envelope {
                    Ok(envelope) if envelope.sequence == self.sequence => envelope,
                    // The tail of a request that was given up.
                    Ok(_) => continue,
                    Err(error) => {
                        tracing::warn!(%error, operation, "the kernel's answer is malformed");
                        break;
                    }
                };
                interrupted |= envelope.flags & INTERRUPTED != 0;
                match envelope.kind {
                    ERROR | DONE => {
                        verdict(operation, &envelope)?;
                        return Ok(!interrupted);
                    }
                    _ => each(&envelope),
                }
            }
        }
    }
}

/// The end of an answer: `NLMSG_ERROR` (i32 −errno, the header of the request, attributes) or
/// `NLMSG_DONE` (i32 −errno, attributes).
fn verdict(operation: &str, envelope: &Envelope<'_>) -> Result<(), Error> {
    let Some((number, rest)) = envelope.payload.split_first_chunk::<4>() else { return Ok(()) };
    let number = i32::from_ne_bytes(*number);
    if number == 0 {
        return Ok(());
    }
    let attributes = match envelope.kind {
        ERROR => rest.get(16..).unwrap_or_default(),
        _ => rest,
    };
    let mut explanation = String::new();
    if envelope.flags & EXPLAINED != 0 {
        // NLMSGERR_ATTR_MSG
        let mut attributes = Attributes::new(attributes, 0).map_while(Result::ok);
        explanation = attributes
            .find(|attribute| attribute.kind == 1)
            .map_or_else(String::new, |a| a.string());
    }
    let source = io::Error::from_raw_os_error(number.saturating_neg());
    Err(Error::Refused { operation: operation.into(), source, explanation })
}

/// A string as the kernel wants it.
fn terminated(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}
