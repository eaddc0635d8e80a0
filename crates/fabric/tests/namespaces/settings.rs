//! The settings of new namespaces.

use fabric::netns::{Namespace, veth};
use root_test::root_test;

/// Settings that machines have, with other values than the kernel's defaults. The kernel changes
/// `accept_redirects` of `all` with `forwarding`.
const OF_A_MACHINE: &[(&str, &str)] = &[
    ("ipv4/conf/all/forwarding", "1"),
    ("ipv4/conf/all/rp_filter", "1"),
    ("ipv4/conf/default/rp_filter", "2"),
    ("ipv4/conf/all/accept_local", "1"),
    ("ipv4/conf/default/arp_ignore", "2"),
    ("ipv4/conf/all/arp_announce", "2"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/accept_redirects", "0"),
    ("ipv4/conf/default/arp_evict_nocarrier", "0"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv6/conf/default/accept_ra", "0"),
];

/// `path=value` of all settings of a namespace's interfaces, and of those to come.
fn settings(namespace: &Namespace) -> Vec<String> {
    let command = "grep -rs '' /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf | sort";
    let text = namespace.run(&["sh", "-c", command]).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[root_test]
fn a_namespace_gets_the_kernels_defaults_whatever_it_inherited() {
    let name = |end: &str| format!("lab-settings-{}-{end}", std::process::id());
    let [fresh, changed] = ["a", "b"].map(|end| Namespace::create(name(end)).unwrap());
    let write = || {
        for (path, value) in OF_A_MACHINE {
            let path = format!("/proc/sys/net/{path}");
            if std::path::Path::new(&path).exists() {
                std::fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
            }
        }
    };
    changed.enter(write).unwrap();
    assert_ne!(settings(&changed), settings(&fresh));
    changed.set_defaults().unwrap();
    // Interfaces that are made now have them, too.
    veth((&fresh, "eth0"), (&changed, "eth0"), 1500).unwrap();
    let same = |line: &&String| !line.contains("/conf/lo/") && !line.contains("stable_secret");
    let [of_fresh, of_changed] = [settings(&fresh), settings(&changed)];
    let differing: Vec<_> =
        of_changed.iter().filter(same).filter(|line| !of_fresh.contains(line)).collect();
    assert!(differing.is_empty(), "{differing:#?}");
    assert!(of_fresh.contains(&"/proc/sys/net/ipv4/conf/eth0/forwarding:0".to_owned()));
}
