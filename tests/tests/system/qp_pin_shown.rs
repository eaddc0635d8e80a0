//! What `vtepctl explain` and the metrics show of the policy `qp-pin`.

use std::collections::{BTreeMap, BTreeSet};

use root_test::root_test;
use serde_json::Value;
use vtepd_tests::daemon::Metrics;
use vtepd_tests::lab::{VNI, ip};
use vtepd_tests::{Capture, Lab, Vtepd, wait_for};

use crate::qp_pin::{CONFIGURATION, send};

const UPLINKS: usize = 2;

/// Sends the first frame of a queue pair.
fn begin(lab: &Lab, queue_pair: u32) {
    send(&lab.host, &lab.far, queue_pair, &[(0x04, 1, 0, 2)]);
}

/// The flow of a queue pair for `vtepctl explain`.
fn explain(lab: &Lab, queue_pair: u32) -> Vec<String> {
    let (source, destination) = (lab.host.ip().to_string(), lab.far.ip().to_string());
    let mac = lab.far.mac().to_string();
    let words = ["explain", "--vni", "10", "--dst-mac", &mac, "--src", &source, "--dst"];
    let queue_pair = queue_pair.to_string();
    let flow = [&destination, "--qp", &queue_pair, "--sport", "49152"];
    words.iter().chain(&flow).map(|word| (*word).to_owned()).collect()
}

/// The copy in an explanation, and the same as text.
pub(crate) fn explained(vtepd: &Vtepd, lab: &Lab, queue_pair: u32) -> (Value, String) {
    let flow = explain(lab, queue_pair);
    let flow: Vec<&str> = flow.iter().map(String::as_str).collect();
    let text = String::from_utf8(vtepd.ctl(&flow).stdout).unwrap();
    (vtepd.ask(&flow)["copies"][0].take(), text)
}

/// Uplinks, ports and routers of the paths in a placement.
fn paths(copy: &Value) -> BTreeSet<String> {
    let path = |path: &Value| {
        let [uplink, ports, routers] =
            ["uplink", "source_ports", "routers"].map(|name| path[name].to_string());
        format!("{uplink} {ports} {routers}")
    };
    copy["placement"]["paths"].as_array().unwrap().iter().map(path).collect()
}

/// MMR, floor and Jain's index in metrics, for each tier.
fn tiers(metrics: &Metrics) -> BTreeMap<usize, [f64; 3]> {
    let tier = |number: usize| {
        let figure = |name: &str| {
            let series = format!("vtepd_tier_{name}{{vtep=\"10.0.0.2\",tier=\"{number}\"}} ");
            metrics.0.lines().find_map(|line| line.strip_prefix(&series)?.parse::<f64>().ok())
        };
        let [mmr, floor, jain] = ["mmr", "mmr_floor", "jain"].map(figure);
        Some((number, [mmr?, floor?, jain?]))
    };
    (1..9).map_while(tier).collect()
}

/// The same figures of both tiers from the numbers of queue pairs on the links: uplinks, and those of
/// the routers behind them.
fn expected(on: [f64; UPLINKS]) -> BTreeMap<usize, [f64; 3]> {
    let (sum, links) = (on[0] + on[1], UPLINKS as f64);
    let mmr = on[0].max(on[1]) * links / sum;
    let floor = (sum / links).ceil() * links / sum;
    let jain = sum * sum / (links * (on[0] * on[0] + on[1] * on[1]));
    BTreeMap::from([(1, [mmr, floor, jain]), (2, [mmr, floor, jain])])
}

fn are_near(found: &BTreeMap<usize, [f64; 3]>, expected: &BTreeMap<usize, [f64; 3]>) -> bool {
    let figures = |tiers: &BTreeMap<usize, [f64; 3]>| tiers.values().flatten().copied().collect();
    let (found, expected): (Vec<f64>, Vec<f64>) = (figures(found), figures(expected));
    found.len() == expected.len() && found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 0.001)
}

