//! Requests to the kernel: dumps, and the few changes that this project makes.
//!
//! The kernel handles a request inside the `send` call. These calls therefore block for as long as
//! the kernel works. Asynchronous code must use [`crate::Kernel::request`].

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc::{EAFNOSUPPORT, EAGAIN, EINVAL, ENODEV, EOPNOTSUPP, ETIMEDOUT};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;
use wire::MacAddr;

use crate::attribute::Attributes;
use crate::decode::ipsec;
use crate::dump::Dump;
use crate::encode::{REQUEST, Request, link_body, neighbour_body, put};
use crate::envelope::{AF_INET, AF_INET6, Envelope, Envelopes};
use crate::error::Error;
use crate::malformed::DecodeError;
use crate::message::{Link, Message, Operation, Rule};
use crate::socket::{BUFFER, Socket, failed};

/// `NLM_F_ACK`.
pub(crate) const ACKNOWLEDGE: u16 = 0x04;
/// `NLM_F_DUMP_INTR`, in answers.
const INTERRUPTED: u16 = 0x10;
/// `NLM_F_REPLACE | NLM_F_CREATE`.
const CREATE_OR_REPLACE: u16 = 0x500;
/// `NLM_F_CREATE | NLM_F_EXCL`.
const CREATE_NEW: u16 = 0x600;
/// `NLM_F_ACK_TLVS`, in answers: attributes follow the error.
const EXPLAINED: u16 = 0x200;
/// `NLMSG_ERROR`, which is also the acknowledgement.
const ERROR: u16 = 2;
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// `IFF_UP`.
const UP: u32 = 0x1;
/// `IFF_NOARP`.
const NO_ARP: u32 = 0x80;
/// `NTF_USE`.
pub(crate) const USE: u8 = 0x01;
/// Maximum number of attempts for a dump that is interrupted.
pub(crate) const ATTEMPTS: u32 = 32;
/// Receive timeout. The kernel answers immediately, so it only prevents blocking forever on a lost
/// answer.
const ANSWER_TIMEOUT_SECONDS: i64 = 30;

/// Decodes one message of an answer.
type Decode = fn(&Envelope<'_>) -> Result<Message, DecodeError>;

fn rtnetlink(envelope: &Envelope<'_>) -> Result<Message, DecodeError> {
    envelope.message()
}

/// One end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct VethEnd<'a> {
    /// Interface name, 1 to 15 octets.
    pub name: &'a str,
    /// The namespace in which it is created; by default the socket's own.
    pub namespace: Option<BorrowedFd<'a>>,
    /// MAC address; by default a random one.
    pub mac: Option<MacAddr>,
}

/// A veth pair to create.
#[derive(Debug, Clone, Copy)]
pub struct Veth<'a> {
    /// One end.
    pub near: VethEnd<'a>,
    /// The other end.
    pub far: VethEnd<'a>,
    /// Layer 3 MTU of both ends, in bytes.
    pub mtu: u32,
    /// Length of both transmit queues, in frames.
    pub transmit_queue_length: u32,
}

/// Changes to a link. `None` leaves an attribute as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkChange {
    /// Administratively up.
    pub up: Option<bool>,
    /// Whether the link uses ARP and neighbour discovery.
    pub arp: Option<bool>,
    /// Layer 3 MTU in bytes.
    pub mtu: Option<u32>,
    /// `IFLA_INET6_ADDR_GEN_MODE`: 0 from the MAC address, 1 none. It takes effect when the link is
    /// set up, so it is applied before `up`.
    pub ipv6_address_generation: Option<u8>,
}

/// A socket for requests to the network namespace in which it was opened.
#[derive(Debug)]
pub struct Requests {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Requests {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Self::with(Socket::open(None)?)
    }

    /// Opens a netfilter socket instead of an rtnetlink one.
    pub(crate) fn open_netfilter() -> Result<Self, Error> {
        Self::with(Socket::open_netfilter()?)
    }

    /// Opens a `sock_diag(7)` socket.
    pub(crate) fn open_sock_diag() -> Result<Self, Error> {
        Self::with(Socket::open_sock_diag()?)
    }

