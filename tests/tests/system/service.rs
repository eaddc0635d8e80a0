//! vtepd as a systemd service: it runs with only the unit's capabilities and notifies systemd of
//! its state.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use root_test::root_test;
use vtepd_tests::Lab;
use vtepd_tests::daemon::program;
use vtepd_tests::stream::{Rate, Stream};

const RATE: Rate = Rate { frames: 5000, queue_pairs: 8, payload: 64 };

/// The capabilities of the unit file in the form of setpriv, `+net_admin,…`.
fn capabilities() -> String {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/debian/vtepd.service");
    let text = std::fs::read_to_string(unit).unwrap();
    let names = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let names = names
        .split(' ')
        .map(|name| format!("+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()));
    names.collect::<Vec<_>>().join(",")
}

#[root_test]
fn it_runs_with_the_units_capabilities_and_tells_systemd_when_it_is_ready() {
    let lab = Lab::new("unit");
    let path = std::env::temp_dir().join(format!("vtepd-notify-{}", std::process::id()));
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut told = String::new();
    let mut wait_for = |what: &str| {
        while !told.lines().any(|line| line == what) {
            let mut buffer = [0; 4096];
            let length = manager
                .recv(&mut buffer)
                .unwrap_or_else(|error| panic!("{what}: {error}; told: {told}"));
            told += &String::from_utf8_lossy(&buffer[..length]);
            told += "\n";
        }
    };
    let process = lab
        .leaf
        .spawn(
            Command::new("setpriv")
                .arg(format!("--bounding-set=-all,{}", capabilities()))
                .args(["--no-new-privs", "--"])
                .arg(program())
                .arg("--no-fpm")
                .env("NOTIFY_SOCKET", &path),
        )
        .unwrap();
    wait_for("READY=1");
    wait_for("STATUS=1 VNIs taken over, 0 with the kernel");
    let stream = Stream::start(&lab.host, &lab.far, RATE, 0x91);
    stream.pass(500);
    let (sent, report) = stream.finish();
    assert_eq!((report.lost(), report.duplicated()), (0, 0), "of {}", sent.frames);
    process.signal(Signal::SIGTERM).unwrap();
    wait_for("STOPPING=1");
    drop(process);
    std::fs::remove_file(&path).unwrap();
}

fn systemd_analyze() -> Result<(), String> {
    let found = Command::new("systemd-analyze").arg("--version").output();
    found.map(drop).map_err(|error| format!("no systemd-analyze: {error}"))
}

/// The unit's hardening, as rated by `systemd-analyze security`.
#[root_test(needs = systemd_analyze)]
fn the_units_are_hardened() {
    for unit in ["vtepd.service", "vtepd@.service"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/debian").join(unit);
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=true", "--threshold=34"]).arg(path);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
