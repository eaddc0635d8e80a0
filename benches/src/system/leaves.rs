//! Many leaves in one machine, each with a datapath of its own: CPU and memory. Traffic goes from
//! each leaf to each other leaf at a fixed rate.
//!
//! ```text
//!  hosts: h0 ── hp ─ br0 ─ vx0 ─ leaf 0 ─ up1 ── to0 ─┐
//!         h1 ── hp ─ br0 ─ vx0 ─ leaf 1 ─ up1 ── to1 ─┤ fabric: one router
//!         …                                           …
//! ```

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use fabric::packet::{Interface, PacketSocket};
use fabric::rtnl::{VethEnd, Vxlan};
use fabric::{Namespace, counters, netns};
use testbed::memory::{self, Memory};
use testbed::topology::PREFIX;
use testbed::{Daemon, Datapath};
use traffic::roce::{Addresses, FrameTemplate, SourcePort, connections};
use wire::MacAddr;

use super::{Failure, Options};
use crate::table::{Better, Figure, Row};

/// The datapaths of the leaves.
const DATAPATHS: [Datapath; 3] = [Datapath::Kernel, Datapath::Offload, Datapath::USERSPACE];
/// The number of leaves.
const LEAVES: u8 = 64;
/// Frames per second, in all. The machine can forward them in each datapath.
const RATE: u64 = 50_000;
/// Bytes of the RoCE payload of a frame.
const PAYLOAD: usize = 1024;
/// The least share of the frames that has to arrive.
const MIN_SHARE: f64 = 0.99;
/// How often the sender wakes up.
const TICK: Duration = Duration::from_millis(1);
/// VNIs and remote MAC addresses of the leaf whose memory is measured.
const VNIS: u32 = 100;
const MACS: u32 = 1000;

pub(super) fn measure(options: &Options) -> Result<Vec<Row>, Failure> {
    let time = Duration::from_secs(if options.quick { 2 } else { 5 });
    let fabric = Fabric::new()?;
    let mut measured: BTreeMap<Datapath, Vec<Measurement>> = BTreeMap::new();
    for round in 1..=options.rounds {
        for datapath in DATAPATHS.into_iter().filter(|datapath| options.includes(*datapath)) {
            options.check_interrupt()?;
            eprintln!("round {round} of {}: {LEAVES} leaves, {datapath}", options.rounds);
            let measurement = fabric.measure(datapath, options, time)?;
            measured.entry(datapath).or_default().push(measurement);
        }
    }
    drop(fabric);
    options.check_interrupt()?;
    let mut rows = table(&measured);
    rows.extend(large_leaf(&options.vtepd)?);
    Ok(rows)
}

/// What all leaves together needed.
#[derive(Debug, Clone, Copy)]
struct Measurement {
    /// CPU time of the machine for each frame, without the idle time and the sender, in ns.
    cpu: f64,
    /// CPU time of all daemons for each second and leaf, in µs.
    own: f64,
    /// Memory of one leaf's daemon, on average.
    memory: Memory,
}

fn table(measured: &BTreeMap<Datapath, Vec<Measurement>>) -> Vec<Row> {
    let of = |datapath: &Datapath, what: fn(&Measurement) -> f64| {
        Figure::of(measured.get(datapath).into_iter().flatten().map(what))
    };
    let mut rows = Vec::new();
    for datapath in measured.keys().filter(|datapath| **datapath != Datapath::Kernel) {
        let mut push = |what: &str, unit: &str, figure: Figure, kernel: Option<Figure>| {
            let case = format!("{LEAVES} leaves, {RATE} frames/s, {datapath}: {what}");
            rows.push(Row::beside("scale", case, unit, figure, kernel, Better::Lower));
        };
        let kernel = of(&Datapath::Kernel, |measured| measured.cpu);
        push("CPU", "ns/frame", of(datapath, |measured| measured.cpu), Some(kernel));
        push("own CPU of a leaf", "µs/s", of(datapath, |measured| measured.own), None);
        let private = of(datapath, |measured| measured.memory.private_mb());
        push("memory of a leaf, beyond the binary", "MB", private, None);
        push("BPF maps of a leaf", "MB", of(datapath, |measured| measured.memory.maps_mb()), None);
    }
    rows
}

/// The leaves, their hosts, and the router between them.
struct Fabric {
    leaves: Vec<Namespace>,
    _router: Namespace,
    hosts: Namespace,
    sockets: Vec<PacketSocket>,
    /// A frame for each pair of leaves: the index of the sending leaf, and the frame.
    frames: Vec<(usize, Vec<u8>)>,
}

fn vtep(leaf: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, leaf + 1)
}

fn host(leaf: u8) -> (MacAddr, Ipv4Addr) {
    (MacAddr([2, 0, 0, 0, 9, leaf]), Ipv4Addr::new(10, 1, 0, leaf + 1))
}

