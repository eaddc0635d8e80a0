//! Requests to the running kernel. Needs root.

use std::net::IpAddr;
use std::os::fd::AsFd;

use crate::leaf::{Namespace, until};
use netlink::{
    Dump, Error, FdbChange, FdbWrite, Kernel, LinkChange, LinkKind, Message, Operation, Requests,
    Veth, VethEnd,
};
use root_test::root_test;
use serde_json::Value;
use wire::MacAddr;

#[root_test]
fn a_punt_into_another_namespace() {
    let leaf = Namespace::new("near");
    let hidden = Namespace::new("far");
    let (near_handle, mac) = (leaf.handle(), MacAddr([2, 0, 0, 0, 9, 9]));
    // Created as punt pairs are: from inside the namespace of the far end.
    hidden.inside(|| {
        let mut requests = Requests::open().unwrap();
        let near = VethEnd { name: "punt0", namespace: Some(near_handle.as_fd()), mac: Some(mac) };
        let far = VethEnd { name: "far0", namespace: None, mac: None };
        let veth = Veth { near, far, mtu: 65535, transmit_queue_length: 7 };
        requests.create_veth(&veth).unwrap();
        let link = requests.link("far0").unwrap().unwrap();
        assert_eq!((link.kind, link.mtu, link.flags & 1), (LinkKind::Veth, 65535, 0));
        let change = LinkChange {
            up: Some(true),
            arp: Some(false),
            ipv6_address_generation: Some(1),
            mtu: None,
        };
        requests.set_link(link.ifindex, &change).unwrap();

        // A second pair with this name is refused, with the kernel's explanation if it has one.
        let error = requests.create_veth(&veth).unwrap_err();
        assert_eq!(error.refusal(), Some(nix::libc::EEXIST));
        assert!(error.to_string().contains("create the veth pair punt0 and far0"), "{error}");
    });
    leaf.inside(|| {
        let mut requests = Requests::open().unwrap();
        let link = requests.link("punt0").unwrap().unwrap();
        assert_eq!(link.mac, Some(mac));
        let change = LinkChange { up: Some(true), ..LinkChange::default() };
        requests.set_link(link.ifindex, &change).unwrap();
        assert!(requests.link("punt0").unwrap().unwrap().is_operational());
        let down = LinkChange { up: Some(false), ..LinkChange::default() };
        requests.set_link(link.ifindex, &down).unwrap();
        assert_eq!(requests.link("punt0").unwrap().unwrap().flags & 1, 0);
        requests.set_link(link.ifindex, &change).unwrap();
        requests
            .set_link(link.ifindex, &LinkChange { mtu: Some(9000), ..LinkChange::default() })
            .unwrap();
        requests
            .set_link(link.ifindex, &LinkChange { arp: Some(false), ..LinkChange::default() })
            .unwrap();
    });
    let near = &leaf.json("link show dev punt0")[0];
    let far = &hidden.json("link show dev far0")[0];
    assert_eq!(
        (&near["mtu"], &near["txqlen"], &near["num_tx_queues"]),
        (&9000.into(), &7.into(), &1.into())
    );
    assert_eq!(
        (&far["mtu"], &far["txqlen"], &far["num_rx_queues"]),
        (&65535.into(), &7.into(), &1.into())
    );
    assert_eq!(far["inet6_addr_gen_mode"], "none");
    for end in [near, far] {
        let flags = end["flags"].as_array().unwrap();
        assert!(
            flags.iter().any(|flag| flag == "NOARP") && flags.iter().any(|flag| flag == "UP"),
            "{flags:?}"
        );
    }
    // The far end has no IPv6 address.
    assert_eq!(hidden.json("addr show dev far0")[0]["addr_info"], Value::Array(vec![]));
    leaf.inside(|| {
        let mut requests = Requests::open().unwrap();
        let ifindex = requests.link("punt0").unwrap().unwrap().ifindex;
        requests.delete_link(ifindex).unwrap();
        assert_eq!(requests.link("punt0").unwrap(), None);
        assert_eq!(requests.delete_link(ifindex).unwrap_err().refusal(), Some(nix::libc::ENODEV));
    });
    assert!(hidden.inside(|| Requests::open().unwrap().link("far0").unwrap()).is_none());
}

