//! Compares vtepd's tables with those of the kernel and zebra in the normal form.

use fabric::process::wait_until;
use serde_json::Value;
use vtepd_tests::canonical::{
    Lines, bypass_differences, differences, of_kernel, of_vtepd, set_route, vteps,
};

use super::fixture::{CONVERGENCE, ScaleAcross, Vtepd};

/// The leaves that offer FPM.
pub(super) const FPM: [&str; 3] = ["leaf1", "leaf4", "leaf5"];
const VNIS: [u32; 2] = [10010, 10020];
const NETDEVS: [(&str, &str); 2] = [("vx10010", "br10010"), ("vx10020", "br10020")];

/// The tables that vtepd forwards with.
pub(super) fn own(vtepd: &Vtepd) -> Lines {
    of_vtepd(|words| vtepd.ask(words), &VNIS)
}

/// The tables that a leaf has without vtepd. Routes are zebra's on leaves with FPM, and the
/// kernel's where zebra has none. After an uplink has flapped, zebra 8.4.4 may use both uplinks and
/// have only one in the kernel. After a restart, it may forget a route that it had installed.
pub(super) fn expected(fabric: &ScaleAcross, leaf: &str) -> Lines {
    let mut lines = of_kernel(|command| fabric.run(leaf, command), &NETDEVS);
    if FPM.contains(&leaf) {
        for vtep in vteps(&lines) {
            let hops = zebra_route(fabric, leaf, &vtep);
            if !hops.is_empty() {
                set_route(&mut lines, &vtep, hops.into_iter());
            }
        }
    }
    lines
}

fn zebra_route(fabric: &ScaleAcross, leaf: &str, vtep: &str) -> Vec<((String, String), u64)> {
    let command = format!("show ip route {vtep}/32 json");
    let routes: Value =
        serde_json::from_str(&fabric.node(leaf).run(&["vtysh", "-c", &command]).unwrap()).unwrap();
    let routes = routes[format!("{vtep}/32")].as_array().cloned().unwrap_or_default();
    let selected = routes.into_iter().find(|route| route["selected"] == true);
    let hops = selected
        .map_or_else(Vec::new, |route| route["nexthops"].as_array().cloned().unwrap_or_default());
    let text = |hop: &Value, key: &str| hop[key].as_str().unwrap_or_default().to_owned();
    let used = hops.into_iter().filter(|hop| hop["fib"] == true && hop["active"] == true);
    used.map(|hop| {
        ((text(&hop, "interfaceName"), text(&hop, "ip")), hop["weight"].as_u64().unwrap_or(1))
    })
    .collect()
}

/// Waits until vtepd's tables equal its leaf's, and returns them.
pub(super) fn agree(fabric: &ScaleAcross, leaf: &str, vtepd: &Vtepd) -> Lines {
    let mut last = (Lines::new(), Vec::new());
    let agreed = wait_until(CONVERGENCE, || {
        let expected = expected(fabric, leaf);
        let mut differences = differences(&own(vtepd), &expected);
        let run = |command: &str| fabric.run(leaf, command);
        differences.extend(bypass_differences(|words| vtepd.ask(words), run, &NETDEVS));
        last = (expected, differences);
        last.1.is_empty()
    });
    let (lines, differences) = last;
    let kernel = || fabric.run(leaf, "ip route");
    assert!(agreed, "{leaf}: {differences:#?}\nthe kernel:\n{}\n{}", kernel(), vtepd.log());
    assert!(!vteps(&lines).is_empty(), "{leaf} knows nobody");
    lines
}

/// Waits until the tables contain a line, or no longer contain it.
pub(super) fn wait_for_line(vtepd: &Vtepd, line: &str, there: bool) {
    let came = wait_until(CONVERGENCE, || own(vtepd).contains(line) == there);
    assert!(
        came,
        "'{line}' is {}there:\n{:#?}\n{}",
        if there { "not " } else { "" },
        own(vtepd),
        vtepd.log()
    );
}