impl Fabric {
    fn new() -> Result<Self, Failure> {
        let name = |node: &str| format!("{PREFIX}{node}-{}", std::process::id());
        let (router, hosts) =
            (Namespace::create(name("router"))?, Namespace::create(name("hosts"))?);
        for namespace in [&router, &hosts] {
            quiet(namespace)?;
        }
        router.enter(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
        let mut leaves = Vec::new();
        for leaf in 0..LEAVES {
            let namespace = Namespace::create(name(&format!("leaf{leaf}")))?;
            quiet(&namespace)?;
            build_leaf(leaf, &namespace, &router, &hosts)?;
            leaves.push(namespace);
        }
        let sockets = hosts.enter(|| {
            (0..LEAVES)
                .map(|leaf| PacketSocket::sender(&Interface::find(&format!("h{leaf}"))?))
                .collect::<Result<Vec<_>, _>>()
        })??;
        let mut frames = Vec::new();
        let pairs = (0..LEAVES).flat_map(|to| (0..LEAVES).map(move |from| (from, to)));
        let pairs: Vec<(u8, u8)> = pairs.filter(|(from, to)| from != to).collect();
        for ((from, to), connection) in pairs.iter().zip(connections(1, pairs.len())) {
            let addresses = Addresses { source: host(*from), destination: host(*to) };
            let port = SourcePort::PerQueuePair;
            let template = FrameTemplate::new(addresses, connection, port, PAYLOAD, 1)?;
            let mut frame = Vec::new();
            template.write(0, &mut frame);
            frames.push((usize::from(*from), frame));
        }
        Ok(Self { leaves, _router: router, hosts, sockets, frames })
    }

    fn measure(
        &self,
        datapath: Datapath,
        options: &Options,
        time: Duration,
    ) -> Result<Measurement, Failure> {
        let mut daemons = Vec::new();
        for leaf in &self.leaves {
            options.check_interrupt()?;
            daemons.extend(datapath.start_vtepd(leaf, &options.vtepd)?);
        }
        // Each leaf must have seen each host.
        self.send(Duration::from_secs(1))?;
        let own = |daemons: &[Daemon]| daemons.iter().map(Daemon::cpu).sum::<Result<u64, _>>();
        let (own_before, busy_before, arrived) = (own(&daemons)?, busy()?, self.arrived()?);
        let started = Instant::now();
        let (sent, sender) = self.send(time)?;
        std::thread::sleep(Duration::from_millis(50));
        let seconds = started.elapsed().as_secs_f64();
        let (own_after, busy_after) = (own(&daemons)?, busy()?);
        let arrived = self.arrived()? - arrived;
        if (arrived as f64) < MIN_SHARE * sent as f64 {
            return Err(format!("{datapath}: of {sent} frames only {arrived} arrived").into());
        }
        let memory =
            daemons.iter().map(|daemon| memory::of(daemon.id())).collect::<Result<Vec<_>, _>>()?;
        for daemon in daemons {
            daemon.stop()?;
        }
        let busy = busy_after.saturating_sub(busy_before).saturating_sub(sender);
        Ok(Measurement {
            cpu: busy.as_nanos() as f64 / arrived as f64,
            own: (own_after - own_before) as f64 / 1e3 / seconds / f64::from(LEAVES),
            memory: Memory::mean(&memory),
        })
    }

    /// Sends at [`RATE`]. Returns the number of frames, and the CPU time of this thread in user
    /// mode. What the kernel does on the sender's behalf is forwarding.
    fn send(&self, time: Duration) -> Result<(u64, Duration), Failure> {
        let user = || -> Result<Duration, Failure> {
            let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD)?;
            let time = usage.user_time();
            Ok(Duration::new(time.tv_sec().try_into()?, u32::try_from(time.tv_usec())? * 1000))
        };
        let (started, before, mut sent) = (Instant::now(), user()?, 0_u64);
        let mut frames = self.frames.iter().cycle();
        while started.elapsed() < time {
            let due = (started.elapsed().as_secs_f64() * RATE as f64) as u64;
            for (from, frame) in frames.by_ref().take((due - sent) as usize) {
                let socket = self.sockets.get(*from).ok_or("a leaf without a socket")?;
                socket.send(&[frame])?;
            }
            sent = due;
            std::thread::sleep(TICK);
        }
        Ok((sent, user()?.saturating_sub(before)))
    }

    fn arrived(&self) -> Result<u64, Failure> {
        let all = counters::read(&self.hosts)?;
        let of = |(name, link): (&String, &counters::Counters)| {
            if name.starts_with('h') { link.rx_packets } else { 0 }
        };
        Ok(all.iter().map(of).sum())
    }
}