#[root_test]
fn refusals_carry_the_kernels_words() {
    let namespace = Namespace::new("words");
    namespace.ip("link add name up1 type veth peer name spine1");
    namespace.inside(|| {
        let mut requests = Requests::open().unwrap();
        let ifindex = requests.link("up1").unwrap().unwrap().ifindex;
        let error = requests
            .set_link(ifindex, &LinkChange { mtu: Some(10), ..LinkChange::default() })
            .unwrap_err();
        let Error::Refused { operation, source, explanation } = &error else { panic!("{error}") };
        assert_eq!(operation, &format!("change link {ifindex}"));
        assert_eq!(source.raw_os_error(), Some(nix::libc::EINVAL));
        assert_eq!(explanation, "mtu less than device minimum");
        assert!(error.to_string().ends_with(": mtu less than device minimum"), "{error}");
        // The socket is still usable.
        assert_eq!(requests.dump(Dump::Links).unwrap().len(), 3);
    });
}

/// The kernel resolves a neighbour on request, also after it has failed. The result is an event.
#[root_test]
fn resolving_a_neighbour() {
    let namespace = Namespace::new("resolve");
    let spine = Namespace::new("spine");
    namespace.ip(&format!("link add name up1 type veth peer name leaf1 netns {}", spine.0));
    for (end, name, address) in [(&namespace, "up1", 1), (&spine, "leaf1", 0)] {
        end.ip(&format!("link set {name} up"));
        end.ip(&format!("addr add 10.1.1.{address}/31 dev {name}"));
        end.ip(&format!("addr add 2001:db8::{address}/127 dev {name} nodad"));
    }
    namespace.wait_for_carrier("up1");
    spine.wait_for_carrier("leaf1");
    namespace.block_on(async {
        let mut kernel = Kernel::open().unwrap();
        for address in ["10.1.1.0", "2001:db8::"] {
            let address: IpAddr = address.parse().unwrap();
            let ifindex =
                kernel.request(|requests| requests.link("up1")).await.unwrap().unwrap().ifindex;
            let mut seen = Vec::new();
            kernel.request(move |requests| requests.resolve(ifindex, address)).await.unwrap();
            until(&mut kernel, &mut seen, |message| match message {
                Message::Neighbour(Operation::New, n) => {
                    n.address == address && n.is_valid() && n.mac.is_some()
                }
                _ => false,
            })
            .await;
        }
        let ifindex =
            kernel.request(|requests| requests.link("lo")).await.unwrap().unwrap().ifindex + 1000;
        let address: IpAddr = "10.1.1.0".parse().unwrap();
        let error =
            kernel.request(move |requests| requests.resolve(ifindex, address)).await.unwrap_err();
        assert_eq!(error.refusal(), Some(nix::libc::ENODEV));
    });
}

