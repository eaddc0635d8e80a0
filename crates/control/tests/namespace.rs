//! The task with a real kernel, each test in a network namespace of its own. Needs root.
//!
//! ```text
//!   spine (a veth peer, same namespace) ── up1   br10010 ── vx10010
//!                                                   └────── hp1
//! ```

#![cfg(test)]

use std::future::Future;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use control::{
    FpmListener, Journal, KernelOnlyReason, Namespace, Request, RunError, Settings, SourceState,
    State, Status, Update, Warning,
};
use netlink::Kernel;
use tables::VniSource::Netdev;
use tokio::sync::{mpsc, watch};
use wire::{MacAddr, Vni};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 11));
const VTEP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 12));
const MAC: &str = "02:00:00:00:00:01";

/// How long a test waits for a change.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Index of the vxlan netdev, as on the leaf of the recorded FPM streams.
const VXLAN: u32 = 5;

const LEAF: &str = "
    link add up1 index 2 type veth peer name spine index 102
    link add up2 index 3 type veth peer name spine2 index 103
    link add br10010 index 4 type bridge
    link add vx10010 index 5 type vxlan id 10010 local 10.0.0.11 dstport 4789 nolearning
    link set vx10010 master br10010
    link add hp1 index 6 type veth peer name host index 106
    link set hp1 master br10010
    address add 10.0.0.11/32 dev lo
    address add 10.1.0.0/31 dev up1
    link set up1 up
    link set spine up
    link set hp1 up
    link set host up
    link set br10010 up
    link set vx10010 up
    neigh replace 10.1.0.1 lladdr 02:00:00:00:00:e1 dev up1
    route add 10.0.0.12/32 via 10.1.0.1";

/// Runs `story` on a thread in a network namespace of its own.
fn in_a_namespace<F: Future<Output = ()>>(story: impl FnOnce() -> F + Send + 'static) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let namespace = fabric::Namespace::create(format!("vtc-{}-{number}", std::process::id()))
        .expect("a network namespace; this test needs root");
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, story());
    };
    namespace.enter(run).unwrap();
}

/// Runs many `ip` or `bridge` commands in one process, one on each line.
fn batch(program: &str, commands: &str) {
    let mut child =
        Command::new(program).args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let lines: String = commands.lines().map(|line| format!("{}\n", line.trim())).collect();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{program}: {commands}");
}

fn ip(commands: &str) {
    batch("ip", commands);
}

fn bridge(commands: &str) {
    batch("bridge", commands);
}

/// The task under test, and its last publication.
struct Leaf {
    published: watch::Receiver<Update>,
    status: watch::Receiver<Status>,
    requests: mpsc::Sender<Request>,
    task: tokio::task::JoinHandle<Result<(), RunError>>,
}

impl Leaf {
    fn start(kernel: Kernel, fpm: Option<SocketAddr>) -> Self {
        Self::start_with(kernel, FpmListener { address: fpm, ..FpmListener::default() })
    }

    fn start_with(kernel: Kernel, listener: FpmListener) -> Self {
        let (publish, published) = watch::channel(Update::default());
        let (requests, wanted) = mpsc::channel(16);
        let (report, status) = watch::channel(Status::default());
        let state = State::new(Settings::default(), Namespace::read());
        let task = tokio::task::spawn_local(control::run(
            state,
            kernel,
            listener,
            wanted,
            report,
            Journal::default(),
            move |update, _| {
                publish.send_replace(update.clone());
            },
        ));
        Self { published, status, requests, task }
    }

    async fn until(&mut self, what: &str, reached: impl Fn(&Update) -> bool) -> Update {
        let waited = tokio::time::timeout(TIMEOUT, self.published.wait_for(reached)).await;
        if let Ok(update) = waited.map(|update| update.expect("the task runs").clone()) {
            return update;
        }
        panic!("not published: {what}; last: {:?}", self.published.borrow())
    }

