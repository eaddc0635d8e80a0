//! `vtepctl capture`: what tshark reads of it equals the counters and what is on the wire, and nobody
//! waits for its reader.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fabric::{Namespace, Process};
use nix::sys::signal::Signal;
use root_test::root_test;
use vtepd_tests::bulk;
use vtepd_tests::daemon::{USERSPACE, ctl_program};
use vtepd_tests::experiments::experiments;
use vtepd_tests::frames::{Pair, Tunnelled, inject};
use vtepd_tests::lab::{LEAF, PEER, VNI, mac_of};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Vtepd, wait_for};
use wire::MacAddr;

use crate::wireshark::need_tshark;

const LONG: Duration = Duration::from_secs(60);

/// A capture that runs, and its files. Drop deletes them.
pub(crate) struct Running {
    process: Option<Process>,
    file: PathBuf,
    said: PathBuf,
}

impl Running {
    /// Starts `vtepctl capture` with these arguments, and waits until it captures.
    pub(crate) fn start(leaf: &Namespace, arguments: &[&str]) -> Self {
        Self::through(leaf, arguments, |command, file| {
            command.args(["-w".as_ref(), file]);
        })
    }

    fn through(
        leaf: &Namespace,
        arguments: &[&str],
        output: impl FnOnce(&mut Command, &OsStr),
    ) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir();
        let of = |kind: &str| folder.join(format!("{}-{number}.{kind}", leaf.name()));
        let (file, said) = (of("pcapng"), of("said"));
        let mut command = Command::new(ctl_program());
        command.arg("capture").args(arguments).stdout(Stdio::null());
        command.stderr(std::fs::File::create(&said).unwrap());
        output(&mut command, file.as_os_str());
        let process = Some(leaf.spawn(&mut command).unwrap());
        let running = Self { process, file, said };
        wait_for("the capture", || running.said().contains("capturing"));
        running
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Ends it by Ctrl-C. Returns how many packets it captured, and how many it lost.
    pub(crate) fn end(&mut self) -> [u64; 2] {
        let mut process = self.process.take().unwrap();
        process.signal(Signal::SIGINT).unwrap();
        let status = process.wait(LONG).unwrap();
        assert!(status.success(), "{status}: {}", self.said());
        let said = self.said();
        let numbers: Vec<u64> =
            said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().unwrap_or_else(|_| panic!("{said}"))
    }

    fn rows(&self, filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
        rows(&self.file, filter, fields).unwrap()
    }

