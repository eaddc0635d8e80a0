//! The uplink of each queue pair does not depend on earlier events. The fabric uses BGP unnumbered,
//! where zebra and the kernel name the same next hop differently.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::v1;
use fabric::process::wait_until;
use nix::sys::signal::Signal;
use root_test::root_test;

use super::fixture::{CONVERGENCE, ScaleAcross, Vtepd, frr};

const LEAF: &str = "leaf1";
const VNI: u32 = 10_010;
const QUEUE_PAIRS: u32 = 1024;
const UPLINKS: [&str; 2] = ["up1", "up2"];
const NO_OBJECTS: &str = "no zebra nexthop kernel enable\n";

/// The uplink and the outer source port of each queue pair.
type Map = Vec<(String, u32)>;

/// The flow of a queue pair, from host1 to host2.
fn flow(queue_pair: u32) -> v1::Flow {
    let [source, destination] = [1, 2].map(|host| Some(format!("192.168.10.{host}")));
    v1::Flow {
        destination_mac: Some("02:00:00:00:02:01".to_owned()),
        source,
        destination,
        queue_pair: Some(queue_pair),
        ..v1::Flow::default()
    }
}

/// Asks vtepd for the uplink and the source port of each queue pair.
fn map(fabric: &ScaleAcross) -> Map {
    let asked = fabric.namespace(LEAF).enter(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut client = api::connect(&api::Address::default()).await.unwrap();
            let mut map = Vec::new();
            for queue_pair in 0..QUEUE_PAIRS {
                let request = v1::ExplainRequest {
                    vni: VNI,
                    frame: Vec::new(),
                    flow: Some(flow(queue_pair)),
                };
                let answer = client.explain(request).await.unwrap().into_inner();
                let uplink =
                    |copy: &v1::Copy| copy.route.as_ref().map(|route| route.uplink.clone());
                map.extend(
                    answer
                        .copies
                        .iter()
                        .map(|copy| (uplink(copy).unwrap_or_default(), copy.source_port)),
                );
            }
            map
        })
    });
    asked.unwrap()
}

/// Uplinks and gateways of the route to the other leaf.
fn next_hops(vtepd: &Vtepd) -> Vec<(String, String)> {
    let routes = vtepd.ask(&["route", "--vtep", "10.0.0.12"]);
    let hops = routes[0]["next_hops"].as_array().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    hops.iter().map(|hop| (text(&hop["uplink"]), text(&hop["gateway"]))).collect()
}

/// Waits as long as FRR may take to converge. Each question starts programs, so it asks ten times a
/// second.
fn converges(mut condition: impl FnMut() -> bool) -> bool {
    wait_until(CONVERGENCE, || {
        condition() || {
            std::thread::sleep(Duration::from_millis(100));
            false
        }
    })
}

/// Waits until the route to the other leaf uses exactly these uplinks.
fn wait_for_uplinks(vtepd: &Vtepd, wanted: &[&str]) {
    let mut hops = Vec::new();
    let came = converges(|| {
        hops = next_hops(vtepd);
        let uplinks: Vec<&str> = hops.iter().map(|(uplink, _)| uplink.as_str()).collect();
        uplinks == wanted
    });
    assert!(came, "waited in vain for {wanted:?}; the next hops are {hops:?}");
}

fn wait_for_fpm(vtepd: &Vtepd) {
    vtepd.wait_for("zebra's FPM connection", |metrics| metrics.is_state("fpm", "live"));
}

/// Checks that only the queue pairs of this uplink moved, and that all source ports are unchanged.
fn only_moved_from(uplink: &str, before: &Map, after: &Map) {
    assert_eq!((before.len(), after.len()), (QUEUE_PAIRS as usize, QUEUE_PAIRS as usize));
    for (queue_pair, (before, after)) in before.iter().zip(after).enumerate() {
        assert_eq!(before.1, after.1, "the source port of queue pair {queue_pair}");
        assert!(
            before.0 == uplink || before.0 == after.0,
            "queue pair {queue_pair} moved from {}",
            before.0
        );
        assert_ne!(after.0, uplink, "queue pair {queue_pair}");
    }
}

/// An uplink is lost and returns.
fn flap(fabric: &ScaleAcross, vtepd: &Vtepd, uplink: &str, before: &Map) {
    let others: Vec<&str> = UPLINKS.into_iter().filter(|other| *other != uplink).collect();
    let seen =
        vtepd.events(0).last().and_then(|event| event["sequence"].as_u64()).unwrap_or_default();
    fabric.run(LEAF, &format!("ip link set {uplink} down"));
    wait_for_uplinks(vtepd, &others);
    only_moved_from(uplink, before, &map(fabric));
    fabric.run(LEAF, &format!("ip link set {uplink} up"));
    // zebra may remove the uplink once more, because its session with the spine was about to time
    // out.
    let came = converges(|| next_hops(vtepd).len() == UPLINKS.len() && map(fabric) == *before);
    assert!(came, "after a flap of {uplink}; the next hops are {:?}", next_hops(vtepd));
    let moved: Vec<_> =
        vtepd.events(seen).into_iter().filter(|event| event["kind"] == "flows-moved").collect();
    let all = moved.iter().all(|event| event["buckets"].as_u64() == Some(512));
    assert!(all && moved.len() >= 2 && moved.len() % 2 == 0, "away and back: {moved:?}");
}

