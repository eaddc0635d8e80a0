//! Namespaces that are read again and again.

use fabric::netns::{Namespace, veth};
use fabric::rtnl::VethEnd;
use fabric::watch::Watch;
use root_test::root_test;

fn names(watch: &mut Watch) -> Vec<String> {
    let mut names: Vec<String> =
        watch.counters().unwrap().map(|(name, _)| name.to_owned()).collect();
    names.sort();
    let mut links: Vec<String> = watch.links().unwrap().into_iter().map(|link| link.name).collect();
    links.sort();
    assert_eq!(names, links);
    names
}

#[root_test]
fn a_watch_follows_a_namespace_that_is_replaced() {
    let name = format!("lab-watch-{}", std::process::id());
    let other = Namespace::create(format!("{name}-other")).unwrap();
    let mut watch = Watch::new(&name);
    assert!(watch.counters().err().unwrap().to_string().contains("no network namespace"));
    let first = Namespace::create(&name).unwrap();
    assert_eq!(names(&mut watch), ["lo"]);
    veth((&first, "old"), (&other, "o1"), 1500).unwrap();
    assert_eq!(names(&mut watch), ["lo", "old"]);

    drop(first);
    let second = Namespace::create(&name).unwrap();
    let end = |name| VethEnd { name, mac: None, mtu: 1500 };
    second.rtnl(|rtnl| rtnl.add_veth(end("new"), end("n1"), None)).unwrap();
    assert_eq!(names(&mut watch), ["lo", "n1", "new"]);
    let gone = || {
        let links = other.rtnl(|rtnl| rtnl.links()).unwrap();
        links.iter().all(|link| link.name != "o1")
    };
    let timeout = std::time::Duration::from_secs(20);
    assert!(fabric::process::wait_until(timeout, gone), "the old namespace is kept");
    drop(second);
    assert!(watch.counters().is_err() && watch.links().is_err());
}
