//! Which next hop the kernel chooses for a packet.

use std::net::IpAddr;

use nix::libc::IPPROTO_UDP;

use crate::encode::{REQUEST, Request};
use crate::envelope::{AF_INET, AF_INET6};
use crate::error::Error;
use crate::message::{Message, Operation, RouteTarget};
use crate::request::{ACKNOWLEDGE, Requests};

/// A UDP packet that this host sends. The fields are those that routing may depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentPacket {
    /// Its source address.
    pub source: IpAddr,
    /// Its destination address.
    pub destination: IpAddr,
    /// Its source port and its destination port.
    pub ports: (u16, u16),
    /// `skb->mark`.
    pub mark: u32,
}

impl Requests {
    /// The interface and the gateway by which the kernel sends a packet; the destination itself, if
    /// there is no gateway. `None` without a route. With several next hops, the answer is that of the
    /// kernel's own hash (`inet_rtm_getroute()` in `net/ipv4/route.c`, `inet6_rtm_getroute()` in
    /// `net/ipv6/route.c`).
    ///
    /// # Errors
    /// When the request cannot be sent, or its answer cannot be received.
    pub fn next_hop(&mut self, packet: &SentPacket) -> Result<Option<(u32, IpAddr)>, Error> {
        let SentPacket { source, destination, ports: (from, to), mark } = *packet;
        let (family, bits) = if destination.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) };
        // RTM_GETROUTE with struct rtmsg: both addresses are given in full. RTA_DST, RTA_SRC,
        // RTA_MARK, RTA_IP_PROTO, RTA_SPORT and RTA_DPORT (include/uapi/linux/rtnetlink.h).
        let body = [family, bits, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let request = Request::new(26, REQUEST | ACKNOWLEDGE, &body)
            .put_ip(1, destination)
            .put_ip(2, source)
            .put(16, &mark.to_ne_bytes())
            .put(27, &[IPPROTO_UDP as u8])
            .put(28, &from.to_be_bytes())
            .put(29, &to.to_be_bytes());
        let answer = match self.exchange("look up the next hop of a packet", &request) {
            Err(error) if error.refusal().is_some() => return Ok(None),
            answer => answer?,
        };
        let route = answer.unwrap_or_default().into_iter().find_map(|message| match message {
            Message::Route(Operation::New, route) => Some(route),
            _ => None,
        });
        Ok(route.and_then(|route| match route.via {
            RouteTarget::NextHops(hops) => {
                let hop = hops.first()?;
                Some((hop.ifindex, hop.gateway.unwrap_or(destination)))
            }
            RouteTarget::Object(_) => None,
        }))
    }
}
