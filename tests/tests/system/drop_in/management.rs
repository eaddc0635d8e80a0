//! A management network like ContainerLab's: a bridge with an address outside all nodes. Each
//! node's `eth0` is on it and has the only default route.

use fabric::Namespace;
use fabric::netns::veth;
use vtepd_tests::Lab;
use vtepd_tests::lab::{ip, namespace_name, sysctl};

/// The bridge's namespace.
pub(super) struct Management {
    pub ns: Namespace,
}

/// The bridge's address, which is every node's gateway.
pub(super) const GATEWAY: &str = "172.20.20.1";
/// The bridge's port to the leaf.
pub(super) const TO_LEAF: &str = "leaf";

impl Management {
    /// Connects the leaf (172.20.20.2) and the peer (172.20.20.3).
    pub(super) fn of(lab: &Lab, case: &str) -> Self {
        let ns = Namespace::create(namespace_name(case, "mgmt")).unwrap();
        sysctl(&ns, "ipv4/ip_forward", "1");
        ip(
            &ns,
            &format!("link add clab type bridge\naddr add {GATEWAY}/24 dev clab\nlink set clab up"),
        );
        for (leaf, port, last) in [(&lab.leaf, TO_LEAF, 2), (&lab.peer, "peer", 3)] {
            veth((leaf, "eth0"), (&ns, port), lab.setup.underlay_mtu).unwrap();
            ip(
                &ns,
                &format!(
                    "link set {port} master clab\nroute add 10.0.0.{}/32 via 172.20.20.{last}",
                    last - 1
                ),
            );
            ip(
                leaf,
                &format!("addr add 172.20.20.{last}/24 dev eth0\nroute add default via {GATEWAY}"),
            );
        }
        Self { ns }
    }
}