/// Two queue pairs begin while one path is dead. Then a third one does.
#[root_test]
fn p7_explain_and_metrics_tell_where_queue_pairs_are() {
    let lab = Lab::new("qpshown");
    ip(&lab.routers[0], "route replace blackhole 10.0.0.2/32");
    let start = |namespace| Vtepd::start_configured(namespace, CONFIGURATION, &[]);
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    let map = || leaf.ask(&["path", "--vtep", "10.0.0.2"])[0].take();
    let known = |number: usize| {
        let map = map();
        map["ready"] == true && map["paths"].as_array().unwrap().len() == number
    };
    wait_for("the living path to be known", || known(1));
    let placed = || leaf.ask(&["qp"]).as_array().unwrap().clone();
    for queue_pair in [0x61, 0x62] {
        begin(&lab, queue_pair);
    }
    wait_for("two queue pairs", || placed().len() == 2);
    // One link in each tier is as even as can be.
    let single = BTreeMap::from([(1, [1.0; 3]), (2, [1.0; 3])]);
    leaf.wait_for("the only links", |metrics| are_near(&tiers(metrics), &single));

    // The other path is there again, and its links have no queue pair. These have ended, and stay.
    ip(&lab.routers[0], "route replace 10.0.0.2/32 via 10.2.1.1");
    wait_for("both paths to be known", || known(2));
    let uneven = expected([2.0, 0.0]);
    assert_eq!(uneven[&1], [2.0, 1.0, 0.5]);
    leaf.wait_for("links without queue pairs", |metrics| are_near(&tiers(metrics), &uneven));

    // A third one can get both paths, until its first frame has one of them.
    let (before, text) = explained(&leaf, &lab, 0x63);
    assert_eq!((&before["placement"]["state"], paths(&before).len()), (&"new".into(), 2), "{text}");
    assert!(
        text.contains("not placed yet") && text.matches("known path: port").count() == 2,
        "{text}"
    );
    assert!(!text.contains("outer source port") && !text.contains("leaves by"), "{text}");
    let up = lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", 4789));
    begin(&lab, 0x63);
    wait_for("three queue pairs", || placed().len() == 3);
    let (after, text) = explained(&leaf, &lab, 0x63);
    assert_eq!(after["placement"]["state"], "pinned", "{text}");
    assert!(
        paths(&after).len() == 1 && paths(&after).is_subset(&paths(&before)),
        "{before} {after}"
    );
    let row = placed().into_iter().find(|row| row["queue_pair"] == 0x63).unwrap();
    let path = &after["placement"]["paths"][0];
    assert_eq!((&path["uplink"], &path["routers"]), (&row["uplink"], &row["routers"]), "{row}");
    assert_eq!(path["source_ports"], serde_json::json!([row["source_port"]]));
    assert_eq!(
        (&after["source_port"], &after["route"]["uplink"]),
        (&row["source_port"], &row["uplink"])
    );
    // Tier by tier, and without a hash that did not decide.
    let [uplink, router] =
        [&row["uplink"], &row["routers"][0]].map(|value| value.as_str().unwrap());
    assert!(text.contains("placed by qp-pin on outer source port"), "{text}");
    assert!(text.contains(&format!("tier 1 {uplink}, tier 2 {router}\n")), "{text}");
    assert!(!text.contains("hash"), "{text}");
    // The frame on the wire has taken that path.
    let [first, second] = up.map(Capture::stop).map(|frames| {
        let data = frames.iter().filter_map(|frame| frame.outer(4789));
        let ports = data.filter(|outer| outer.vni == VNI).map(|outer| outer.source_port);
        ports.map(u64::from).collect::<Vec<_>>()
    });
    let (by, other) = if uplink == "up1" { (first, second) } else { (second, first) };
    assert_eq!((by, other), (vec![row["source_port"].as_u64().unwrap()], Vec::new()));

    let on = ["up1", "up2"]
        .map(|uplink| placed().iter().filter(|row| row["uplink"] == uplink).count() as f64);
    let three = expected(on);
    leaf.wait_for("three queue pairs", |metrics| are_near(&tiers(metrics), &three));
}

/// A queue pair ends. Who asks where it went gets the path that it had.
#[root_test]
fn p3_a_queue_pair_that_has_gone_is_remembered_with_its_path() {
    let lab = Lab::new("qpgone");
    let configuration = format!("{CONFIGURATION}idle = 1\n");
    let leaf = Vtepd::start_configured(&lab.leaf, &configuration, &[]);
    let _peer = Vtepd::start_configured(&lab.peer, &configuration, &[]);
    wait_for("both paths to be known", || {
        let map = leaf.ask(&["path", "--vtep", "10.0.0.2"])[0].take();
        map["ready"] == true && map["paths"].as_array().unwrap().len() == 2
    });
    let rows = |words: &[&str]| leaf.ask(words).as_array().unwrap().clone();
    let keep_sending = || {
        [0x61, 0x62].iter().for_each(|queue_pair| begin(&lab, *queue_pair));
        rows(&["qp"])
    };
    let mut placed = Vec::new();
    wait_for("two queue pairs that are pinned", || {
        placed = keep_sending();
        placed.len() == 2 && placed.iter().all(|row| row["state"] == "pinned")
    });
    wait_for("both to have gone", || rows(&["qp"]).is_empty());
    let gone = rows(&["qp", "--gone"]);
    assert_eq!(gone.len(), 2, "{gone:?}");
    for (row, before) in gone.iter().zip(&placed) {
        assert_eq!(row["state"], "gone", "{row}");
        for field in ["vni", "queue_pair", "source", "vtep", "uplink", "source_port", "routers"] {
            assert_eq!(row[field], before[field], "{field}: {row} {before}");
        }
        assert!(row["frames"].as_u64() >= before["frames"].as_u64(), "{row} {before}");
    }
    // By its number, which finds it wherever it is.
    let [by_number] = &rows(&["qp", "0x62"])[..] else { panic!("one has this number") };
    assert_eq!(
        (&by_number["state"], &by_number["uplink"]),
        (&gone[1]["state"], &gone[1]["uplink"])
    );
    begin(&lab, 0x62);
    wait_for("it to be placed again", || {
        let both = rows(&["qp", "0x62"]);
        both.len() == 2 && both[0]["state"] != "gone" && both[1]["state"] == "gone"
    });
    let unknown = leaf.ctl(&["qp", "0x63"]);
    let said = String::from_utf8(unknown.stderr).unwrap();
    assert!(!unknown.status.success() && said.contains("0x63 is not placed"), "{said}");
}
