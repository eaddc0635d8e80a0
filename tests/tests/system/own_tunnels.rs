//! Hosts with tunnels of their own, such as container overlays: over interfaces with and without a
//! VLAN tag.

use aya::Ebpf;
use aya::programs::{SchedClassifier, TcAttachType};
use root_test::root_test;
use vtepd_tests::lab::{ETH, Host, ip};
use vtepd_tests::{Lab, Setup, Vtepd, programs, sockets};

const PORT: u16 = 8472;

/// Gives a host a tunnel to another, which leaves with a tag. Returns the programs that add it and
/// take it away.
fn tunnel(host: &Host, to: &Host, has_tag: bool) -> Option<Ebpf> {
    let [own, far] = [host, to].map(Host::ip);
    let lines = format!(
        "link add own type vxlan id 99 local {own} remote {far} dstport {PORT} dev {ETH}\n\
         addr add 10.99.0.{}/24 dev own\n\
         link set own up\n",
        host.number
    );
    ip(&host.ns, &lines);
    let attach = || {
        let object = programs::tagger(PORT);
        let mut ebpf = Ebpf::load_file(&object).unwrap();
        std::fs::remove_file(object).unwrap();
        for (name, way) in [("tag", TcAttachType::Egress), ("untag", TcAttachType::Ingress)] {
            let program: &mut SchedClassifier = ebpf.program_mut(name).unwrap().try_into().unwrap();
            program.load().unwrap();
            program.attach(ETH, way).unwrap();
        }
        ebpf
    };
    has_tag.then(|| host.ns.enter(attach).unwrap())
}

#[root_test]
fn tunnels_of_hosts_carry_all_that_tunnels_of_hosts_carry() {
    for has_tag in [false, true] {
        for options in ["", "noudpcsum"] {
            let lab = Lab::with("owntun", Setup { vxlan: options, ..Setup::default() });
            let (host, far) = (&lab.host, &lab.far);
            let _tags = [tunnel(host, far, has_tag), tunnel(far, host, has_tag)];
            let address = std::net::Ipv4Addr::new(10, 99, 0, far.number);
            let attempt = || {
                sockets::ping(host, address, 3, 1000, &[]);
                sockets::tcp_between((host, host.ip()), (far, address), 500_000);
            };
            attempt();
            let vtepd = Vtepd::start(&lab.leaf, &[]);
            attempt();
            let metrics = vtepd.wait_until_idle();
            assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
        }
    }
}
