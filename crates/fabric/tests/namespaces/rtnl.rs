//! Requests to the kernel over rtnetlink.

use std::net::Ipv4Addr;

use fabric::netns::{Namespace, veth};
use fabric::rtnl::{FdbEntry, Vxlan, VxlanSettings};
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
        rtnl.add_vxlan(Vxlan { name: "vx0", vni: 10, local: vtep, port: 8472, mtu: 1500 })?;
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
        let settings = VxlanSettings { vni: 10, local: vtep.into(), port: 8472 };
        assert_eq!((link("vx0").vxlan, link("br0").bridge), (Some(settings), true));
        assert_eq!(link("hp").master, Some(link("br0").index));
        let index = link("vx0").index;
        let entry =
            |remote: Option<Ipv4Addr>| FdbEntry { index, mac, remote: remote.map(Into::into) };
        let fdb = rtnl.fdb()?;
        assert!(fdb.contains(&entry(Some(remote))) && fdb.contains(&entry(None)), "{fdb:?}");
        let routes = rtnl.routes()?;
        let route = routes.iter().find(|route| route.is_to(remote.into())).unwrap();
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

/// zebra installs routes with next-hop objects or without.
#[root_test]
fn a_route_is_deleted_whatever_its_next_hops() {
    let router = Namespace::create(format!("lab-delete-{}", std::process::id())).unwrap();
    for command in [
        "ip link add br0 type bridge",
        "ip addr add 10.1.0.1/24 dev br0",
        "ip link set br0 up",
        "ip nexthop add id 5 via 10.1.0.2 dev br0",
        "ip nexthop add id 6 via 10.1.0.3 dev br0",
        "ip nexthop add id 7 group 5/6",
        "ip route add 10.0.0.2 nhid 7 proto 186 metric 20",
        "ip route add 10.0.0.3 proto 186 metric 20 nexthop via 10.1.0.2 nexthop via 10.1.0.3",
        "ip route add 10.0.0.4 via 10.1.0.2",
    ] {
        router.run(&command.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let to = |last| [10, 0, 0, last].into();
    let left = router.rtnl(|rtnl| {
        for route in rtnl.routes()?.iter().filter(|route| route.is_from_frr()) {
            rtnl.delete_route(route)?;
        }
        rtnl.routes()
    });
    let left = left.unwrap();
    assert!(left.iter().any(|route| route.is_to(to(4))), "it is not FRR's: {left:?}");
    assert!(!left.iter().any(|route| route.is_to(to(2)) || route.is_to(to(3))), "{left:?}");
}