    async fn until_status(&mut self, what: &str, reached: impl Fn(&Status) -> bool) {
        let waited = tokio::time::timeout(TIMEOUT, self.status.wait_for(reached)).await.is_ok();
        assert!(waited, "not reported: {what}; last: {:?}", self.status.borrow());
    }

    async fn stop(self) {
        self.requests.send(Request::Shutdown).await.unwrap();
        self.task.await.unwrap().unwrap();
    }
}

fn behind(update: &Update, mac: &str) -> Option<IpAddr> {
    let vni = Vni::try_from(10010).unwrap();
    let index =
        update.snapshot.terminate(LOCAL, 4789, vni)?.fdb.get(&mac.parse::<MacAddr>().unwrap())?;
    Some(update.snapshot.vtep(*index)?.address)
}

fn flood_list(update: &Update) -> usize {
    update.snapshot.vnis().map(|table| table.flood.len()).sum()
}

/// The interfaces of the next hops towards the VTEP, with the gateways' MAC addresses.
fn ways(update: &Update) -> Vec<(u32, Option<MacAddr>)> {
    let vtep = update.snapshot.vteps().find(|vtep| vtep.address == VTEP);
    let hops = vtep.iter().flat_map(|vtep| vtep.paths.next_hops());
    hops.map(|hop| (hop.ifindex, hop.destination_mac)).collect()
}

#[test]
fn a_leaf_is_found_and_followed() {
    in_a_namespace(|| async {
        ip(LEAF);
        bridge(&format!("fdb append 00:00:00:00:00:00 dev vx10010 dst {VTEP} self permanent"));
        let mut leaf = Leaf::start(Kernel::open().unwrap(), None);
        let gateway = Some("02:00:00:00:00:e1".parse().unwrap());
        let update = leaf.until("the VNI", |update| flood_list(update) == 1).await;
        assert_eq!(ways(&update), [(2, gateway)]);
        let taken = &update.plan.vnis[&Netdev(VXLAN)];
        assert_eq!((taken.name.as_str(), taken.local, taken.frame_limit), ("vx10010", LOCAL, 1464));
        let uplinks: Vec<&str> =
            update.plan.uplinks.iter().map(|uplink| uplink.name.as_str()).collect();
        assert_eq!(uplinks, ["up1"]);
        let off =
            |status: &Status| (status.kernel, status.fpm) == (SourceState::Live, SourceState::Off);
        leaf.until_status("the kernel alone", off).await;

        // As zebra does it: one entry in the bridge's FDB and one in the netdev's own.
        bridge(&format!(
            "fdb add {MAC} dev vx10010 dst {VTEP} self extern_learn\nfdb add {MAC} dev vx10010 master extern_learn"
        ));
        leaf.until("the remote MAC", |update| behind(update, MAC) == Some(VTEP)).await;
        // The host moves to a local port before the remote entry is deleted.
        bridge(&format!("fdb replace {MAC} dev hp1 master dynamic"));
        leaf.until("the local MAC", |update| behind(update, MAC).is_none()).await;
        bridge(&format!("fdb replace {MAC} dev vx10010 master extern_learn"));
        leaf.until("the MAC, remote again", |update| behind(update, MAC) == Some(VTEP)).await;
        bridge(&format!("fdb del {MAC} dev vx10010 self"));
        leaf.until("the withdrawal", |update| behind(update, MAC).is_none()).await;

        ip("link set vx10010 down");
        leaf.until("the netdev going down", |update| {
            update.plan.vnis.is_empty()
                && update.left.iter().any(|left| left.reason == KernelOnlyReason::Down)
        })
        .await;
        ip("link set vx10010 up");
        leaf.until("the netdev coming back", |update| {
            update.plan.vnis.contains_key(&Netdev(VXLAN))
        })
        .await;
        ip("link set vx10010 nomaster");
        leaf.until("no bridge", |update| update.plan.vnis.is_empty()).await;
        ip("link set vx10010 master br10010");
        leaf.until("a bridge", |update| update.plan.vnis.contains_key(&Netdev(VXLAN))).await;
        ip("link set vx10010 type vxlan ttl 9");
        let nine = |update: &Update| {
            update.snapshot.vnis().any(|table| table.tunnel.ttl == tables::Ttl::Fixed(9))
        };
        leaf.until("the netdev's new TTL", nine).await;
        ip("link del vx10010");
        leaf.until("the netdev's end", |update| {
            update.plan.vnis.is_empty() && update.left.is_empty()
        })
        .await;
        leaf.stop().await;
    });
}

