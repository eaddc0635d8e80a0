//! `lab run` with failures at given times, on the smallest fabric.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use experiment::Run;
use fabric::Fabric;
use root_test::root_test;
use vtepd_tests::daemon::{lab_program, program};

use super::fixture::frr;

const FABRIC: &str = "evpn-times";

/// Frames per second: many, because FRR may need a few milliseconds only to move the traffic.
const RATE: u32 = 20_000;

/// A folder for the files of the test. Drop deletes it, and stops the fabric.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        if let Ok(fabric) = Fabric::open(&FABRIC.parse().unwrap()) {
            fabric.down().unwrap();
        }
    }
}

#[root_test(alone, needs = frr)]
fn failures_come_at_their_times_and_the_fabric_recovers() {
    let folder = Folder(std::env::temp_dir().join(format!("{FABRIC}-{}", std::process::id())));
    fs::create_dir_all(&folder.0).unwrap();
    let topology = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/containerlab/minimal.clab.yml")
        .canonicalize()
        .unwrap();
    let text = format!(
        "name = 'story'\ntitle = 'A story'\nquestion = 'What fails?'
         topologies = ['{}']\ndataplane = [{{policy = 'qp-hash'}}]
         [traffic]\nframes = 50\nrate = {RATE}\nsites = [['host1'], ['host2']]
         [workload]\nbytes = 100000\nmessage = 4096
         transport = {{ rate = 20000000, retries = 1000000 }}
         [sweep]\nqueue-pairs = [8]\n[repetitions]\nmin = 1\nmax = 1\nturn = 1
         [[variant]]\nname = 'carrier'
         failure = [{{ kind = 'carrier', at = '500ms', link = 'leaf2:up1' }}]
         [[variant]]\nname = 'router'
         failure = [{{ kind = 'router', at = '500ms', for = '500ms', node = 'spine1' }}]
         [[variant]]\nname = 'vtepd'
         failure = [{{ kind = 'vtepd', at = '500ms', for = '1s' }}]\n",
        topology.display()
    );
    let (file, out) = (folder.0.join("story.toml"), folder.0.join("out"));
    fs::write(&file, text).unwrap();
    let mut command = Command::new(lab_program());
    command.arg("run").arg(&file).arg("--out").arg(&out);
    let output = command.args(["--name", FABRIC, "--vtepd"]).arg(program()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = fs::read_to_string(out.join("runs.jsonl")).unwrap();
    let (runs, _) = experiment::record::parse_lines::<Run>(&text).unwrap();
    assert_eq!(runs.len(), 3, "{text}");
    for run in &runs {
        let (outage, longest) = (run.outage.unwrap(), run.outage_longest.unwrap());
        let lost = run.arrival.unwrap().lost;
        assert!(outage <= longest && longest < 30_000.0, "{run:?}");
        assert_eq!((outage == 0.0, longest == 0.0), (lost == 0, lost == 0), "{run:?}");
        // The first second is half a second before the failure; traffic then flows for two.
        assert!(run.sent >= 2 * u64::from(RATE), "{run:?}");
        let hit = run.hit.unwrap();
        assert!(hit.milliseconds > 0.5 * hit.usual && hit.usual > 1.0, "{hit:?}");
    }
    let of = |variant: &str| runs.iter().find(|run| run.key.point.variant() == variant).unwrap();
    let lost = |variant: &str| of(variant).arrival.unwrap().lost;
    // The link is behind a router: frames are lost until BGP has told the leaf. A leaf's own uplink
    // may lose none.
    assert!(lost("carrier") > 0, "{:?}", of("carrier"));
    assert_eq!(lost("vtepd"), 0, "kernel VXLAN takes over");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("hit iteration"));
    // Times of a busy machine say nothing.
    let is_limited = page.contains("The machine was the limit");
    assert_ne!(page.contains("The iteration that it hits takes"), is_limited, "{said}");
}
