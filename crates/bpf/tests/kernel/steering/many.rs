//! Many VNIs: a program is attached to each netdev once, however often its VNI comes and goes.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use bpf::{Hook, Steering};
use root_test::root_test;
use tables::{SteeringPlan, TakenVni, VniIndex, VniSource};
use wire::Vni;

use super::{LOCAL, LONG_STALL, leaf, plan, remove, steer};

const VNIS: u32 = 100;
/// Interface index of the first netdev: high enough that no other test has it.
const FIRST: u32 = 4_000;

/// A plan with all VNIs.
fn all() -> SteeringPlan {
    let vni = |number: u32| TakenVni {
        vni: Vni::try_from(1000 + number).unwrap(),
        source: VniSource::Netdev(FIRST + number),
        name: format!("many{number}"),
        index: VniIndex::new(number as u16).unwrap(),
        local: LOCAL.into(),
        destination_port: 4789,
        frame_limit: 1450,
    };
    let vnis = (1..=VNIS).map(|number| (VniSource::Netdev(FIRST + number), vni(number))).collect();
    SteeringPlan { vnis, ..SteeringPlan::default() }
}

fn add(number: u32) -> String {
    let index = FIRST + number;
    format!(
        "link add many{number} index {index} type vxlan id 1{number:03} local 10.0.0.1 dstport 4789 nolearning\n"
    )
}

/// The identifiers of this process's tcx links at the netdevs, by interface index.
fn links() -> BTreeMap<u32, String> {
    let mut links = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let value = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key))
                .map(|value| value.trim().to_owned())
        };
        if let (Some(link), Some(index)) = (value("link_id:"), value("ifindex:")) {
            let index = index.parse().unwrap();
            if (FIRST + 1..=FIRST + VNIS).contains(&index) {
                links.insert(index, link);
            }
        }
    }
    links
}

fn apply(steering: &mut Steering, plan: &SteeringPlan) -> Duration {
    let start = Instant::now();
    remove(steering, plan);
    super::add(steering, plan);
    start.elapsed()
}

#[root_test]
fn programs_are_attached_once() {
    let leaf = leaf("many");
    let batch = std::env::temp_dir().join(format!("vtepd-many-{}", std::process::id()));
    fs::write(&batch, (1..=VNIS).map(add).collect::<String>()).unwrap();
    leaf.leaf.run(&["ip", "-batch", batch.to_str().unwrap()]).unwrap();
    fs::remove_file(batch).unwrap();
    for expedited in [false, true] {
        let (mut steering, _punts, _private) =
            steer(&leaf.leaf, Hook::Tcx, &plan(&leaf.leaf), LONG_STALL);
        if expedited {
            steering.allow_expedited_rcu();
        }
        let mut apply =
            |plan: &SteeringPlan| leaf.leaf.enter(|| apply(&mut steering, plan)).unwrap();
        let (all, none) = (all(), SteeringPlan::default());
        let times = [&all, &none, &all].map(&mut apply);
        println!("{VNIS} VNIs come, go and come again, expedited {expedited}: {times:?}");
        let before = links();
        assert_eq!(before.len(), VNIS as usize, "each has a program");
        apply(&none);
        assert_eq!(links(), before, "they stay while they are not used");
        apply(&all);
        assert_eq!(links(), before, "they are used again");

        // Another netdev has the index of a deleted one.
        apply(&none);
        leaf.leaf.run(&["ip", "link", "del", "many1"]).unwrap();
        leaf.leaf.run(&format!("ip {}", add(1)).split_whitespace().collect::<Vec<_>>()).unwrap();
        apply(&all);
        let (mut after, mut rest) = (links(), before);
        assert_ne!(after.remove(&(FIRST + 1)), rest.remove(&(FIRST + 1)), "it has a new program");
        assert_eq!(after, rest);
        // The program of a deleted netdev goes.
        apply(&none);
        leaf.leaf.run(&["ip", "link", "del", "many1"]).unwrap();
        apply(&none);
        assert_eq!(links(), rest);
        leaf.leaf.run(&format!("ip {}", add(1)).split_whitespace().collect::<Vec<_>>()).unwrap();
        let start = Instant::now();
        leaf.leaf.enter(|| drop(steering)).unwrap();
        println!("detached in {:?}", start.elapsed());
    }
}
