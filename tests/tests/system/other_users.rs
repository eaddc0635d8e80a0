//! Local users without privileges, and root without capabilities. Sockets that they hold prevent
//! neither a start nor a replacement of vtepd, and they can change nothing.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use fabric::process::Process;
use root_test::root_test;
use vtepd_tests::daemon::ctl_program;
use vtepd_tests::{Lab, Vtepd, sockets, wait_for};

const NOBODY: u32 = 65534;

/// A process `other-user`. Drop ends it.
struct OtherUser {
    _process: Process,
    files: [PathBuf; 2],
}

impl OtherUser {
    /// Starts the program with the command of `wrap`, which may set its user, and waits until its
    /// task is done.
    fn start(lab: &Lab, task: &str, wrap: impl Fn(&PathBuf) -> Command) -> Self {
        let file = |what: &str| {
            std::env::temp_dir().join(format!("vtepd-{what}-{task}-{}", std::process::id()))
        };
        let (program, done) = (file("other-user"), file("done"));
        // In a place where every user may run it.
        std::fs::copy(env!("CARGO_BIN_EXE_other-user"), &program).unwrap();
        let mut command = wrap(&program);
        command.arg(task).arg(&done).stdin(Stdio::piped()).stdout(Stdio::null());
        let process = lab.leaf.spawn(&mut command).unwrap();
        wait_for("the other process", || done.exists());
        Self { _process: process, files: [program, done] }
    }

    fn nobody(lab: &Lab, task: &str) -> Self {
        Self::start(lab, task, |program| {
            let mut command = Command::new(program);
            command.uid(NOBODY).gid(NOBODY);
            command
        })
    }
}

impl Drop for OtherUser {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Root without any capability, as in a container without capabilities.
fn without_capabilities(program: &PathBuf) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]).arg(program);
    command
}

#[root_test]
fn names_that_others_hold_keep_nothing_from_starting() {
    let lab = Lab::new("names");
    let other = OtherUser::nobody(&lab, "hold");
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

    // vtepd still holds its lock.
    let refused = Vtepd::output(&lab.leaf, &["--no-fpm"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    let running = format!("another vtepd (process {})", vtepd.pid());
    assert!(!refused.status.success() && said.contains(&running), "{said}");

    // vtepd opens its sockets as soon as it can.
    drop(other);
    vtepd.wait_until_ready();
    wait_for("vtepctl to be answered", || vtepd.ctl(&["status"]).status.success());
    let warnings = vtepd.ask(&["status"])["warnings"].to_string();
    assert!(!warnings.contains("cannot be"), "{warnings}");
    // The names are free now.
    let refused = Vtepd::output(&lab.leaf, &["--no-fpm"]);
    assert!(!refused.status.success(), "{refused:?}");
    let mut successor = Vtepd::spawn(&lab.leaf, &["--no-fpm", "--replace"]);
    let (status, log) = vtepd.wait();
    assert!(status.success() && log.contains("another vtepd takes over"), "{status}: {log}");
    successor.wait_until_ready();
}

#[root_test]
fn silent_connections_do_not_delay_a_replacement() {
    let lab = Lab::new("silent");
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    let _other = OtherUser::nobody(&lab, "connect");
    let _successor = Vtepd::start(&lab.leaf, &["--no-fpm", "--replace"]);
    let (status, log) = vtepd.wait();
    assert!(status.success(), "{status}: {log}");
}

#[root_test]
fn a_change_needs_a_capability_and_not_only_user_0() {
    let lab = Lab::new("powerless");
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    let ask = |arguments: &[&str]| {
        let run = || without_capabilities(&ctl_program()).args(arguments).output().unwrap();
        lab.leaf.enter(run).unwrap()
    };
    assert!(ask(&["status"]).status.success(), "who may read may go on reading");
    let changes =
        [&["detach", "10"][..], &["attach", "10"], &["policy", "set", "10", "five-tuple"]];
    for change in changes.into_iter().chain([&["capture", "-c", "1"][..]]) {
        let output = ask(change);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains("CAP_NET_ADMIN"),
            "{change:?}: {output:?}"
        );
    }
    assert!(vtepd.metrics().has_vni(10));
    drop(OtherUser::start(&lab, "end", without_capabilities));
    vtepd.wait_for_log("vtepd was asked to end, and does not");
    assert_eq!(vtepd.metrics().get("vtepd_ready"), 1);

    assert!(vtepd.ctl(&["detach", "10"]).status.success());
    vtepd.wait_for("the VNI to be the kernel's", |metrics| !metrics.has_vni(10));
}