/// Entries are written as the kernel writes learned ones. The kernel ages them from the time when
/// they were last reported to be in use.
#[root_test]
fn learned_entries_are_the_kernels_own_to_age() {
    let namespace = Namespace::new("learned");
    namespace.ip(
        "link add name vx1 type vxlan id 1 local 10.0.0.1 dstport 4789 ageing 60 maxaddress 100",
    );
    namespace.ip("link set vx1 up");
    let entries = || {
        let shown = namespace.bridge("-s fdb show dev vx1");
        let mut lines: Vec<String> = shown.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.sort();
        lines
    };
    // Seconds since the entry was last updated.
    let age = |entry: &str| -> u64 {
        entry.split_once("used ").unwrap().1.split(['/', ' ']).nth(1).unwrap().parse().unwrap()
    };
    let write = |last: u8, vtep: u8, change, flags| FdbWrite {
        ifindex: namespace
            .inside(|| Requests::open().unwrap().link("vx1").unwrap().unwrap().ifindex),
        mac: MacAddr([2, 0, 0, 0, 0, last]),
        vtep: [10, 0, 0, vtep].into(),
        change,
        flags,
    };
    let put = |writes: &[FdbWrite]| {
        namespace.inside(|| Requests::open().unwrap().write_fdb(writes).unwrap())
    };
    let new = |last| write(last, 2, FdbChange::New, 0);

    assert!(put(&[]).is_empty());
    assert_eq!(put(&[new(1), new(2), new(1)]), [0, 0, nix::libc::EEXIST]);
    let [one, two] = entries().try_into().unwrap();
    for (entry, last) in [(one, 1), (two, 2)] {
        assert!(
            entry.starts_with(&format!("02:00:00:00:00:0{last} dst 10.0.0.2 used ")),
            "{entry}"
        );
        assert!(entry.ends_with(" self"), "neither permanent nor static: {entry}");
    }
    // Moving or refreshing an entry resets its age and preserves its flags.
    namespace
        .bridge("fdb add 02:00:00:00:00:03 dev vx1 dst 10.0.0.2 self dynamic extern_learn sticky");
    while entries().iter().any(|entry| age(entry) == 0) {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let gone = [write(9, 3, FdbChange::Moved, 0), write(9, 3, FdbChange::Refreshed, 0)];
    let moved = [
        write(1, 3, FdbChange::Moved, 2),
        write(2, 2, FdbChange::Refreshed, 2),
        write(3, 3, FdbChange::Moved, 0x52),
    ];
    assert_eq!(put(&[&gone[..], &moved].concat()), [nix::libc::ENOENT, nix::libc::ENOENT, 0, 0, 0]);
    let now = entries();
    let [one, two, three] = now.as_slice() else { panic!("{now:?}") };
    assert!(
        one.contains(":01 dst 10.0.0.3 used") && two.contains(":02 dst 10.0.0.2 used"),
        "{now:?}"
    );
    assert!(
        three.contains(":03 dst 10.0.0.3 used") && three.ends_with("self extern_learn sticky"),
        "{now:?}"
    );
    assert_eq!(now.iter().map(|entry| age(entry)).collect::<Vec<_>>(), [0, 0, 0]);

    // More entries than fit into one message, and more than the netdev accepts.
    let many: Vec<_> = (4..=250).map(new).collect();
    let outcomes = put(&many);
    let (taken, refused) = outcomes.split_at(97);
    assert!(taken.iter().all(|outcome| *outcome == 0), "{taken:?}");
    assert!(refused.iter().all(|outcome| *outcome == nix::libc::ENOSPC), "{refused:?}");
    assert_eq!((outcomes.len(), entries().len()), (247, 100));
}

/// A bridge has an entry for one address and none for another.
#[root_test]
fn a_bridge_is_asked_for_single_entries() {
    let namespace = Namespace::new("entry");
    for command in ["add br1 type bridge", "add p1 type veth peer name q1", "set p1 master br1"] {
        namespace.ip(&format!("link {command}"));
    }
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let index = |name: &str| {
        namespace.inside(|| Requests::open().unwrap().link(name).unwrap().unwrap().ifindex)
    };
    let (bridge, port) = (index("br1"), index("p1"));
    let ask = |bridge| namespace.inside(|| Requests::open().unwrap().bridge_entry(bridge, mac));
    assert_eq!(ask(bridge).unwrap(), None);
    namespace.bridge(&format!("fdb add {mac} dev p1 master static"));
    let entry = ask(bridge).unwrap().unwrap();
    assert_eq!(
        (entry.ifindex, entry.master, entry.mac, entry.state),
        (port, Some(bridge), mac, 0x40)
    );
    namespace.bridge(&format!("fdb del {mac} dev p1 master"));
    assert_eq!(ask(bridge).unwrap(), None);
    assert!(ask(bridge + 1000).unwrap_err().refusal().is_some());
}