#[test]
fn nothing_is_taken_over_before_its_next_hops_are_resolved() {
    in_a_namespace(|| async {
        ip(LEAF);
        // The other end is in this namespace as well and answers for its address.
        std::fs::write("/proc/sys/net/ipv4/conf/all/accept_local", "1").unwrap();
        ip("link set up2 up
            link set spine2 up
            address add 10.2.0.0/31 dev up2
            route replace 10.0.0.12/32 nexthop via 10.1.0.1 dev up1 nexthop via 10.2.0.1 dev up2
            address add 10.2.0.1/32 dev spine2");
        bridge(&format!("fdb append 00:00:00:00:00:00 dev vx10010 dst {VTEP} self permanent"));
        let mut leaf = Leaf::start(Kernel::open().unwrap(), None);
        let first = leaf.until("anything", |update| update.snapshot.generation() > 0).await;
        let unknown = |(_, mac): &(u32, Option<MacAddr>)| mac.is_none();
        assert_eq!(ways(&first).len(), 2, "{:?}", ways(&first));
        assert!(!ways(&first).iter().any(unknown), "{:?}", ways(&first));
        leaf.stop().await;

        // A next hop that never answers does not prevent the takeover.
        ip("address del 10.2.0.1/32 dev spine2
            neigh del 10.2.0.1 dev up2");
        let mut leaf = Leaf::start(Kernel::open().unwrap(), None);
        let first = leaf.until("anything", |update| update.snapshot.generation() > 0).await;
        assert_eq!(ways(&first).iter().filter(|way| unknown(way)).count(), 1, "{:?}", ways(&first));
        leaf.stop().await;
    });
}

#[test]
fn routes_that_vanish_without_an_event_vanish_here() {
    in_a_namespace(|| async {
        ip(LEAF);
        ip(
            "link set up2 up\nlink set spine2 up\naddress add 10.2.0.0/31 dev up2\nroute add 10.0.0.0/24 via 10.2.0.1",
        );
        bridge(&format!("fdb append 00:00:00:00:00:00 dev vx10010 dst {VTEP} self permanent"));
        let mut leaf = Leaf::start(Kernel::open().unwrap(), None);
        let by = |interfaces: &'static [u32]| {
            move |update: &Update| {
                ways(update).into_iter().map(|(ifindex, _)| ifindex).eq(interfaces.iter().copied())
            }
        };
        leaf.until("the host route", by(&[2])).await;
        // The peer goes down: carrier is lost, the route stays, and no frame may use the shorter
        // prefix.
        ip("link set spine down");
        leaf.until("no carrier", by(&[])).await;
        ip("link set spine up");
        leaf.until("carrier", by(&[2])).await;
        // The own end goes down: the kernel flushes the host route without a notification.
        ip("link set up1 down");
        leaf.until("the shorter prefix", by(&[3])).await;
        ip(
            "link set up1 up\nroute add 10.0.0.12/32 nexthop via 10.1.0.1 weight 3 nexthop via 10.2.0.1",
        );
        leaf.until("both", by(&[2, 3])).await;
        // The kernel marks one of two next hops dead, and live again, without a notification.
        ip("link set up1 down");
        leaf.until("one of both", by(&[3])).await;
        ip("link set up1 up");
        leaf.until("both again", by(&[2, 3])).await;
        ip(
            "nexthop add id 7 via 10.1.0.1 dev up1\nnexthop add id 8 via 10.2.0.1 dev up2\nnexthop add id 9 group 7/8\nroute replace 10.0.0.12/32 nhid 9",
        );
        leaf.until("a group", by(&[2, 3])).await;
        ip("link set up2 down");
        leaf.until("a group of one", by(&[2])).await;
        ip("link del up1");
        leaf.until("nothing", by(&[])).await;
        leaf.stop().await;
    });
}

/// A second namespace, for a neighbour that answers.
struct Spine(String);

impl Spine {
    fn new() -> Self {
        let name = format!("vtc-{}", std::process::id());
        ip(&format!("netns add {name}\nlink set spine netns {name}"));
        Self(name)
    }

    fn ip(&self, commands: &str) {
        let status = Command::new("ip").args(["-n", &self.0]).args(commands.split(' ')).status();
        assert!(status.unwrap().success(), "{commands}");
    }
}

impl Drop for Spine {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
    }
}

