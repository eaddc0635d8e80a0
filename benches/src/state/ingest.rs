//! Processing zebra's stream from a socket with the real control task, and a dump of the kernel's
//! FDB.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::fixture::batch;
use control::{FpmListener, Request, Settings, State, Status};
use fabric::Namespace;
use netlink::{Dump, Kernel, Requests};
use tokio::sync::{mpsc, watch};

use super::fabric::{LARGE, Scale, mac, vtep};
use super::messages::{framed, message, route};
use super::row;
use crate::table::{Better, Row};

type Failure = Box<dyn Error + Send + Sync>;

/// The number of MAC addresses. Each is sent twice: first at one VTEP, then at another.
const MACS: u32 = 100_000;
/// The FPM address of the control task, in its own namespace.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2620);
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measures FPM and the dump.
///
/// # Errors
/// If a namespace or socket cannot be created.
pub fn measure(quick: bool) -> Result<Vec<Row>, Box<dyn Error>> {
    let namespace = Namespace::create(format!("vtb-state-{}", std::process::id()))?;
    ip(
        &namespace,
        "link add br0 type bridge\n\
         link add vx0 type vxlan id 1 local 10.0.0.1 dstport 4789 nolearning\n\
         link set vx0 master br0 up\n\
         link set br0 up\n\
         addr add 10.0.0.1/32 dev lo\n\
         link add up0 type veth peer name down0\n\
         link set up0 up\n\
         link set down0 up\n",
    )?;
    // With the flood entry, the VTEP is known independently of MAC addresses.
    batch(
        &namespace,
        "bridge",
        &format!("fdb append 00:00:00:00:00:00 dev vx0 dst {} self\n", vtep(1)),
    )?;
    let repeat = if quick { 1 } else { 3 };
    let mut rows = Vec::new();
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..repeat {
        let measured = namespace.enter(ingest)?.map_err(|error| error.to_string())?;
        for (rates, rate) in rates.iter_mut().zip(measured) {
            rates.push(rate);
        }
    }
    let [macs, routes] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
    });
    rows.push(row("FPM: MAC messages", "messages/s", macs, Some(200_000.0), Better::Higher));
    rows.push(row(
        "FPM: routes with 16 next hops",
        "routes/s",
        routes,
        Some(200_000.0),
        Better::Higher,
    ));
    rows.extend(dump(&namespace)?);
    Ok(rows)
}

/// `RTM_NEWNEIGH` as zebra 10.3 sends it for a remote MAC address.
fn remote_mac(number: u32, at: u32, vxlan: u32, bridge: u32, recording: &mut Vec<u8>) {
    let [i0, i1, i2, i3] = vxlan.to_ne_bytes();
    let body = [7, 0, 0, 0, i0, i1, i2, i3, 0x40, 0, 0x16, 0];
    let attributes: [(u16, &[u8]); 4] = [
        (2, &mac(number).0),
        (1, &vtep(at).octets()),
        (9, &bridge.to_ne_bytes()),
        (11, &1u32.to_ne_bytes()),
    ];
    recording.extend(framed(&message(28, 0x405, &body, &attributes)));
}

/// `RTM_NEWROUTE` for a /32 prefix with `hops` next hops through one interface.
fn multipath(number: u32, hops: u8, uplink: u32, recording: &mut Vec<u8>) {
    let hops: Vec<_> = (0..hops).map(|hop| (uplink, Ipv4Addr::new(10, 255, 0, hop + 1))).collect();
    recording.extend(framed(&route(vtep(number), &hops)));
}

