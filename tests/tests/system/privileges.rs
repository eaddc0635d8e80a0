//! After its start vtepd has few capabilities and a system call filter. Everything that it does
//! later still works.

use std::path::PathBuf;

use root_test::root_test;
use vtepd_tests::lab::{ip, run};
use vtepd_tests::{Lab, Vtepd, sockets, wait_for};

/// CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK, CAP_SYS_NICE and CAP_BPF.
const KEPT: u64 = 1 << 12 | 1 << 13 | 1 << 14 | 1 << 23 | 1 << 39;

/// A value of a status file of proc(5).
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim()
}

/// Checks that every thread has dropped its unneeded privileges.
fn assert_confined(vtepd: &Vtepd) {
    let mut threads = 0;
    for task in std::fs::read_dir(format!("/proc/{}/task", vtepd.pid())).unwrap() {
        let path: PathBuf = task.unwrap().path();
        // A thread may end meanwhile.
        let Ok(status) = std::fs::read_to_string(path.join("status")) else { continue };
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            let capabilities = u64::from_str_radix(field(&status, set), 16).unwrap();
            assert_eq!(capabilities & !KEPT, 0, "{set}: {status}");
        }
        assert_eq!(
            (field(&status, "NoNewPrivs"), field(&status, "Seccomp")),
            ("1", "2"),
            "{status}"
        );
        threads += 1;
    }
    assert!(threads >= 5, "main, worker, log, signals, guard, metrics: {threads} threads");
}

#[root_test]
fn what_comes_later_works_with_few_privileges() {
    let lab = Lab::new("few");
    let file = std::env::temp_dir().join(format!("vtepd-few-{}.toml", std::process::id()));
    std::fs::write(&file, "[entropy]\nseed = 1\n").unwrap();
    let arguments = ["--config", file.to_str().unwrap()];
    let vtepd = Vtepd::start(&lab.leaf, &arguments);
    assert_confined(&vtepd);
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);

    // A netdev, its bridge and its ports that are added later, with the bypass.
    lab.overlay(20, "nolearning", "nolearning", "");
    vtepd.wait_for("the VNI that came later", |metrics| metrics.has_vni(20));
    sockets::ping(&lab.host, lab.far.ip_in(20), 5, 56, &[]);
    vtepd.wait_for("its frames", |metrics| metrics.vni_frames(20, "encapsulated") >= 5);

    // A changed configuration.
    std::fs::write(&file, "[entropy]\nseed = 2\n").unwrap();
    vtepd.hangup();
    vtepd.wait_for("the configuration", |metrics| {
        metrics.get("vtepd_configuration_generation") == 2
    });

    // API requests and changes.
    let [source, destination] = [&lab.host, &lab.far].map(|host| host.ip().to_string());
    let flow = ["--dst-mac", &lab.far.mac().to_string(), "--src", &source, "--dst", &destination];
    let explained = vtepd.ask(&[&["explain", "--vni", "10", "--qp", "17"][..], &flow].concat());
    assert_eq!(explained["copies"][0]["vtep"], "10.0.0.2", "{explained}");
    assert!(vtepd.ctl(&["detach", "20"]).status.success());
    vtepd.wait_for("the VNI to be the kernel's", |metrics| !metrics.has_vni(20));
    assert!(vtepd.ctl(&["attach", "20"]).status.success());
    vtepd.wait_for("the VNI to be back", |metrics| metrics.has_vni(20));

    // Its own interface is set down.
    ip(&lab.leaf, "link set vtepd-bridge down");
    wait_for("the interface to be up again", || {
        run(&lab.leaf, "ip -o link show vtepd-bridge").contains(",UP")
    });
    sockets::ping(&lab.host, lab.far.ip(), 5, 56, &[]);

    // A successor with `--replace`.
    let mut successor = Vtepd::spawn(&lab.leaf, &[&arguments[..], &["--replace"]].concat());
    let (status, log) = vtepd.wait();
    assert!(status.success() && log.contains("another vtepd takes over"), "{status}: {log}");
    successor.wait_until_ready();
    assert_confined(&successor);
    sockets::ping(&lab.host, lab.far.ip(), 5, 56, &[]);
    let (status, log) = successor.terminate();
    std::fs::remove_file(file).unwrap();
    assert!(status.success() && !log.contains("ERROR"), "{status}: {log}");
    let programs = run(&lab.leaf, "ip -o link show");
    assert!(!programs.contains("vtepd-"), "{programs}");
}

/// The capabilities in a text: names in capitals behind `before`.
fn capabilities(text: &str, before: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect()
    };
    text.split(before).skip(1).map(name).collect()
}

/// What `docker run` in the guide gives, and what the DaemonSet adds.
#[root_test]
fn the_capabilities_of_the_guides_suffice_without_sys_admin() {
    let file = |path: &str| {
        std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path))
            .unwrap()
    };
    let guide = capabilities(&file("docs/guide/containerlab.md"), "--cap-add ");
    let daemon_set = file("deploy/clabernetes/leaf-daemonset.yaml");
    let (_, list) = daemon_set.split_once("              add: [").unwrap();
    let list = list.split_once(']').unwrap().0;
    assert_eq!(list.split(", ").collect::<Vec<_>>(), guide);
    let named = |name: &String| format!(",+{}", name.to_lowercase());
    let set = format!("-all{}", guide.iter().map(named).collect::<String>());
    let command = ["setpriv", "--bounding-set", &set, "--inh-caps", "-all", "--"];

    let lab = Lab::new("guidecaps");
    let vtepd = Vtepd::start_by(&command, &lab.leaf, &[]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", vtepd.pid())).unwrap();
    for set in ["CapEff", "CapPrm"] {
        let found = u64::from_str_radix(field(&status, set), 16).unwrap();
        assert_eq!(found, KEPT, "{set}: {status}");
    }
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
    vtepd.wait_for("frames that vtepd forwards", |metrics| {
        metrics.vni_frames(10, "encapsulated") >= 3
    });
    let (status, log) = vtepd.terminate();
    assert!(status.success() && !log.contains("ERROR"), "{status}: {log}");
}

#[root_test]
fn standalone_has_few_privileges_too() {
    let lab = Lab::new("fewalone");
    let text = "[[standalone]]\nvni = 30\nlocal = \"10.0.0.1\"\nudp-port = 4799\nremotes = [\"10.0.0.2\"]\n\
                ports = [{ tap = \"tapa\" }, { tap = \"tapb\" }]\n";
    let vtepd = Vtepd::start_configured(&lab.leaf, text, &[]);
    assert_confined(&vtepd);
    ip(&lab.leaf, "link set tapa up\nlink set tapb up");
    ip(&lab.leaf, "link del tapa");
    vtepd.wait_for_log("an access port is gone");
    assert_eq!(vtepd.metrics().get("vtepd_ready"), 1);
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{status}: {log}");
}
