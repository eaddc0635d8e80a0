//! The dissectors of `deploy/wireshark`, run by tshark on what real leaves send.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use root_test::root_test;
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, wait_for};

use crate::qp_pin::{QUEUE_PAIRS, RATE, placed, start, two_paths};

/// A capture, read by tshark with both dissectors.
struct Reader {
    capture: PathBuf,
    queue_pairs: PathBuf,
}

impl Reader {
    /// The fields of each packet that a filter shows. Values of a field are separated by commas.
    fn fields(&self, filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/wireshark");
        let script = |name: &str| format!("lua_script:{}", scripts.join(name).display());
        let mut command = Command::new("tshark");
        command.arg("-r").arg(&self.capture).arg("-X").arg(script("vtepd_probe.lua"));
        command.arg("-X").arg(script("vtepd_queue_pairs.lua"));
        command.arg("-o").arg(format!("vtepd_qp.file:{}", self.queue_pairs.display()));
        command.args(["-Y", filter, "-T", "fields"]);
        command.args(fields.iter().flat_map(|field| ["-e", field]));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("Lua"), "{said}");
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    }

    fn count(&self, filter: &str) -> usize {
        self.fields(filter, &["frame.number"]).len()
    }
}

/// Both uplinks are captured while queue pairs send. Their paths are those that vtepd shows, and
/// probes and answers are dissected to their last byte.
#[root_test]
fn tshark_shows_probes_and_the_path_of_each_queue_pair() {
    if let Err(error) = Command::new("tshark").arg("--version").output() {
        root_test::ignore(format!("tshark: {error}"));
    }
    let lab = Lab::new("wireshark");
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    let known = two_paths(&leaf, "10.0.0.2");
    let rate = Rate { frames: RATE, queue_pairs: QUEUE_PAIRS, payload: 64 };
    let stream = Stream::start(&lab.host, &lab.far, rate, 0x5a4c);
    wait_for("all queue pairs to be placed", || placed(&leaf).len() == QUEUE_PAIRS);
    stream.pass(1000);

    let folder = std::env::temp_dir().join(format!("vtepd-wireshark-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str| folder.join(name);
    let capture = |uplink: &str| {
        let mut command = Command::new("tcpdump");
        command.args(["-Z", "root", "-i", uplink, "-c", "3000", "-w"]).arg(file(uplink));
        command.arg("udp port 4789").stderr(Stdio::null());
        lab.leaf.spawn(&mut command).unwrap()
    };
    for mut capture in ["up1", "up2"].map(capture) {
        capture.wait(Duration::from_secs(60)).unwrap();
    }
    std::fs::write(file("qp.json"), leaf.ctl(&["qp", "-o", "json"]).stdout).unwrap();
    stream.finish_whole();
    let uplinks: BTreeMap<u64, String> =
        placed(&leaf).into_iter().map(|(number, (uplink, _))| (number, uplink)).collect();

    let links = links(&known);
    for uplink in ["up1", "up2"] {
        let reader = Reader { capture: file(uplink), queue_pairs: file("qp.json") };
        queue_pairs_are_on(&reader, uplink, &uplinks);
        messages_are_dissected(&reader, &links);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Addresses of the routers' interfaces towards the far leaf.
fn links(known: &serde_json::Value) -> Vec<String> {
    let paths = known["paths"].as_array().unwrap().iter();
    let routers = paths.flat_map(|path| path["routers"].as_array().unwrap());
    routers.map(|router| router.as_str().unwrap().to_owned()).collect()
}

fn queue_pairs_are_on(reader: &Reader, uplink: &str, uplinks: &BTreeMap<u64, String>) {
    let rows = reader.fields(
        "infiniband",
        &["vtepd_qp.number", "vtepd_qp.uplink", "vtepd_qp.off_path", "vtepd_qp.source_port"],
    );
    assert!(rows.len() > 1000, "{} RoCE packets on {uplink}", rows.len());
    let mut seen = BTreeSet::new();
    for row in &rows {
        let [number, on, off_path, _] = row.as_slice() else { panic!("{row:?}") };
        let number = u64::from_str_radix(number.trim_start_matches("0x"), 16).unwrap();
        assert_eq!((on.as_str(), off_path.as_str()), (uplink, "0"), "{row:?}");
        assert_eq!(uplinks.get(&number).map(String::as_str), Some(uplink), "{row:?}");
        seen.insert(number);
    }
    assert_eq!(seen.len(), QUEUE_PAIRS / 2, "{seen:?}");
}

fn messages_are_dissected(reader: &Reader, links: &[String]) {
    let (probes, answers) = (reader.count("vtepd.kind == 1"), reader.count("vtepd.kind == 2"));
    assert!(probes > 0 && answers > 0, "{probes} probes, {answers} answers");
    assert_eq!(reader.count("vtepd"), probes + answers);
    assert_eq!(reader.count("vtepd.bad_length || vtepd.bad_version || _ws.malformed"), 0);
    let ours = "vtepd.kind == 2 && ip.dst == 10.0.0.1 && vtepd.recorded";
    for row in reader.fields(ours, &["vtepd.recorded"]) {
        let [values] = row.as_slice() else { panic!("{row:?}") };
        assert!(values.split(',').all(|link| links.iter().any(|known| known == link)), "{row:?}");
    }
}