    /// Opens a socket to the IPsec database; `None` if the kernel has none.
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
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(ANSWER_TIMEOUT_SECONDS, 0))
            .map_err(|errno| failed("set the timeout")(errno.into()))?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(BUFFER) })
    }

    /// All objects of one kind. A dump that is interrupted by changes is repeated.
    ///
    /// # Errors
    /// When the kernel refuses, or changes interrupt every attempt.
    pub fn dump(&mut self, what: Dump) -> Result<Vec<Message>, Error> {
        match what {
            Dump::IpsecPolicies => Self::open_ipsec()?
                .map_or_else(|| Ok(Vec::new()), |mut ipsec| ipsec.ipsec_policies()),
            Dump::Rules => {
                let mut rules = self.rules(AF_INET, &Rule::defaults())?;
                rules.extend(self.rules(AF_INET6, &Rule::ipv6_defaults())?);
                Ok(rules)
            }
            _ => self.dump_by(what, rtnetlink),
        }
    }

    /// The routing rules of a family; the default rules if the kernel has no policy routing.
    fn rules(&mut self, family: u8, defaults: &[Rule]) -> Result<Vec<Message>, Error> {
        let rules = self.dump_one(Dump::Rules, &Dump::rules(family), rtnetlink);
        match rules {
            Err(error) if matches!(error.refusal(), Some(EAFNOSUPPORT | EOPNOTSUPP)) => {
                let rules = defaults.iter().cloned();
                Ok(rules.map(|rule| Message::Rule(Operation::New, rule)).collect())
            }
            rules => rules,
        }
    }

    /// [`Dump::IpsecPolicies`], on a socket to the IPsec database.
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
            match self.dump_one(what, &request, decode) {
                // Without the bridge module there are no multicast databases.
                Err(error) if what == Dump::Mdb && error.refusal() == Some(EOPNOTSUPP) => {}
                messages => all.extend(messages?),
            }
        }
        Ok(all)
    }

    /// One dump, repeated if changes interrupt it.
    fn dump_one(
        &mut self,
        what: Dump,
        request: &Request,
        decode: Decode,
    ) -> Result<Vec<Message>, Error> {
        let complete = (0..ATTEMPTS)
            .find_map(|_| self.exchange_by(what.operation(), request, decode).transpose());
        complete.ok_or_else(|| Error::Interrupted {
            operation: what.operation().into(),
            attempts: ATTEMPTS,
        })?
    }

    /// The link of this name; `None` if there is none.
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

    /// Creates a veth pair. Both ends are down and have one queue in each direction.
    ///
    /// # Errors
    /// When the kernel refuses: the name exists (`EEXIST`), the privilege is missing (`EPERM`), …
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

    /// Deletes a link. For a veth pair this deletes both ends.
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

    /// Makes the kernel resolve a neighbour, as if it had a packet for it. The result is a
    /// [`Message::Neighbour`] event.
    ///
    /// # Errors
    /// When the kernel refuses: no such link (`ENODEV`), the link is down (`ENETDOWN`), …
    pub fn resolve(&mut self, ifindex: u32, address: IpAddr) -> Result<(), Error> {
        let family = if address.is_ipv4() { AF_INET } else { AF_INET6 };
        let body = neighbour_body(family, ifindex, 0, USE);
        let request = Request::new(28, REQUEST | ACKNOWLEDGE | CREATE_OR_REPLACE, &body);
        let request = request.put_ip(1, address);
        self.exchange(&format!("resolve {address} on link {ifindex}"), &request).map(drop)
    }

    /// The kernel's MTU for packets between these addresses through this interface: from path MTU
    /// discovery, or of the route itself. `None` if there is neither, or no route.
    ///
    /// # Errors
    /// When the request cannot be sent, or its answer cannot be received.
    pub fn path_mtu(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        ifindex: u32,
    ) -> Result<Option<u32>, Error> {
        let (family, bits) = if destination.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) };
        // RTM_GETROUTE with struct rtmsg: both addresses are given in full.
        let body = [family, bits, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let request = Request::new(26, REQUEST | ACKNOWLEDGE, &body)
            .put_ip(1, destination)
            .put_ip(2, source)
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

    /// Sends a request and collects its answer. `None` if it was a dump that changes interrupted.
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
            // One object that cannot be decoded must not hide all others.
            Err(error) => tracing::warn!(%error, operation, "an object is left out"),
        })?;
        Ok(whole.then_some(messages))
    }

    /// Sends many requests in one message, and collects the result of each: 0, or the error number.
    ///
    /// Only the last request is acknowledged. The kernel handles requests in order, and reports
    /// errors without being asked for an acknowledgement.
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

    /// Reads one datagram of the kernel's answer into the buffer.
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

    /// Sends a request and passes each message of its answer to `each`. Returns false if it was a
    /// dump that changes interrupted.
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
                    // The rest of the answer to an earlier request that was given up.
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

/// The result at the end of an answer: `NLMSG_ERROR` (i32 −errno, the header of the request,
/// attributes) or `NLMSG_DONE` (i32 −errno, attributes).
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

/// A string with the terminating zero that the kernel expects.
pub(crate) fn terminated(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}