#[test]
fn an_unknown_gateway_is_resolved_by_the_kernel_and_checked_when_stale() {
    in_a_namespace(|| async {
        ip(LEAF);
        let spine = Spine::new();
        spine.ip("link set spine address 02:00:00:00:00:e2 up");
        spine.ip("address add 10.1.0.1/31 dev spine");
        ip("neigh del 10.1.0.1 dev up1");
        bridge(&format!("fdb append 00:00:00:00:00:00 dev vx10010 dst {VTEP} self permanent"));
        let mut leaf = Leaf::start(Kernel::open().unwrap(), None);
        let is = |mac: &str| {
            let mac = Some(mac.parse().unwrap());
            move |update: &Update| ways(update) == [(2, mac)]
        };
        leaf.until("the gateway's MAC", is("02:00:00:00:00:e2")).await;
        // The gateway is replaced without an announcement. The kernel notices because it is asked
        // to check a stale entry.
        spine.ip("link set spine address 02:00:00:00:00:e3");
        ip("neigh replace 10.1.0.1 lladdr 02:00:00:00:00:e2 dev up1 nud stale");
        leaf.until("the gateway's new MAC", is("02:00:00:00:00:e3")).await;
        ip("neigh del 10.1.0.1 dev up1");
        leaf.until("its loss", |update| ways(update) == [(2, None)]).await;
        leaf.until("the gateway's MAC again", is("02:00:00:00:00:e3")).await;
        leaf.stop().await;
    });
}

#[test]
fn q18_lost_events_are_made_up_for_by_a_dump() {
    in_a_namespace(|| async {
        ip(LEAF);
        // A receive buffer so small that a burst overruns it while the task does not read.
        let mut leaf = Leaf::start(Kernel::with_receive_buffer(2048).unwrap(), None);
        leaf.until("the VNI", |update| update.plan.vnis.contains_key(&Netdev(VXLAN))).await;
        let entries: String = (0..3000u32)
            .map(|n| {
                format!(
                    "fdb add 02:00:01:00:{:02x}:{:02x} dev vx10010 dst {VTEP} self\n",
                    n / 256,
                    n % 256
                )
            })
            .collect();
        bridge(&entries);
        let macs =
            |update: &Update| update.snapshot.vnis().map(|table| table.fdb.len()).sum::<usize>();
        leaf.until("3000 entries", move |update| macs(update) == 3000).await;
        assert!(leaf.status.borrow().overruns > 0, "nothing was lost, so nothing was tested");
        bridge(&entries.replace("add", "del"));
        leaf.until("their end", move |update| macs(update) == 0).await;
        leaf.stop().await;
    });
}