    /// How many packets a filter shows; 0 while the end of the file is being written.
    pub(crate) fn count(&self, filter: &str) -> usize {
        rows(&self.file, filter, &["frame.number"]).map_or(0, |rows| rows.len())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for file in [&self.file, &self.said] {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// The fields of each packet that a filter shows, as tshark reads them. It checks checksums.
pub(crate) fn rows(file: &Path, filter: &str, fields: &[&str]) -> Result<Vec<Vec<String>>, String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-Y", filter, "-T", "fields"]);
    for protocol in ["ip", "udp", "tcp"] {
        command.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
    }
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    let output = command.output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let lines = String::from_utf8(output.stdout).unwrap();
    Ok(lines.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}

/// In each datapath, every frame and its packet are there once, with checksums and comments that are
/// right.
#[root_test]
fn tshark_reads_each_frame_its_packet_and_what_was_decided() {
    need_tshark();
    let lab = Lab::new("capture");
    for (datapath, arguments) in
        [("userspace", &USERSPACE[..]), ("offload", &["--datapath", "offload"][..])]
    {
        let vtepd = Vtepd::start(&lab.leaf, &[arguments, &["--no-fpm"]].concat());
        let peer = Vtepd::start(&lab.peer, &["--no-fpm"]);
        let mut capture = Running::start(&lab.leaf, &[]);
        let mut of_peer = Running::start(&lab.peer, &[]);
        let rate = Rate { frames: 2000, queue_pairs: 8, payload: 256 };
        let stream = Stream::start(&lab.host, &lab.far, rate, 0x5a61);
        stream.pass(2000);
        stream.finish_whole();
        let sent = vtepd.wait_for("what the programs counted", |metrics| {
            metrics.vni_frames(VNI, "encapsulated") >= 2000
        });
        let sent = sent.vni_frames(VNI, "encapsulated") as usize;
        wait_for("what was captured", || {
            [&capture, &of_peer].iter().all(|one| one.count("infiniband") >= 2 * sent)
        });
        let ([count, lost], [_, peer_lost]) = (capture.end(), of_peer.end());
        assert_eq!((count, lost, peer_lost), (2 * sent as u64, 0, 0), "{datapath}");

        let fields = ["frame.interface_name", "frame.packet_flags_direction"];
        let fields = [&fields[..], &["udp.srcport", "infiniband.bth.destqp", "frame.comment"]];
        let outer = capture.rows("vxlan && infiniband", &fields.concat());
        let inner = capture.rows("infiniband && !vxlan", &fields.concat());
        assert_eq!((outer.len(), inner.len()), (sent, sent), "{datapath}");
        for row in &outer {
            let [uplink, direction, port, queue_pair, comment] = &row[..] else {
                panic!("{row:?}")
            };
            assert!(
                ["up1", "up2"].contains(&uplink.as_str()) && direction == "0x00000002",
                "{row:?}"
            );
            let port = port.split(',').next().unwrap();
            let queue_pair = u32::from_str_radix(queue_pair.trim_start_matches("0x"), 16).unwrap();
            let expected = format!(
                "sent by vtepd ({datapath}, qp-hash): VNI {VNI}, VTEP {PEER}, port {port}, {uplink}, \
                 qp {queue_pair:#x}"
            );
            assert_eq!(*comment, expected);
        }
        assert!(inner.iter().all(|row| row[..2] == ["inner", "0x00000001"]), "{:?}", inner[0]);
        let arrived = of_peer.rows("infiniband && !vxlan", &fields.concat());
        assert!(arrived.iter().all(|row| row[..2] == ["inner", "0x00000002"]), "{:?}", arrived[0]);
        let expected = format!("received: VNI {VNI}, VTEP {LEAF}, to the ");
        assert!(arrived.iter().all(|row| row[4].starts_with(&expected)), "{:?}", arrived[0]);
        assert_eq!(arrived.len(), sent);
        drop((vtepd, peer));
    }
}

/// TCP super-frames are shown as the packets that they are on the wire.
#[root_test]
fn super_frames_are_cut_into_packets() {
    need_tshark();
    let lab = Lab::new("capture-cut");
    for arguments in [&USERSPACE[..], &["--datapath", "offload"]] {
        let vtepd = Vtepd::start(&lab.leaf, &[arguments, &["--no-fpm"]].concat());
        let mut capture = Running::start(&lab.leaf, &["-c", "2000"]);
        bulk::tcp_streams(&[(&lab.host, &lab.far)], 32 << 20);
        let _ended = capture.process.as_mut().unwrap().wait(LONG).unwrap();
        let packets = capture.rows("tcp", &["frame.len"]);
        assert_eq!(packets.len(), 2000);
        let longest = 8950 + 14 + 50;
        assert!(packets.iter().all(|row| row[0].parse::<u32>().unwrap() <= longest));
        let wrong =
            "tcp.checksum.status == 0 || udp.checksum.status == 0 || ip.checksum.status == 0";
        assert_eq!(capture.rows(wrong, &["frame.number"]), Vec::<Vec<String>>::new());
        drop(vtepd);
    }
}

/// Each dropped frame is there with its reason, or counted.
#[root_test]
fn dropped_frames_are_captured_with_their_reason() {
    need_tshark();
    let lab = Lab::new("capture-drops");
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    let pair = Pair::of(&lab.far, &lab.host);
    let multicast = Pair { from: (MacAddr([3, 0, 0, 0, 10, 9]), pair.from.1), ..pair };
    let tunnel = || Tunnelled {
        to: mac_of(&lab.leaf, "up1"),
        source: PEER,
        destination: LEAF,
        port: 4789,
        vni: VNI,
        tos: 0,
        flip: 0,
    };
    let frames: Vec<_> =
        experiments(multicast, 40).iter().map(|frame| tunnel().frame(frame)).collect();
    let mut capture = Running::start(&lab.leaf, &["--vni", "10"]);
    let mut other = Running::through(&lab.leaf, &["--vni", "11"], |_, _| {});
    inject(&lab.routers[0], "leaf", &frames);
    vtepd.wait_for("the drops", |metrics| metrics.dropped("invalid_source") == 40);
    wait_for("the last one", || capture.count("frame.interface_name == \"up1\"") == 40);
    wait_for("the drops", || capture.count("frame.interface_name == \"dropped\"") >= 32);
    assert_eq!(other.end()[0], 0);
    drop(other);
    let [count, lost] = capture.end();
    // On the uplink, and what the worker dropped.
    assert_eq!(count + lost, 80);
    let reason = "frame.comment contains \"invalid_source: \"";
    for interface in ["up1", "dropped"] {
        let rows = capture
            .rows(&format!("frame.interface_name == \"{interface}\" && {reason}"), &["vxlan.vni"]);
        assert!(rows.len() >= 32 && rows.iter().all(|row| row == &["10"]), "{interface}: {rows:?}");
    }
    assert_eq!(capture.count("frame.interface_name == \"inner\""), 0);

    // The last of them, afterwards.
    let file = std::env::temp_dir().join(format!("capture-drops-{}.pcapng", std::process::id()));
    let saved = vtepd.ctl(&["drops", "--frames", "-w", file.to_str().unwrap()]);
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    let last = rows(&file, SAVED, &["frame.len", "frame.cap_len", "vxlan.vni"]).unwrap();
    std::fs::remove_file(&file).unwrap();
    let length = frames[0].len().to_string();
    let captured = frames[0].len().min(128).to_string();
    assert_eq!(last, vec![[length, captured, "10".to_owned()]; 32]);
}

const SAVED: &str =
    "frame.interface_name == \"underlay\" && frame.comment == \"dropped: invalid_source, VNI 10\"";

/// The most of these frames a second that pass the leaf whole while nobody captures.
fn rate_that_passes(lab: &Lab) -> Rate {
    let rates = [100_000, 70_000, 50_000, 30_000];
    let rates = rates.map(|frames| Rate { frames, queue_pairs: 8, payload: 1024 });
    let passes = |(mark, rate): &(u64, Rate)| {
        let (stream, start) = (Stream::start(&lab.host, &lab.far, *rate, *mark), Instant::now());
        stream.pass(u64::from(rate.frames));
        let took = start.elapsed();
        let (sent, report) = stream.finish();
        let lost = (report.lost(), report.duplicated(), report.corrupted());
        took < Duration::from_millis(1200) && sent.frames > 0 && lost == (0, 0, 0)
    };
    let found = (0x5a70..).zip(rates).find(passes);
    found.unwrap_or_else(|| root_test::ignore("the machine does not pass 30,000 frames/s")).1
}

/// Nobody reads one capture, and another one reads late, under 100,000 frames a second where the
/// machine passes so many. No frame of the traffic is lost, and what the captures lose is counted.
#[root_test(alone)]
fn a_slow_reader_of_a_capture_loses_only_its_own_packets() {
    need_tshark();
    let lab = Lab::new("capture-slow");
    let vtepd = Vtepd::start(&lab.leaf, &["--datapath", "offload", "--no-fpm"]);
    let rate = rate_that_passes(&lab);
    println!("{} frames/s", rate.frames);
    let before = vtepd.metrics().vni_frames(VNI, "encapsulated");
    let nobody = Running::through(&lab.leaf, &["-w", "-"], |command, _| {
        command.stdout(Stdio::piped());
    });
    let mut late = Running::start(&lab.leaf, &[]);
    let stopped = late.process.as_ref().unwrap();
    stopped.signal(Signal::SIGSTOP).unwrap();
    let stream = Stream::start(&lab.host, &lab.far, rate, 0x5a62);
    stream.pass(4 * u64::from(rate.frames));
    stream.finish_whole();
    stopped.signal(Signal::SIGCONT).unwrap();
    let sent = vtepd.metrics().vni_frames(VNI, "encapsulated") - before;
    let outer = || late.count("vxlan") as u64;
    let mut before = 0;
    wait_for("the late reader to have read", || {
        std::thread::sleep(Duration::from_millis(500));
        let now = outer();
        now > 0 && std::mem::replace(&mut before, now) == now
    });
    let captured = outer();
    let [_, lost] = late.end();
    assert_eq!((captured + lost, lost > 0), (sent, true), "{captured} captured, {lost} lost");
    drop(nobody);

    // Nothing stays of them, and there may be four.
    wait_for("the threads to end", || threads(&vtepd) == 0);
    let _four: Vec<_> = (0..4).map(|_| Running::through(&lab.leaf, &[], |_, _| {})).collect();
    wait_for("four captures", || threads(&vtepd) == 4);
    let refused = vtepd.ctl(&["capture"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("4 captures run already"), "{said}");
}

/// Threads of vtepd that capture.
fn threads(vtepd: &Vtepd) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", vtepd.pid())).unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
    };
    tasks.map(name).filter(|name| name.trim() == "capture").count()
}

/// Wireshark lists the leaf as an interface, and captures there.
#[root_test]
fn wireshark_lists_leaves_as_interfaces() {
    need_tshark();
    let lab = Lab::new("capture-extcap");
    let _vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    let home = std::env::temp_dir().join(format!("capture-extcap-{}", std::process::id()));
    let personal = home.join("wireshark/extcap");
    std::fs::create_dir_all(&personal).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/wireshark/vtepd-extcap");
    std::fs::copy(script, personal.join("vtepd-extcap")).unwrap();
    let tshark = |arguments: &[&str]| {
        let programs = ctl_program().parent().unwrap().display().to_string();
        let mut command = Command::new("tshark");
        command.env("XDG_CONFIG_HOME", &home).args(arguments);
        command.env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap()));
        command
    };
    let interface = format!("vtepd-{}", lab.leaf.name());
    let list = tshark(&["-D"]).output().unwrap();
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let row = format!("{interface} (vtepd in {})", lab.leaf.name());
    assert!(list.lines().any(|line| line.ends_with(&row)), "{list}");
    let rate = Rate { frames: 1000, queue_pairs: 2, payload: 64 };
    let stream = Stream::start(&lab.host, &lab.far, rate, 0x5a63);
    let fields = ["-T", "fields", "-e", "frame.interface_name", "-e", "vxlan.vni"];
    let filter = ["-i", &interface, "-c", "100"];
    let seen = tshark(&[&filter[..], &fields].concat()).output().unwrap();
    stream.finish_whole();
    std::fs::remove_dir_all(&home).unwrap();
    let text = String::from_utf8_lossy(&seen.stdout).into_owned();
    let packets = |row: &str| text.lines().filter(|line| *line == row).count();
    let [inner, first, second] = ["inner\t", "up1\t10", "up2\t10"].map(packets);
    assert_eq!((inner, first + second), (50, 50), "{text}{seen:?}");
}
