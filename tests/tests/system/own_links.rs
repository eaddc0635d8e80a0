//! vtepd's own interfaces are set down or deleted. Traffic of the hosts continues.

use root_test::root_test;
use vtepd_tests::lab::{ip, run};
use vtepd_tests::{Lab, Vtepd, sockets, wait_for};

/// The near ends of the punt pairs and of the splitter.
const OWN: [&str; 3] = ["vtepd-bridge", "vtepd-underlay", "vtepd-split"];

#[root_test]
fn an_own_interface_that_is_set_down_is_set_up_again() {
    let lab = Lab::new("owndown");
    for arguments in [&["--no-fpm"][..], &["--no-fpm", "--no-bridge-bypass", "--hook", "clsact"]] {
        let vtepd = Vtepd::start(&lab.leaf, arguments);
        let mut events = vtepd.events();
        for name in OWN {
            ip(&lab.leaf, &format!("link set {name} down\n"));
            let event = events.wait_for("the repair", |event| {
                event["text"]
                    .as_str()
                    .is_some_and(|text| text.contains(&format!("interface {name} was set down")))
            });
            assert_eq!(event["kind"], "warning");
            assert!(run(&lab.leaf, &format!("ip link show dev {name}")).contains("state UP"));
            let before = vtepd.metrics();
            sockets::ping(&lab.host, lab.far.ip(), 10, 100, &[]);
            let after = vtepd.metrics();
            for way in ["encapsulated", "decapsulated"] {
                let passed = after.vni_frames(10, way) - before.vni_frames(10, way);
                assert!(passed >= 10, "{way}: {passed} frames by vtepd after {name} was down");
            }
        }
        let (status, log) = vtepd.terminate();
        assert!(status.success(), "{log}");
    }
}

#[root_test]
fn an_own_interface_that_is_deleted_gives_everything_back_to_the_kernel() {
    let lab = Lab::new("owndel");
    for name in OWN {
        let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
        sockets::ping(&lab.host, lab.far.ip(), 3, 100, &[]);
        ip(&lab.leaf, &format!("link del {name}\n"));
        let (status, log) = vtepd.wait();
        assert!(!status.success(), "{log}");
        assert!(log.contains(&format!("the interface {name} is gone")), "{log}");
        wait_for("the hooks to go", || {
            sockets::try_ping(&lab.host, lab.far.ip(), 3, 100, &[]).contains("3 received")
        });
        sockets::ping(&lab.host, lab.far.ip(), 10, 100, &[]);
    }
}