#[test]
fn zebra_by_fpm_and_a_namespace_without_it() {
    in_a_namespace(|| async {
        ip(LEAF);
        bridge("fdb add 02:00:00:00:00:77 dev vx10010 dst 10.0.0.12 self");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 2620));
        let mut leaf = Leaf::start(Kernel::open().unwrap(), Some(address));
        leaf.until("the MAC that zebra never tells", |update| {
            behind(update, "02:00:00:00:00:77") == Some(VTEP)
        })
        .await;
        leaf.until_status("no FPM yet", |status| {
            status.kernel == SourceState::Live && status.fpm == SourceState::Disconnected
        })
        .await;
        leaf.until_status("how to turn FPM on", |status| status.warnings.contains(&Warning::NoFpm))
            .await;

        // What FRR 10.3 sent when a MAC address was learned behind 10.0.0.12, on a leaf with the
        // same interface indices.
        let recorded = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/fpm/frr103-nhg-02-mac-only-learned.bin"
        );
        let recorded = std::fs::read(recorded).expect("the recorded stream");
        let mut zebra = tokio::net::TcpStream::connect(address).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut zebra, &recorded).await.unwrap();
        // The kernel does not have the entry and never deletes it, so only a dump removes it.
        leaf.until_status("the kernel to be asked", |status| status.swept.kernel == 1).await;
        let known = |count| {
            move |update: &Update| update.snapshot.vnis().all(|table| table.fdb.len() == count)
        };
        leaf.until("one MAC", known(1)).await;
        bridge("fdb add 02:aa:00:00:00:01 dev vx10010 dst 10.0.0.12 self");
        let before = leaf.until("two MACs", known(2)).await;
        leaf.until_status("a replay", |status| {
            status.fpm == SourceState::Syncing && status.warnings.is_empty()
        })
        .await;
        leaf.until_status("its end", |status| status.fpm == SourceState::Live).await;
        drop(zebra);
        leaf.until_status("zebra's end", |status| matches!(status.fpm, SourceState::Stale { .. }))
            .await;
        let after = leaf.published.borrow().clone();
        assert_eq!(
            after.snapshot.vnis().next().unwrap().fdb,
            before.snapshot.vnis().next().unwrap().fdb
        );
        leaf.stop().await;
    });
}

/// An FPM frame with a route to `prefix`/32 that drops packets, as zebra sends it.
fn blackhole(prefix: IpAddr) -> Vec<u8> {
    let mut message = Vec::new();
    // nlmsghdr: RTM_NEWROUTE, NLM_F_REQUEST | NLM_F_CREATE; rtmsg: /32, table main, RTPROT_ZEBRA,
    // RTN_BLACKHOLE.
    message.extend(36u32.to_ne_bytes());
    message.extend(24u16.to_ne_bytes());
    message.extend(0x401u16.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([2, 32, 0, 0, 254, 11, 0, 6, 0, 0, 0, 0]);
    message.extend([8, 0, 1, 0]);
    let IpAddr::V4(prefix) = prefix else { panic!("{prefix}") };
    message.extend(prefix.octets());
    [&[1, 1, 0, 40][..], &message].concat()
}

/// A connection whose socket belongs to this user.
fn connect_as(uid: u32, address: SocketAddr) -> std::net::TcpStream {
    // A thread has its own file system user, to which its sockets belong.
    let connect = move || {
        nix::unistd::setfsuid(uid.into());
        std::net::TcpStream::connect(address).unwrap()
    };
    std::thread::spawn(connect).join().unwrap()
}

const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2620);

#[test]
fn strangers_tell_no_routes() {
    in_a_namespace(|| async {
        ip(LEAF);
        bridge(&format!("fdb append 00:00:00:00:00:00 dev vx10010 dst {VTEP} self permanent"));
        let mut leaf = Leaf::start(Kernel::open().unwrap(), Some(ADDRESS));
        leaf.until("the VNI", |update| flood_list(update) == 1).await;
        let mut stranger = connect_as(65534, ADDRESS);
        let _ = stranger.write_all(&blackhole(VTEP));
        leaf.until_status("a refusal", |status| status.fpm_refused == 1).await;
        assert_eq!(leaf.status.borrow().fpm, SourceState::Disconnected);
        // The same frame from root changes the route, so the frame is well-formed.
        let mut zebra = connect_as(0, ADDRESS);
        zebra.write_all(&blackhole(VTEP)).unwrap();
        leaf.until_status("zebra", |status| status.fpm == SourceState::Live).await;
        leaf.until("no way to the VTEP", |update| ways(update).is_empty()).await;
        leaf.stop().await;
    });
}

