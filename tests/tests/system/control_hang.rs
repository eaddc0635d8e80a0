//! While the control task hangs, the kernel forwards everything. Signals still end the daemon.

use std::io::{PipeReader, Read as _};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use root_test::root_test;
use vtepd_tests::capture::Capture;
use vtepd_tests::lab::{Lab, bridge, ip, run};
use vtepd_tests::stopped::Stopped;
use vtepd_tests::{TIMEOUT, Vtepd, sockets, wait_for};

/// The leaf's FDB entry for the far host changes while the control task hangs. Frames soon go to
/// the new VTEP, because the kernel forwards them.
#[root_test]
fn the_kernel_forwards_while_the_control_task_hangs() {
    let lab = Lab::new("ctlhung");
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
    let stopped = Stopped::thread(vtepd.pid());

    let for_far = lab.far.mac();
    let captures = ["up1", "up2"].map(|uplink| Capture::vxlan(&lab.peer2, uplink, lab.setup.port));
    bridge(&lab.leaf, &format!("fdb replace {for_far} dev vx10 dst 10.0.0.3 self extern_learn"));
    wait_for("frames at the other VTEP", || {
        let _ = sockets::try_ping(&lab.host, lab.far.ip(), 1, 56, &["-W", "0.05"]);
        captures.iter().any(|capture| capture.count() > 0)
    });

    stopped.resume();
    let metrics =
        vtepd.wait_for("vtepd to take over again", |metrics| metrics.get("vtepd_ready") == 1);
    assert_eq!(metrics.get("vtepd_control_stalls_total"), 1);
    vtepd.wait_for_log("the control task hung, and the kernel forwarded everything for");
    // With the entry that vtepd missed.
    assert_eq!(vtepd.place(for_far).as_deref(), Some("10.0.0.3"));
    bridge(&lab.leaf, &format!("fdb replace {for_far} dev vx10 dst 10.0.0.2 self extern_learn"));
    wait_for("the entry", || vtepd.place(for_far).as_deref() == Some("10.0.0.2"));
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
}

/// SIGTERM and SIGINT end a vtepd whose control task hangs. Afterwards the kernel forwards.
#[root_test]
fn signals_end_a_vtepd_that_hangs() {
    let lab = Lab::new("ctlsig");
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
        let pid = vtepd.pid();
        let _stopped = Stopped::thread(pid);
        nix::sys::signal::kill(Pid::from_raw(pid), signal).unwrap();
        // The tracer sees the end of a traced thread first.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
        wait_for("vtepd to end", || {
            waitpid(Pid::from_raw(pid), Some(flags)) != Ok(WaitStatus::StillAlive)
        });
        sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
        // Its exit status has already been collected.
        std::mem::forget(vtepd);
    }
}

/// A log that is open but not read. Its pipe is full after a few lines.
#[root_test]
fn a_log_that_nobody_reads_blocks_nothing() {
    let lab = Lab::new("unread");
    let (mut reader, writer) = std::io::pipe().unwrap();
    // The smallest possible pipe.
    let _ = nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETPIPE_SZ(4096));
    let mut command = Command::new(vtepd_tests::daemon::program());
    command.args(["-vv", "--no-fpm"]).env_remove("RUST_LOG").stdout(Stdio::null()).stderr(writer);
    let mut vtepd = lab.leaf.spawn(&mut command).unwrap();
    // Closes the test's write end of the pipe.
    drop(command);
    wait_for("vtepd to take over", || run(&lab.leaf, "ip -br link").contains("vtepd-bridge"));
    let uplink =
        run(&lab.leaf, "ip -o route get 10.0.0.2").split(" dev ").nth(1).unwrap().to_owned();
    let uplink = uplink.split(' ').next().unwrap().to_owned();
    for _ in 0..60 {
        ip(&lab.leaf, &format!("link set {uplink} down\nlink set {uplink} up"));
    }
    // The control task still answers requests.
    let status = || {
        let mut ctl = Command::new(vtepd_tests::daemon::ctl_program());
        ctl.args(["status", "-o", "json"]).stdin(Stdio::null());
        lab.leaf.enter(move || ctl.output().unwrap()).unwrap()
    };
    assert!(status().status.success(), "{:?}", status());
    vtepd.signal(Signal::SIGTERM).unwrap();
    let ended = vtepd.wait(TIMEOUT).unwrap();
    assert!(ended.success(), "{ended}");
    drain(&mut reader);
}

/// Checks that the beginning of the log arrived.
fn drain(reader: &mut PipeReader) {
    let mut text = Vec::new();
    reader.read_to_end(&mut text).unwrap();
    assert!(!text.is_empty());
}
