//! Local users without privileges, and root without capabilities: what they hold keeps vtepd
//! neither from starting nor from being replaced, and they change nothing.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::process::Process;
use vtepd_tests::daemon::ctl_program;
use vtepd_tests::guard::can_run;
use vtepd_tests::{Lab, Vtepd, sockets, wait_for};

/// What the helper does, and where it says that it has.
const DOES: &str = "VTEPD_STRANGER";
const DONE: &str = "VTEPD_STRANGER_DONE";
const NOBODY: u32 = 65534;

fn name(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name).unwrap()
}

/// The helper: this program, run by the stories as another user.
#[test]
#[ignore = "does nothing by itself"]
fn stranger() {
    let (Some(does), Some(done)) = (std::env::var_os(DOES), std::env::var_os(DONE)) else { return };
    let mut held: Vec<Box<dyn std::any::Any>> = Vec::new();
    match does.to_str().unwrap() {
        "names" => {
            for taken in ["vtepd", "vtepd-api"] {
                held.push(Box::new(UnixListener::bind_addr(&name(taken)).unwrap()));
            }
            held.push(Box::new(TcpListener::bind("127.0.0.1:9472").unwrap()));
        }
        "silence" => {
            for _ in 0..100 {
                held.push(Box::new(UnixStream::connect_addr(&name("vtepd")).unwrap()));
            }
        }
        "end" => {
            let mut stream = UnixStream::connect_addr(&name("vtepd")).unwrap();
            stream.write_all(b"end\n").unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it hangs up");
        }
        other => panic!("{other}"),
    }
    std::fs::write(done, "").unwrap();
    // Until it is killed, or the story has ended.
    let _ = std::io::stdin().read(&mut [0]);
}

/// A process that is this program's helper, until it is dropped.
struct Stranger {
    _process: Process,
    files: [PathBuf; 2],
}

impl Stranger {
    /// Runs it through `wrap`, which may set its user, and waits until it has done its part.
    fn start(lab: &Lab, does: &str, wrap: impl Fn(&PathBuf) -> Command) -> Self {
        let file = |what: &str| {
            std::env::temp_dir()
                .join(format!("vtepd-stranger-{does}-{what}-{}", std::process::id()))
        };
        let (program, done) = (file("program"), file("done"));
        // Where every user may run it.
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let mut command = wrap(&program);
        command
            .args(["stranger", "--exact", "--ignored", "--nocapture"])
            .env(DOES, does)
            .env(DONE, &done)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let process = lab.leaf.spawn(&mut command).unwrap();
        wait_for("the other process", || done.exists());
        Self { _process: process, files: [program, done] }
    }

    fn nobody(lab: &Lab, does: &str) -> Self {
        Self::start(lab, does, |program| {
            let mut command = Command::new(program);
            command.uid(NOBODY).gid(NOBODY);
            command
        })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Root without any capability, as in a container that was given none.
fn powerless(program: &PathBuf) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]).arg(program);
    command
}

#[test]
fn names_that_others_hold_keep_nothing_from_starting() {
    if !can_run("names_that_others_hold_keep_nothing_from_starting") {
        return;
    }
    let lab = Lab::new("names");
    let stranger = Stranger::nobody(&lab, "names");
    let mut vtepd = Vtepd::spawn(&lab.leaf, &["--no-fpm"]);
    vtepd.wait_for_log("VNIs taken over, and VNIs that stay with the kernel");
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
    let log = vtepd.log();
    for held in [
        "the abstract socket @vtepd is held by process",
        "the API's socket @vtepd-api cannot be opened",
    ] {
        let line =
            log.lines().find(|line| line.contains(held)).unwrap_or_else(|| panic!("{held}: {log}"));
        assert!(line.contains("of user 65534"), "{line}");
    }
    let line = log.lines().find(|line| line.contains("metrics cannot be served")).unwrap();
    assert!(line.contains("a process of user 65534"), "{line}");

    // It has the lock all the same.
    let refused = Vtepd::output(&lab.leaf, &["--no-fpm"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    let running = format!("another vtepd (process {})", vtepd.pid());
    assert!(!refused.status.success() && said.contains(&running), "{said}");

    // And opens what it could not, once it can.
    drop(stranger);
    vtepd.wait_until_ready();
    wait_for("vtepctl to be answered", || vtepd.ctl(&["status"]).status.success());
    let warnings = vtepd.ask(&["status"])["warnings"].to_string();
    assert!(!warnings.contains("cannot be"), "{warnings}");
    // Nobody holds the usual name now.
    let refused = Vtepd::output(&lab.leaf, &["--no-fpm"]);
    assert!(!refused.status.success(), "{refused:?}");
    let mut successor = Vtepd::spawn(&lab.leaf, &["--no-fpm", "--replace"]);
    let (status, log) = vtepd.wait();
    assert!(status.success() && log.contains("another vtepd takes over"), "{status}: {log}");
    successor.wait_until_ready();
}

#[test]
fn silent_connections_do_not_delay_a_replacement() {
    if !can_run("silent_connections_do_not_delay_a_replacement") {
        return;
    }
    let lab = Lab::new("silent");
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    let _stranger = Stranger::nobody(&lab, "silence");
    let start = Instant::now();
    let _successor = Vtepd::start(&lab.leaf, &["--no-fpm", "--replace"]);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    let (status, log) = vtepd.wait();
    assert!(status.success(), "{status}: {log}");
}

#[test]
fn a_change_needs_a_capability_and_not_only_user_0() {
    if !can_run("a_change_needs_a_capability_and_not_only_user_0") {
        return;
    }
    let lab = Lab::new("powerless");
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    let ask = |arguments: &[&str]| {
        let run = || powerless(&ctl_program()).args(arguments).output().unwrap();
        lab.leaf.enter(run).unwrap()
    };
    assert!(ask(&["status"]).status.success(), "who may read may go on reading");
    for change in [&["detach", "10"][..], &["attach", "10"], &["policy", "set", "10", "five-tuple"]]
    {
        let output = ask(change);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains("CAP_NET_ADMIN"),
            "{change:?}: {output:?}"
        );
    }
    assert!(vtepd.metrics().has_vni(10));
    drop(Stranger::start(&lab, "end", powerless));
    vtepd.wait_for_log("vtepd was asked to end, and does not");
    assert_eq!(vtepd.metrics().get("vtepd_ready"), 1);

    assert!(vtepd.ctl(&["detach", "10"]).status.success());
    vtepd.wait_for("the VNI to be the kernel's", |metrics| !metrics.has_vni(10));
}