#[test]
fn too_many_entries_end_fpm_and_are_forgotten() {
    in_a_namespace(|| async {
        ip(LEAF);
        bridge(&format!("fdb append 00:00:00:00:00:00 dev vx10010 dst {VTEP} self permanent"));
        let listener =
            FpmListener { address: Some(ADDRESS), most_entries: 100, ..FpmListener::default() };
        let mut leaf = Leaf::start_with(Kernel::open().unwrap(), listener);
        leaf.until("the VNI", |update| flood_list(update) == 1).await;
        let mut zebra = connect_as(0, ADDRESS);
        let frames: Vec<u8> = (0..99u8)
            .map(|last| IpAddr::from([10, 9, 9, last]))
            .chain([VTEP])
            .flat_map(blackhole)
            .collect();
        zebra.write_all(&frames).unwrap();
        leaf.until_status("a replay of 100 routes", |status| status.fpm == SourceState::Live).await;
        leaf.until("no way to the VTEP", |update| ways(update).is_empty()).await;
        zebra.write_all(&blackhole([10, 9, 9, 99].into())).unwrap();
        leaf.until("the kernel's route", |update| !ways(update).is_empty()).await;
        leaf.until_status("a warning", |status| {
            status.warnings.contains(&Warning::FpmTooMany(100))
        })
        .await;
        assert!(std::net::TcpStream::connect(ADDRESS).is_err(), "nobody listens any more");
        leaf.stop().await;
    });
}

#[test]
fn an_address_that_another_process_has_is_tried_again() {
    in_a_namespace(|| async {
        ip(LEAF);
        let other = std::net::TcpListener::bind(ADDRESS).unwrap();
        let mut leaf = Leaf::start(Kernel::open().unwrap(), Some(ADDRESS));
        let not_bound =
            |status: &Status| status.warnings.iter().any(|w| matches!(w, Warning::FpmNotBound(_)));
        leaf.until_status("a warning", not_bound).await;
        drop(other);
        leaf.until_status("no warning", |status| !not_bound(status)).await;
        drop(std::net::TcpStream::connect(ADDRESS).unwrap());
        leaf.stop().await;
    });
}

/// zebra before 8.4.7 crashes when it connects while it knows a router MAC address. Therefore the
/// server must not listen then.
#[test]
fn fpm_is_not_listened_for_while_a_router_mac_is_known() {
    in_a_namespace(|| async {
        ip(LEAF);
        ip("neigh add 10.0.0.12 lladdr 02:50:00:00:00:02 dev br10010 extern_learn nud noarp");
        bridge("fdb add 02:50:00:00:00:02 dev vx10010 dst 10.0.0.12 self extern_learn");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 2620));
        let mut leaf = Leaf::start(Kernel::open().unwrap(), Some(address));
        let held_back =
            |status: &Status| status.warnings.iter().any(|w| matches!(w, Warning::FpmHeldBack(_)));
        leaf.until_status("FPM held back", held_back).await;
        assert!(std::net::TcpStream::connect(address).is_err(), "nobody may listen");

        ip("neigh del 10.0.0.12 dev br10010");
        leaf.until_status("no danger any more", |status| {
            status.kernel == SourceState::Live && !held_back(status)
        })
        .await;
        drop(std::net::TcpStream::connect(address).expect("listened for again"));

        // No client is connected when it becomes known again.
        ip("neigh add 10.0.0.12 lladdr 02:50:00:00:00:02 dev br10010 extern_learn nud noarp");
        leaf.until_status("FPM held back again", held_back).await;
        assert!(std::net::TcpStream::connect(address).is_err(), "nobody may listen");
        leaf.stop().await;
    });
}