fn quiet(namespace: &Namespace) -> Result<(), Failure> {
    // This fails on a kernel without IPv6, which sends no IPv6 frames either.
    let _ =
        namespace.enter(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"))?;
    Ok(())
}

fn build_leaf(
    leaf: u8,
    at: &Namespace,
    router: &Namespace,
    hosts: &Namespace,
) -> Result<(), Failure> {
    let (port, gateway) = (format!("to{leaf}"), Ipv4Addr::new(10, 255, leaf, 1));
    let uplink = VethEnd { name: "up1", mac: None, mtu: 9500 };
    let far_end = VethEnd { name: &port, mac: None, mtu: 9500 };
    netns::veth_pair((at, uplink), (router, far_end))?;
    router.rtnl(|rtnl| {
        rtnl.add_address(&port, &format!("{gateway}/30"))?;
        rtnl.add_route(vtep(leaf), Ipv4Addr::new(10, 255, leaf, 2), &port)
    })?;
    at.rtnl(|rtnl| {
        rtnl.add_address("lo", &vtep(leaf).to_string())?;
        rtnl.add_address("up1", &format!("10.255.{leaf}.2/30"))?;
        rtnl.add_bridge("br0", false)?;
        let vxlan = Vxlan { name: "vx0", vni: 1, local: vtep(leaf), port: 4789, mtu: 1500 };
        rtnl.add_vxlan(vxlan)?;
        rtnl.set_master("vx0", Some("br0"))?;
        rtnl.set_up("vx0", true)?;
        rtnl.set_port_learning("vx0", false)?;
        for other in (0..LEAVES).filter(|other| *other != leaf) {
            rtnl.add_route(vtep(other), gateway, "up1")?;
            rtnl.add_remote_mac("vx0", host(other).0, vtep(other))?;
        }
        Ok(())
    })?;
    let name = format!("h{leaf}");
    netns::veth((at, "hp"), (hosts, &name), 1500)?;
    at.rtnl(|rtnl| {
        rtnl.set_master("hp", Some("br0"))?;
        rtnl.set_port_mac("hp", host(leaf).0)
    })?;
    // The kernel resolves the gateway before anything is measured.
    at.run(&["ping", "-c", "1", "-W", "2", &gateway.to_string()])?;
    Ok(())
}

/// CPU time that the machine has not been idle.
fn busy() -> Result<Duration, Failure> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let first = stat.lines().next().ok_or("/proc/stat is empty")?;
    let fields: Vec<u64> =
        first.split_ascii_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>()?;
    // user nice system idle iowait irq softirq steal (proc_stat(5)), in hundredths of a second.
    let at = |place: usize| fields.get(place).copied().unwrap_or_default();
    Ok(Duration::from_millis(10 * [0, 1, 2, 5, 6].into_iter().map(at).sum::<u64>()))
}

/// The memory of a leaf with many VNIs and MAC addresses.
fn large_leaf(vtepd: &Path) -> Result<Vec<Row>, Failure> {
    eprintln!("memory of a leaf with {VNIS} VNIs and {MACS} MAC addresses");
    let name = |node: &str| format!("{PREFIX}{node}-{}", std::process::id());
    let (leaf, peer) = (Namespace::create(name("large"))?, Namespace::create(name("next"))?);
    let (uplink, far) = ("up1", "down1");
    let end = |name| VethEnd { name, mac: None, mtu: 9500 };
    netns::veth_pair((&leaf, end(uplink)), (&peer, end(far)))?;
    let gateway = Ipv4Addr::new(10, 255, 0, 1);
    leaf.rtnl(|rtnl| {
        rtnl.add_address("lo", "10.0.0.1")?;
        rtnl.add_address(uplink, "10.255.0.2/30")?;
        rtnl.set_neighbour(uplink, gateway, MacAddr([2, 0xee, 0, 0, 0, 1]))?;
        for other in 1..=4 {
            rtnl.add_route(vtep(other), gateway, uplink)?;
        }
        for vni in 1..=VNIS {
            let (bridge, netdev) = (format!("br{vni}"), format!("vx{vni}"));
            rtnl.add_bridge(&bridge, false)?;
            let local = Ipv4Addr::new(10, 0, 0, 1);
            rtnl.add_vxlan(Vxlan { name: &netdev, vni, local, port: 4789, mtu: 1500 })?;
            rtnl.set_master(&netdev, Some(&bridge))?;
            rtnl.set_up(&netdev, true)?;
            rtnl.set_port_learning(&netdev, false)?;
            for number in 0..MACS / VNIS {
                let [_, _, high, low] = (vni * 100 + number).to_be_bytes();
                let remote = vtep(1 + (number % 4) as u8);
                rtnl.add_remote_mac(&netdev, MacAddr([2, 0, 0, 1, high, low]), remote)?;
            }
        }
        Ok(())
    })?;
    let mut daemon = Daemon::start(vtepd, &leaf, &["--no-fpm", "--datapath", "offload"])?;
    daemon.await_offloaded(VNIS)?;
    std::thread::sleep(Duration::from_secs(1));
    let memory = memory::of(daemon.id())?;
    daemon.stop()?;
    let row = |what: &str, mb: f64, target| Row {
        target,
        ..Row::beside(
            "scale",
            format!("{VNIS} VNIs, {MACS} MAC addresses, offload: {what}"),
            "MB",
            Figure::of([mb]),
            None,
            Better::Lower,
        )
    };
    Ok(vec![
        row("memory beyond the binary", memory.private_mb(), Some(20.0)),
        row("BPF maps", memory.maps_mb(), None),
    ])
}