/// Sends two recordings to a control task. Returns MAC messages/s and routes/s, measured until the
/// snapshot contains everything.
fn ingest() -> Result<[f64; 2], Failure> {
    let mut requests = Requests::open()?;
    let mut index = |name: &str| -> Result<u32, Failure> {
        Ok(requests.link(name)?.ok_or("the benchmark's interface is gone")?.ifindex)
    };
    let (vxlan, bridge, uplink) = (index("vx0")?, index("br0")?, index("up0")?);
    let reached = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let seen = Arc::clone(&reached);
    // Whether the last MAC address is at its second VTEP, and the number of next hops of that VTEP.
    let publish = move |update: &control::Update| {
        let snapshot = &update.snapshot;
        let moved = snapshot.vnis().any(|vni| {
            let at = vni.fdb.get(&mac(MACS - 1)).and_then(|index| snapshot.vtep(*index));
            at.is_some_and(|at| at.address == vtep(1))
        });
        let hops = snapshot.vteps().find(|known| known.address == vtep(1));
        let hops = hops.map_or(0, |known| known.paths.next_hops().len());
        // Keep the maximum: the kernel does not confirm these addresses, so they are removed again
        // soon.
        for (seen, now) in seen.iter().zip([usize::from(moved), hops]) {
            seen.fetch_max(now, Ordering::Release);
        }
    };
    let (ask, asked) = mpsc::channel(1);
    let (started, ready) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let control = scope.spawn(move || -> Result<(), Failure> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async move {
                let state = State::new(Settings::default(), control::Namespace::default());
                let listener = FpmListener {
                    address: Some(ADDRESS),
                    accept_hazard: true,
                    ..FpmListener::default()
                };
                let (status, _) = watch::channel(Status::default());
                let publish = move |update: &control::Update, _: &control::Diff| {
                    let _ = started.send(());
                    publish(update);
                };
                control::run(
                    state,
                    Kernel::open()?,
                    listener,
                    asked,
                    status,
                    control::Journal::default(),
                    publish,
                )
                .await?;
                Ok(())
            })
        });
        // When the first snapshot is published, the control task is listening.
        let rates = ready.recv_timeout(TIMEOUT).map_err(Failure::from).and_then(|()| {
            let [moved, hops] = &*reached;
            let mut recording = Vec::new();
            let Scale { routes, uplinks, .. } = LARGE;
            for number in (0..routes).rev() {
                multipath(number, uplinks as u8, uplink, &mut recording);
            }
            let routes = f64::from(routes) / play(&recording, hops, uplinks as usize)?;
            recording.clear();
            for at in [0, 1] {
                (0..MACS).for_each(|number| remote_mac(number, at, vxlan, bridge, &mut recording));
            }
            let macs = f64::from(2 * MACS) / play(&recording, moved, 1)?;
            Ok([macs, routes])
        });
        let _ = ask.blocking_send(Request::Shutdown);
        match control.join() {
            Ok(ended) => ended.and(rates),
            Err(_) => Err("the control task panicked".into()),
        }
    })
}

/// The time in seconds from the first byte until the published state includes the last message.
fn play(recording: &[u8], reached: &AtomicUsize, until: usize) -> Result<f64, Failure> {
    let start = Instant::now();
    fpm::replay(recording, ADDRESS, None)?;
    while reached.load(Ordering::Acquire) < until {
        if start.elapsed() > TIMEOUT {
            return Err(format!(
                "not all of the stream was published: {}",
                reached.load(Ordering::Acquire)
            )
            .into());
        }
        std::thread::yield_now();
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Measures a dump of [`LARGE`]'s MAC addresses from the kernel, and applying it.
fn dump(namespace: &Namespace) -> Result<Vec<Row>, Box<dyn Error>> {
    let entries: String = (0..LARGE.macs)
        .map(|number| {
            format!("fdb append {} dev vx0 dst {} self\n", mac(number), vtep(number % 1000))
        })
        .collect();
    batch(namespace, "bridge", &entries)?;
    let measured = namespace.enter(|| -> Result<_, netlink::Error> {
        let mut requests = Requests::open()?;
        let start = Instant::now();
        let dump = requests.dump(Dump::Fdb)?;
        let read = start.elapsed();
        let entries = dump.len() as f64;
        let mut state = State::new(Settings::default(), control::Namespace::default());
        for what in [Dump::Links, Dump::Addresses] {
            let dump = requests.dump(what)?;
            state.resync(what, dump);
        }
        let start = Instant::now();
        state.resync(Dump::Fdb, dump);
        drop(state.build());
        let first = start.elapsed();
        let dump = requests.dump(Dump::Fdb)?;
        let start = Instant::now();
        state.resync(Dump::Fdb, dump);
        Ok((entries, read, first, start.elapsed()))
    })?;
    let (entries, read, first, again) = measured?;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let row = |what: &str, time| {
        row(
            &format!("netlink: {entries} FDB entries {what}"),
            "ms",
            milliseconds(time),
            None,
            Better::Lower,
        )
    };
    Ok(vec![row("dumped", read), row("taken in", first), row("confirmed", again)])
}

fn ip(namespace: &Namespace, lines: &str) -> Result<(), Box<dyn Error>> {
    batch(namespace, "ip", lines)
}