/// The `minimal` fabric. `objects` selects whether its leaves' zebra installs next-hop objects in
/// the kernel.
fn fabric(name: &str, objects: bool) -> (ScaleAcross, Vec<PathBuf>) {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/containerlab/minimal.clab.yml");
    let mut files = Vec::new();
    let fabric = ScaleAcross::other_with(name, &file, |topology| {
        for leaf in ["leaf1", "leaf2"].into_iter().filter(|_| objects) {
            let binds = &mut topology.nodes.get_mut(leaf).unwrap().binds;
            let bind = binds.iter_mut().find(|bind| bind.target.ends_with("frr.conf")).unwrap();
            let text = std::fs::read_to_string(&bind.source).unwrap();
            assert!(text.contains(NO_OBJECTS), "{leaf}");
            bind.source =
                std::env::temp_dir().join(format!("vtepd-{leaf}-{}.conf", std::process::id()));
            std::fs::write(&bind.source, text.replace(NO_OBJECTS, "")).unwrap();
            files.push(bind.source.clone());
        }
    });
    (fabric, files)
}

fn start(fabric: &ScaleAcross, arguments: &[&str]) -> Vtepd {
    let vtepd = fabric.spawn(LEAF, arguments);
    vtepd.wait_until_it_forwards(1);
    vtepd
}

#[root_test(needs = frr)]
fn queue_pairs_have_the_uplinks_of_the_configuration_whatever_happened() {
    let (fabric, _) = fabric("evpn-placement", false);
    let vtepd = start(&fabric, &[]);
    wait_for_fpm(&vtepd);
    wait_for_uplinks(&vtepd, &UPLINKS);
    let (before, named) = (map(&fabric), next_hops(&vtepd));
    for uplink in UPLINKS {
        assert!(
            before.iter().filter(|(used, _)| used == uplink).count() > QUEUE_PAIRS as usize / 3
        );
    }
    for uplink in ["up1", "up2", "up1"] {
        flap(&fabric, &vtepd, uplink, &before);
    }
    assert_eq!(next_hops(&vtepd), named);
    vtepd.end_by(Signal::SIGTERM);
    let vtepd = start(&fabric, &[]);
    assert!(map(&fabric) == before, "after a restart");
    wait_for_fpm(&vtepd);
    assert!(map(&fabric) == before, "after a restart, with FPM");
    let successor = fabric.spawn(LEAF, &["--replace"]);
    assert!(wait_until(CONVERGENCE, || !vtepd.alive()));
    successor.wait_until_it_forwards(1);
    assert!(map(&fabric) == before, "after --replace");
    wait_for_fpm(&successor);
    assert!(map(&fabric) == before, "after --replace, with FPM");
    assert_eq!(next_hops(&successor), named);
    successor.end_by(Signal::SIGTERM);
    let alone = start(&fabric, &["--no-fpm"]);
    assert!(map(&fabric) == before, "without FPM");
    assert_eq!(next_hops(&alone), named);
}

/// With next-hop objects the kernel's gateways are the neighbours' link-local addresses, while
/// zebra's FPM messages contain 169.254.0.1. FRR 8.4.4 does not always reinstall an uplink that has
/// returned, so each uplink gets a fabric of its own.
#[root_test(needs = frr)]
fn zebra_and_the_kernel_name_the_same_next_hops() {
    for uplink in UPLINKS {
        let (fabric, files) = fabric("evpn-objects", true);
        let alone = start(&fabric, &["--no-fpm"]);
        wait_for_uplinks(&alone, &UPLINKS);
        let (before, named) = (map(&fabric), next_hops(&alone));
        let gateways: BTreeSet<&str> = named.iter().map(|(_, gateway)| gateway.as_str()).collect();
        assert!(gateways.iter().all(|gateway| gateway.starts_with("fe80::")), "{gateways:?}");
        alone.end_by(Signal::SIGTERM);
        let vtepd = start(&fabric, &[]);
        wait_for_fpm(&vtepd);
        wait_for_uplinks(&vtepd, &UPLINKS);
        assert!(map(&fabric) == before, "with FPM");
        assert_eq!(next_hops(&vtepd), named, "metric labels stay when zebra connects");
        flap(&fabric, &vtepd, uplink, &before);
        assert_eq!(next_hops(&vtepd), named, "after a flap of {uplink}");
        drop(vtepd);
        drop(fabric);
        files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    }
}
