//! Requests to the kernel over rtnetlink.

use std::net::Ipv4Addr;

use fabric::netns::{Namespace, veth};
use fabric::rtnl::{FdbEntry, Vxlan};
use root_test::root_test;
use wire::MacAddr;

#[root_test]
fn what_was_requested_is_listed() {
    let name = format!("lab-rtnl-{}", std::process::id());
    let [leaf, host] =
        ["leaf", "host"].map(|node| Namespace::create(format!("{name}-{node}")).unwrap());
    veth((&leaf, "hp"), (&host, "eth0"), 1500).unwrap();
    let [vtep, remote, gateway] = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 1, 0, 2]].map(Ipv4Addr::from);
    let mac = MacAddr([2, 0, 0, 0, 0, 7]);
    leaf.rtnl(|rtnl| {
        rtnl.add_bridge("br0", false)?;
        rtnl.add_vxlan(Vxlan { name: "vx0", vni: 10, local: vtep, port: 4789, mtu: 1500 })?;
        for port in ["vx0", "hp"] {
            rtnl.set_master(port, Some("br0"))?;
            rtnl.set_up(port, true)?;
        }
        rtnl.set_port_learning("vx0", false)?;
        rtnl.add_remote_mac("vx0", mac, remote)?;
        rtnl.add_address("br0", "10.1.0.1/24")?;
        rtnl.set_neighbour("br0", gateway, mac)?;
        rtnl.add_route(remote, gateway, "br0")?;

        let links = rtnl.links()?;
        let link = |name: &str| links.iter().find(|link| link.name == name).unwrap();
        assert_eq!(link("vx0").vxlan, Some((10, vtep)));
        assert_eq!(link("hp").master, Some(link("br0").index));
        let index = link("vx0").index;
        let entry = |remote| FdbEntry { index, mac, remote };
        let fdb = rtnl.fdb()?;
        assert!(fdb.contains(&entry(Some(remote))) && fdb.contains(&entry(None)), "{fdb:?}");
        let routes = rtnl.routes()?;
        let route = routes.iter().find(|route| route.is_to(remote)).unwrap();
        assert_eq!(route.interfaces(), [link("br0").index]);

        rtnl.delete_port_mac(index, mac)?;
        assert!(!rtnl.fdb()?.contains(&entry(None)));
        rtnl.reset_receive_path("hp")?;
        rtnl.rename("hp", "port")?;
        rtnl.set_master("port", None)?;
        rtnl.delete_link("vx0")
    })
    .unwrap();
    let error = leaf.rtnl(|rtnl| rtnl.set_up("vx0", true)).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{name}-leaf: cannot change interface vx0: ")), "{error}");
}
