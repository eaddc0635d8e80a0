//! Namespaces, the links between them and the processes in them.

use std::process::Command;

use fabric::netns::{Namespace, list, veth};
use root_test::root_test;

#[root_test]
fn a_closure_a_command_and_a_process_run_inside() {
    let name = format!("lab-ns-{}", std::process::id());
    let a = Namespace::create(format!("{name}-a")).unwrap();
    let b = Namespace::create(format!("{name}-b")).unwrap();
    veth((&a, "left"), (&b, "right"), 9000).unwrap();
    let devices =
        a.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
    assert!(devices.contains("left:") && !devices.contains("right:"), "{devices}");
    assert!(b.run(&["ip", "-o", "link", "show", "right"]).unwrap().contains("mtu 9000"));

    let process = a.spawn(Command::new("sleep").arg("60")).unwrap();
    assert_eq!(a.pids().unwrap(), [process.pid()]);
    drop(process);
    assert!(a.pids().unwrap().is_empty());

    assert_eq!(list(&name).len(), 2);
    drop((a, b));
    assert!(list(&name).is_empty());
}
