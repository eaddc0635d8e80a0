//! VXLAN netdevs that join two machines.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::route::RouteAttribute;
use rtnetlink::{LinkVxlan, RouteMessageBuilder};

use super::{Link, Result, Rtnl, RtnlError, VethEnd, index, with_settings};
use crate::topology::Tunnel;

/// `ETH_P_ALL` of linux/if_ether.h, as tc filters have it.
const ALL_PROTOCOLS: u16 = 3_u16.to_be();
/// `TC_H_INGRESS` of linux/pkt_sched.h.
const INGRESS: u32 = 0xffff_fff1;
/// The handle of an ingress queueing discipline.
const INGRESS_HANDLE: u32 = 0xffff_0000;

impl Rtnl {
    /// The interface that sends packets to an address.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`], for example with `ENETUNREACH`.
    pub fn link_to(&self, address: IpAddr) -> Result<Link> {
        let route = match address {
            IpAddr::V4(address) => {
                RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(address, 32).build()
            }
            IpAddr::V6(address) => {
                RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(address, 128).build()
            }
        };
        let routes = self.handle.route().get(route).execute().try_collect::<Vec<_>>();
        let routes = self.wait(|| format!("find a route to {address}"), routes)?;
        let leaves_by = routes.iter().flat_map(|route| &route.attributes).find_map(|attribute| {
            if let RouteAttribute::Oif(index) = attribute { Some(*index) } else { None }
        });
        let links = self.links()?.into_iter();
        let mut links = links.filter(|link| Some(link.index) == leaves_by);
        links.next().ok_or_else(|| RtnlError::NoLink(address.to_string()))
    }

    /// Creates the VXLAN netdev `end` of a tunnel in another namespace, whose packets leave by
    /// `parent` here, and sets it up.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`], with `EEXIST` if a tunnel with this VNI and port is there.
    pub fn add_tunnel(
        &self,
        end: VethEnd,
        tunnel: &Tunnel,
        parent: &Link,
        namespace: &File,
    ) -> Result<()> {
        let new = LinkVxlan::new(end.name, tunnel.vni).dev(parent.index).port(tunnel.port);
        let new = match tunnel.remote {
            IpAddr::V4(remote) => new.remote(remote),
            IpAddr::V6(remote) => new.remote6(remote),
        };
        let new = with_settings(new, end).setns_by_fd(namespace.as_raw_fd());
        self.add(end.name, new.up())
    }

    /// Sends all frames that one of two interfaces receives by the other one.
    ///
    /// # Errors
    /// [`RtnlError::NoLink`] or [`RtnlError::Rejected`].
    pub fn stitch(&self, a: &str, b: &str) -> Result<()> {
        for (from, to) in [(a, b), (b, a)] {
            let action = || format!("send frames of {from} by {to}");
            let (from, to) = (index(from)?.cast_signed(), index(to)?);
            let hook = self.handle.qdisc().add(from).parent(INGRESS).handle(0xffff, 0);
            self.wait(action, hook.ingress().execute())?;
            let filter = self.handle.traffic_filter(from).add();
            let filter = filter.parent(INGRESS_HANDLE).priority(1).protocol(ALL_PROTOCOLS);
            let redirect = filter.redirect(to);
            self.wait(action, async { redirect?.execute().await })?;
        }
        Ok(())
    }
}
