//! Names that others give do not control the terminal that shows them.

use root_test::root_test;
use vtepd_tests::{Lab, Vtepd};

#[root_test]
fn names_of_interfaces_are_escaped() {
    let lab = Lab::new("terminal");
    let script = "port=$(printf 'p\\033[31mX') netdev=$(printf 'v\\033[31mX')
        ip link add name \"$port\" type veth peer name other
         ip link set dev \"$port\" master br10 up
         ip link add name \"$netdev\" type vxlan id 77 local 10.0.0.1 dstport 4790";
    lab.leaf.run(&["sh", "-ec", script]).unwrap();
    let dry = |arguments: &[&str]| Vtepd::output(&lab.leaf, arguments);
    let mut outputs = vec![
        ("port", dry(&["--dry-run"])),
        ("port", dry(&["--dry-run", "--output", "json"])),
        ("", dry(&["--config", "\u{1b}[31m"])),
    ];
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    outputs.extend([
        ("port", vtepd.ctl(&["port"])),
        ("port", vtepd.ctl(&["port", "--output", "json"])),
        ("vni", vtepd.ctl(&["vni"])),
        ("status", vtepd.ctl(&["status"])),
        ("", vtepd.ctl(&["vni", "\u{1b}[31m"])),
    ]);
    for (shows, output) in outputs {
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!said.contains('\u{1b}'), "{shows}: {said:?}");
        let names = ["p\\u001b[31mX", "v\\u001b[31mX"];
        let wanted = match shows {
            "port" => names.get(..1),
            "vni" | "status" => names.get(1..),
            _ => None,
        };
        let is_there = |name: &&str| said.contains(*name);
        assert!(wanted.unwrap_or_default().iter().all(is_there), "{shows}: {said:?}");
    }
    assert!(!vtepd.log().contains('\u{1b}'), "{:?}", vtepd.log());
}
