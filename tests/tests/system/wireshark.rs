//! The dissectors of `deploy/wireshark`, run by tshark on what real leaves send.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use root_test::root_test;
use vtepd_tests::lab::VNI;
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Vtepd, wait_for};

use crate::qp_pin::{CONFIGURATION, QUEUE_PAIRS, RATE, placed, start, two_paths};

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

/// Packets that are captured on each uplink.
const PACKETS: &str = "3000";

/// A folder for captures. Drop deletes it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Captures on both uplinks of the leaf, and keeps what its vtepd knows of queue pairs.
    fn capture(&self, lab: &Lab, leaf: &Vtepd) -> [Reader; 2] {
        let uplinks = ["up1", "up2"];
        let capture = |uplink: &str| {
            let mut command = Command::new("tcpdump");
            command.args(["-Z", "root", "-i", uplink, "-c", PACKETS, "-w"]);
            command.arg(self.0.join(uplink)).arg("udp port 4789").stderr(Stdio::null());
            lab.leaf.spawn(&mut command).unwrap()
        };
        for mut capture in uplinks.map(capture) {
            capture.wait(Duration::from_secs(60)).unwrap();
        }
        let queue_pairs = self.0.join("qp.json");
        std::fs::write(&queue_pairs, leaf.ctl(&["qp", "-o", "json"]).stdout).unwrap();
        uplinks
            .map(|uplink| Reader { capture: self.0.join(uplink), queue_pairs: queue_pairs.clone() })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ignores the test where tshark is missing.
pub(crate) fn need_tshark() {
    if let Err(error) = Command::new("tshark").arg("--version").output() {
        root_test::ignore(format!("tshark: {error}"));
    }
}

/// Both uplinks are captured while queue pairs send. Their paths are those that vtepd shows, and
/// probes and answers are dissected to their last byte.
#[root_test]
fn tshark_shows_probes_and_the_path_of_each_queue_pair() {
    need_tshark();
    let lab = Lab::new("wireshark");
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    let known = two_paths(&leaf, "10.0.0.2");
    let rate = Rate { frames: RATE, queue_pairs: QUEUE_PAIRS, payload: 64 };
    let stream = Stream::start(&lab.host, &lab.far, rate, 0x5a4c);
    wait_for("all queue pairs to be placed", || placed(&leaf).len() == QUEUE_PAIRS);
    stream.pass(1000);

    let folder = Folder::new("vtepd-wireshark");
    let readers = folder.capture(&lab, &leaf);
    stream.finish_whole();
    let uplinks: BTreeMap<u64, String> =
        placed(&leaf).into_iter().map(|(number, (uplink, _))| (number, uplink)).collect();

    let links = links(&known);
    for (reader, uplink) in readers.iter().zip(["up1", "up2"]) {
        queue_pairs_are_on(reader, uplink, &uplinks);
        messages_are_dissected(reader, &links);
    }
}

/// Both leaves spray. Their reports name the VNI, and what arrived by each path that vtepd shows.
#[root_test]
fn tshark_shows_what_arrived_by_each_sprayed_path() {
    need_tshark();
    let lab = Lab::new("wireshark-spray");
    let configuration = CONFIGURATION.replace("qp-pin", "spray");
    let [leaf, peer] =
        [&lab.leaf, &lab.peer].map(|leaf| Vtepd::start_configured(leaf, &configuration, &[]));
    for (leaf, vtep) in [(&leaf, "10.0.0.2"), (&peer, "10.0.0.1")] {
        leaf.wait_for("two paths to spray over", |metrics| {
            metrics.find(&format!("vtepd_spray_paths{{vtep=\"{vtep}\"}}")) == Some(2)
        });
    }
    let rate = Rate { frames: RATE, queue_pairs: QUEUE_PAIRS, payload: 64 };
    let stream = Stream::start(&lab.host, &lab.far, rate, 0x5a4d);
    stream.pass(1000);
    let folder = Folder::new("vtepd-wireshark-spray");
    let readers = folder.capture(&lab, &leaf);
    stream.finish_whole();
    let path = leaf.ask(&["path"]);
    let sprayed = path[0]["sprayed"].as_array().unwrap().iter();
    let ports: BTreeSet<String> = sprayed.map(|of| of["source_port"].to_string()).collect();
    assert_eq!(ports.len(), 2, "{path}");

    let about_ours = "vtepd.kind == 3 && ip.dst == 10.0.0.1";
    let fields = ["vni", "vnis", "paths", "port", "received", "marked"];
    let names = fields.map(|field| format!("vtepd.spray.{field}"));
    let names = names.each_ref().map(String::as_str);
    let mut received = BTreeMap::<String, Vec<u16>>::new();
    for reader in &readers {
        assert_eq!(reader.count("vtepd.bad_length || vtepd.bad_version || _ws.malformed"), 0);
        for row in reader.fields(about_ours, &names) {
            let [vni, vnis, paths, port, arrived, marked] = row.as_slice() else {
                panic!("{row:?}")
            };
            assert_eq!((vni, vnis.as_str()), (&VNI.to_string(), "1"), "{row:?}");
            let split = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
            let (port, arrived) = (split(port), split(arrived));
            assert_eq!(port.iter().cloned().collect::<BTreeSet<_>>(), ports, "{row:?}");
            assert_eq!((paths.as_str(), marked.as_str()), ("2", "0,0"), "{row:?}");
            for (port, arrived) in port.into_iter().zip(arrived) {
                received.entry(port).or_default().push(arrived.parse().unwrap());
            }
        }
        // The far leaf has nothing to report but which VNIs it takes; this one tells it the same.
        let theirs = reader.fields("vtepd.kind == 3 && ip.dst == 10.0.0.2", &["vtepd.spray.vni"]);
        assert!(theirs.iter().all(|row| row == &[VNI.to_string()]), "{theirs:?}");
    }
    let rows = readers.each_ref().map(|reader| {
        let fields = ["vtepd_qp.path", "vtepd_qp.state", "vtepd_qp.off_path"];
        reader.fields("vxlan.vni == 10 && infiniband && ip.dst == 10.0.0.2", &fields)
    });
    for row in rows.iter().flatten() {
        assert_eq!(row, &["sprayed over 2 paths", "sprayed", ""]);
    }
    assert!(rows.iter().all(|rows| rows.len() > 1000), "{}", rows[0].len());
    // Totals, and each path has its turn.
    let span = |of: &Vec<u16>| of.iter().max().unwrap() - of.iter().min().unwrap();
    let spans: Vec<u16> = received.values().map(span).collect();
    assert!(spans.len() == 2 && spans.iter().all(|packets| *packets > 500), "{spans:?}");
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
