//! zebra 8.4.4 does not survive an FPM connection made once it knows a router MAC.

use std::path::PathBuf;
use std::time::Duration;

use lab::process::wait_until;

use crate::fixture::{PATIENCE, ScaleAcross, can_run};

/// The release that Debian 12 has.
const HAZARDOUS: &str = "8.4.4";
const LISTENING: &str = "0A";
const PORT: &str = ":0A3C";
/// zebra tries to connect every 3 s.
const RETRY: Duration = Duration::from_secs(4);

/// The note that vtepd leaves for its next start; removed when dropped.
struct Note(PathBuf);

impl Drop for Note {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whether somebody on the node listens on TCP port 2620.
fn listens(fabric: &ScaleAcross, node: &str) -> bool {
    let sockets = || std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let sockets = fabric.namespace(node).enter(sockets).unwrap();
    sockets.lines().skip(1).any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next().unwrap_or_default();
        local.ends_with(PORT) && fields.nth(1) == Some(LISTENING)
    })
}

/// A layer-3 VNI in the default VRF on leaf1 and leaf4, and a host of leaf4 that is known by its address: with it comes
/// leaf4's router MAC.
fn layer3_vni(fabric: &ScaleAcross) {
    for leaf in [1, 4] {
        let node = format!("leaf{leaf}");
        for command in [
            "ip link add br5000 type bridge".to_owned(),
            format!("ip link set br5000 addrgenmode none address 02:00:00:00:50:0{leaf} up"),
            format!("ip link add vx5000 type vxlan id 5000 local 10.0.0.1{leaf} dstport 4789 nolearning"),
            "ip link set vx5000 addrgenmode none master br5000 up".to_owned(),
            "ip link set vx5000 type bridge_slave learning off".to_owned(),
        ] {
            fabric.run(&node, &command);
        }
        fabric.node(&node).run(&["vtysh", "-c", "configure terminal", "-c", "vni 5000"]).unwrap();
    }
    fabric.run("leaf4", "ip neigh replace 192.168.10.4 lladdr 02:00:00:00:04:01 dev br10010 nud reachable");
}

#[test]
fn frr_vni_and_l3vni_hazard() {
    if !can_run("frr_vni_and_l3vni_hazard") {
        return;
    }
    let fabric = ScaleAcross::up("evpn-hazard");
    let version = fabric.node("leaf1").run(&["vtysh", "-c", "show version"]).unwrap();
    if !version.contains(HAZARDOUS) {
        println!("SKIPPED frr_vni_and_l3vni_hazard: zebra is not {HAZARDOUS}");
        return;
    }
    let zebra = fabric
        .fabric
        .processes()
        .unwrap()
        .into_iter()
        .find(|p| p.node == "leaf1" && p.name == "zebra")
        .unwrap();

    let vtepd = fabric.vtepd("leaf1");
    vtepd.wait_for("zebra's FPM", |metrics| metrics.is_state("fpm", "live"));
    assert!(listens(&fabric, "leaf1"));
    layer3_vni(&fabric);
    vtepd.wait_for("the VNI of layer 3", |metrics| metrics.peers(5000).0 == Some(1));
    vtepd.wait_for_log("knows router MAC 02:00:00:00:50:04 of 10.0.0.14 and may crash");
    vtepd.wait_for_log("for the next start");
    let log = vtepd.log();
    let path = log.split_once("written to ").unwrap().1.split_once(", for the next start").unwrap().0;
    let note = Note(path.into());
    let text = std::fs::read_to_string(&note.0).unwrap();
    assert!(
        note.0.starts_with("/run/vtepd") && text.contains("02:00:00:00:50:04") && text.contains("10.0.0.14"),
        "{text}"
    );
    vtepd.stop();

    // The next one does not let zebra connect, says why, and knows the same all the same.
    let vtepd = fabric.vtepd("leaf1");
    assert!(!listens(&fabric, "leaf1"));
    let log = vtepd.log();
    let note_path = note.0.display().to_string();
    for words in ["FPM is not listened for", "02:00:00:00:50:04", "rtnetlink", "--fpm-unsafe", &note_path] {
        assert!(log.contains(words), "'{words}' is missing in\n{log}");
    }
    vtepd.wait_for_peers(10010, 5, 5);
    vtepd.wait_for_peers(5000, 1, 1);
    // zebra has tried meanwhile, and lives.
    assert!(!wait_until(RETRY, || !zebra.identity.alive()), "zebra has died");
    assert!(vtepd.metrics().is_state("fpm", "disconnected") && !listens(&fabric, "leaf1"));
    vtepd.stop();

    // Whoever knows better is obeyed.
    let vtepd = fabric.spawn("leaf1", &["--fpm-unsafe"]);
    assert!(wait_until(PATIENCE, || listens(&fabric, "leaf1")), "{}", vtepd.log());
    assert!(!vtepd.log().contains("not listened for"), "{}", vtepd.log());
    let died = wait_until(RETRY, || !zebra.identity.alive());
    println!("frr_vni_and_l3vni_hazard: let connect again, zebra {}", if died { "crashed" } else { "lives" });
}
