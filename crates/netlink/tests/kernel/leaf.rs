//! A network namespace with a leaf, as FRR configures it.

use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant};

use netlink::{Event, Kernel, Message};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

/// How long a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A network namespace that is deleted after the test.
pub(crate) struct Namespace(pub String);

impl Namespace {
    pub(crate) fn new(name: &str) -> Self {
        let namespace = Self(format!("vtn-{}-{name}", std::process::id()));
        run("ip", &["netns", "add", &namespace.0]);
        namespace.ip("link set lo up");
        namespace
    }

    pub(crate) fn handle(&self) -> File {
        File::open(format!("/run/netns/{}", self.0)).unwrap()
    }

    pub(crate) fn ip(&self, arguments: &str) -> String {
        run("ip", &[&["-n", &self.0][..], &words(arguments)].concat())
    }

    pub(crate) fn bridge(&self, arguments: &str) -> String {
        run("bridge", &[&["-n", &self.0][..], &words(arguments)].concat())
    }

    pub(crate) fn json(&self, arguments: &str) -> Vec<Value> {
        serde_json::from_str(&self.ip(&format!("-N -j -d {arguments}"))).unwrap()
    }

    /// Waits until a link can send. A busy kernel sees a new carrier up to a second later.
    pub(crate) fn wait_for_carrier(&self, link: &str) {
        let start = Instant::now();
        while self.json(&format!("link show {link}"))[0]["operstate"] != "UP" {
            assert!(start.elapsed() < TIMEOUT, "{link} has no carrier");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs `work` on a thread in the namespace.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(self.handle(), CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs asynchronous `work` in the namespace, in a runtime of its own.
    pub(crate) fn block_on<T: Send>(&self, work: impl Future<Output = T> + Send) -> T {
        self.inside(|| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { tokio::time::timeout(TIMEOUT, work).await.unwrap() })
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn words(arguments: &str) -> Vec<&str> {
    arguments.split_whitespace().collect()
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {errors}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// A leaf as FRR configures it: two uplinks, a VNI with a bridge, a VLAN-aware bridge, and routes
/// of every kind.
pub(crate) fn leaf(namespace: &Namespace) {
    // Duplicate address detection and router solicitation would cause changes between two dumps.
    let quiet = "net.ipv6.conf.default.addr_gen_mode=1";
    run("ip", &["netns", "exec", &namespace.0, "sysctl", "-qw", quiet]);
    for index in 1..=2 {
        namespace.ip(&format!("link add name up{index} type veth peer name spine{index}"));
        namespace.ip(&format!("link set spine{index} up"));
        namespace.ip(&format!("link set up{index} mtu 9100 up"));
        namespace.ip(&format!("addr add 10.1.{index}.1/31 dev up{index}"));
    }
    namespace.ip("addr add 10.0.0.11/32 dev lo");
    namespace.ip("link add name br10 type bridge");
    namespace.ip("link add name br20 type bridge");
    let options =
        "srcport 50000 60000 df set ttl 9 tos 4 ageing 77 maxaddress 99 udpcsum nolearning";
    namespace.ip(&format!(
        "link add name vx10 type vxlan id 10010 local 10.0.0.11 dstport 4789 {options}"
    ));
    namespace.ip(
        "link add name vx20 type vxlan id 10020 group 239.1.1.1 dev up1 dstport 4790 proxy rsc l2miss gbp",
    );
    namespace.ip(
        "link add name vx30 type vxlan id 10030 local 2001:db8::1 remote 2001:db8::2 dstport 4791",
    );
    namespace.ip("link add name vx40 type vxlan external dstport 4792");
    namespace.ip("link set vx10 master br10 up");
    namespace.ip("link set br10 address 02:00:00:00:00:0a up");
    namespace.bridge("link set dev vx10 learning off isolated on neigh_suppress on");
    namespace.bridge("fdb append 00:00:00:00:00:00 dev vx10 dst 10.0.0.12");
    namespace.bridge("fdb append 00:00:00:00:00:00 dev vx10 dst 10.0.0.13");
    namespace.bridge("fdb add 02:00:00:00:02:01 dev vx10 dst 10.0.0.12 self extern_learn");
    namespace.bridge("fdb replace 02:00:00:00:02:01 dev vx10 master extern_learn dynamic");
    namespace.bridge(
        "fdb add 02:00:00:00:02:02 dev vx10 dst 10.0.0.13 port 4790 vni 99 via up2 self static",
    );
    namespace.bridge("fdb add 02:00:00:00:02:03 dev vx10 master static sticky");
    namespace.ip("neigh add 10.1.1.0 lladdr 02:00:00:00:01:00 dev up1 nud noarp extern_learn");
    namespace.ip("neigh add fe80::1 lladdr 02:00:00:00:01:00 dev up1 nud permanent");
    namespace.ip("nexthop add id 5 via 10.1.1.0 dev up1");
    namespace.ip("nexthop add id 6 via 10.1.2.0 dev up2 onlink");
    namespace.ip("nexthop add id 7 group 5,4/6,200");
    namespace.ip("nexthop add id 8 blackhole");
    namespace.ip("nexthop add id 9 via 10.0.0.9 fdb");
    namespace
        .ip("route add 10.0.0.12/32 metric 20 proto 186 nexthop via 10.1.1.0 weight 3 nexthop via 10.1.2.0");
    namespace.ip("route add 10.0.0.13/32 nhid 7");
    namespace.ip("route add 10.9.0.0/16 via inet6 fe80::1 dev up1 metric 7 mtu 1400");
    namespace.ip("route add 10.10.0.0/16 tos 0x10 via 10.9.9.9 dev br10 onlink");
    namespace.ip("route add blackhole 10.8.0.0/16 table 1000");
    namespace.ip("route add default via 10.1.1.0");
    namespace
        .ip("-6 route add 2001:db8::/64 nexthop via fe80::1 dev up1 nexthop via fe80::2 dev up2");
}

/// Collects events until one matches.
pub(crate) async fn until(
    kernel: &mut Kernel,
    seen: &mut Vec<Message>,
    fits: impl Fn(&Message) -> bool,
) {
    while !seen.iter().any(&fits) {
        match kernel.next().await.unwrap() {
            Event::Messages(messages) => seen.extend(messages),
            Event::TooLong(_) => {}
            Event::Overrun => panic!("overrun after {seen:?}"),
        }
    }
}
