//! A VNI stays with the kernel if packet filters may match its packets, and is taken over
//! otherwise. The table in `equivalence.rs` compares what each filter does to frames.

use root_test::root_test;
use vtepd_tests::lab::{VNI, run};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Vtepd};

/// An nftables table with one rule that may match.
const MATCHING: &str = "add table ip zz; add chain ip zz c { type filter hook input priority 0; }; add rule ip zz c udp dport 4789 drop";

/// Runs nft commands.
fn nft(lab: &Lab, commands: &str) {
    lab.leaf.run(&["nft", commands]).unwrap_or_else(|error| panic!("{commands}: {error}"));
}

fn wait_until_left(vtepd: &Vtepd) {
    let left = Some("packet-filter");
    vtepd.wait_for("the VNI to be left", |metrics| metrics.left("vx10").as_deref() == left);
}

fn wait_until_taken(vtepd: &Vtepd) {
    vtepd.wait_for("the VNI to be taken over", |metrics| metrics.has_vni(VNI));
}

/// Checks that the VNI is taken over with these filters. A matching rule is added and deleted, so
/// that vtepd has certainly read all rules.
fn assert_harmless(lab: &Lab, vtepd: &Vtepd, what: &str) {
    nft(lab, MATCHING);
    wait_until_left(vtepd);
    nft(lab, "delete table ip zz");
    println!("harmless: {what}");
    wait_until_taken(vtepd);
}

/// A base chain of table `inet t` with these rules.
fn with(chain: &str, rules: &[&str]) -> String {
    let rules = rules.iter().map(|rule| format!("add rule inet t c {rule};"));
    format!("add table inet t; add chain inet t c {{ {chain}; }}; {}", rules.collect::<String>())
}

const INPUT: &str = "type filter hook input priority 0";
const OUTPUT: &str = "type filter hook output priority 0";

#[root_test]
fn rules_that_cannot_match_leave_the_vni_with_vtepd() {
    let lab = Lab::new("filters");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let firewall = "type filter hook input priority 0; policy drop";
    let forward = "type filter hook forward priority 0; policy drop";
    let nat = "type nat hook output priority -100";
    for (chain, rules) in [
        (INPUT, &[][..]),
        (INPUT, &["tcp dport 4789 drop"]),
        (INPUT, &["udp dport 4790 drop", "udp dport 1-4788 drop", "udp dport != 4789 drop"]),
        (
            INPUT,
            &["udp dport 53 ct state new drop", "ip daddr 10.9.0.0/16 drop", "ip6 saddr ::/0 drop"],
        ),
        (
            INPUT,
            &[
                "iifname \"eth0\" drop",
                "iif hp10 drop",
                "iifname \"eth*\" drop",
                "icmp type echo-request drop",
            ],
        ),
        (INPUT, &["udp dport 4789 counter", "counter", "ct state established accept"]),
        // A firewall that accepts VXLAN.
        (
            firewall,
            &["iif lo accept", "ct state established accept", "udp dport 4789 accept", "log"],
        ),
        (firewall, &["udp dport 1-65535 accept", "iif lo accept"]),
        (
            OUTPUT,
            &[
                "ip daddr 10.9.9.9 drop",
                "oifname \"eth0\" drop",
                "oif != lo ip saddr != 10.0.0.0/8 reject",
            ],
        ),
        (OUTPUT, &["ip daddr 127.0.0.11 udp dport 53 counter drop", "udp dport 4789 notrack"]),
        (nat, &["ip daddr 127.0.0.11 udp dport 53 dnat ip to 127.0.0.11:43211"]),
        (forward, &["udp dport 4789 drop"]),
    ] {
        nft(&lab, &with(chain, rules));
        assert_harmless(&lab, &vtepd, &rules.join(", "));
        nft(&lab, "delete table inet t");
    }
    // A jump that no packet takes, a flowtable, and a netdev chain on an interface that is not an
    // uplink.
    nft(&lab, "add table inet t; add chain inet t d; add rule inet t d drop");
    nft(
        &lab,
        &with(
            INPUT,
            &[
                "iif lo accept",
                "tcp dport 22 jump d",
                "udp dport 53 goto d",
                "udp dport 4789 return",
                "drop",
            ],
        ),
    );
    if let Err(error) = lab
        .leaf
        .run(&["nft", "add flowtable inet t f { hook ingress priority 0; devices = { up1 }; }"])
    {
        println!("no flowtables: {error}");
    }
    nft(
        &lab,
        "add table netdev u; add chain netdev u c { type filter hook ingress device hp10 priority 0; policy drop; }",
    );
    assert_harmless(&lab, &vtepd, "jumps, a flowtable, and a chain at another interface");
}

#[root_test]
fn rules_that_may_match_leave_the_vni_with_the_kernel() {
    let lab = Lab::new("filters");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let firewall = "type filter hook input priority 0; policy drop";
    let raw = "type filter hook prerouting priority raw";
    let late = "type filter hook postrouting priority 0";
    for (chain, rules) in [
        (firewall, &["iif lo accept"][..]),
        (
            firewall,
            &[
                "iif lo accept",
                "ct state established accept",
                "udp dport 4789 limit rate 1/second accept",
            ],
        ),
        (INPUT, &["iif lo accept", "ct state established accept", "drop"]),
        (INPUT, &["ct state invalid drop"]),
        (INPUT, &["ip saddr 10.0.0.0/8 udp dport 4789 meta mark set 7"]),
        (INPUT, &["udp dport { 53, 4789 } drop"]),
        (INPUT, &["udp dport vmap { 4789 : drop }"]),
        (INPUT, &["udp sport 50000-60000 drop"]),
        (INPUT, &["udp length > 1000 drop"]),
        (INPUT, &["iifname \"up*\" log"]),
        (INPUT, &["iif up1 udp dport 4000-5000 drop"]),
        (raw, &["iifname != \"lo\" meta l4proto udp drop"]),
        (OUTPUT, &["udp dport 4789 ip dscp set ef"]),
        (OUTPUT, &["oifname \"up2\" udp dport 4789 drop"]),
        (late, &["ip daddr 10.0.0.0/8 udp dport 4789 drop"]),
    ] {
        println!("{chain}: {rules:?}");
        nft(&lab, &with(chain, rules));
        wait_until_left(&vtepd);
        nft(&lab, "delete table inet t");
        wait_until_taken(&vtepd);
    }
    // Chains that are reached by a jump, and chains of single interfaces.
    nft(&lab, "add table inet t; add chain inet t d; add rule inet t d udp dport 4789 drop");
    nft(&lab, &with(INPUT, &["meta l4proto udp jump d"]));
    wait_until_left(&vtepd);
    nft(&lab, "delete table inet t");
    wait_until_taken(&vtepd);
    for hook in ["ingress", "egress"] {
        let chain =
            format!("add chain netdev t c {{ type filter hook {hook} device up1 priority 0; }}");
        nft(&lab, &format!("add table netdev t; {chain}; add rule netdev t c udp dport 4789 drop"));
        wait_until_left(&vtepd);
        nft(&lab, "delete table netdev t");
        wait_until_taken(&vtepd);
    }
}

/// Adds the rules that Docker writes into a container's network namespace.
fn docker(lab: &Lab, iptables: &str) {
    for command in [
        "-N DOCKER_OUTPUT",
        "-N DOCKER_POSTROUTING",
        "-A OUTPUT -d 127.0.0.11/32 -j DOCKER_OUTPUT",
        "-A DOCKER_OUTPUT -d 127.0.0.11/32 -p tcp -m tcp --dport 53 -j DNAT --to-destination 127.0.0.11:38425",
        "-A DOCKER_OUTPUT -d 127.0.0.11/32 -p udp -m udp --dport 53 -j DNAT --to-destination 127.0.0.11:43211",
        "-A POSTROUTING -d 127.0.0.11/32 -j DOCKER_POSTROUTING",
        "-A DOCKER_POSTROUTING -s 127.0.0.11/32 -p tcp -m tcp --sport 38425 -j SNAT --to-source :53",
        "-A DOCKER_POSTROUTING -s 127.0.0.11/32 -p udp -m udp --sport 43211 -j SNAT --to-source :53",
    ] {
        run(&lab.leaf, &format!("{iptables} -t nat {command}"));
    }
}

/// Docker's rules for its name server do not matter, and rules for VXLAN do.
fn rules_of_docker(iptables: &str) {
    let lab = Lab::new("filters");
    if let Err(error) = lab.leaf.run(&[iptables, "-S"]) {
        root_test::ignore(format!("{iptables}: {error}"));
    }
    docker(&lab, iptables);
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    assert!(vtepd.metrics().has_vni(VNI), "{:?}: {}", vtepd.metrics().left("vx10"), vtepd.log());
    for (table, rule) in [
        ("mangle", "OUTPUT -p udp --dport 4789 -j MARK --set-mark 1"),
        ("filter", "INPUT -p udp -m udp --dport 4000:5000 -j DROP"),
        ("filter", "INPUT ! -i lo -m conntrack --ctstate INVALID -j DROP"),
        ("raw", "PREROUTING -i up+ -s 10.0.0.0/8 -j DROP"),
    ] {
        println!("{iptables}: {rule}");
        run(&lab.leaf, &format!("{iptables} -t {table} -A {rule}"));
        wait_until_left(&vtepd);
        run(&lab.leaf, &format!("{iptables} -t {table} -D {rule}"));
        wait_until_taken(&vtepd);
    }
    // Rules that cannot match. vtepd has certainly read them once it reacts to a later rule.
    for (table, rule) in [
        ("filter", "INPUT -p tcp --dport 22 -j DROP"),
        ("filter", "INPUT -p udp -m udp ! --dport 4789 -m comment --comment x -j DROP"),
        ("filter", "INPUT -i eth+ -j DROP"),
        ("filter", "OUTPUT -d 10.9.9.9 -j DROP"),
        ("raw", "PREROUTING -p udp --dport 4789 -j CT --notrack"),
    ] {
        run(&lab.leaf, &format!("{iptables} -t {table} -A {rule}"));
    }
    let last = "INPUT -p udp --dport 4789 -j DROP";
    run(&lab.leaf, &format!("{iptables} -A {last}"));
    wait_until_left(&vtepd);
    run(&lab.leaf, &format!("{iptables} -D {last}"));
    wait_until_taken(&vtepd);
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{status}: {log}");
}

#[root_test]
fn rules_of_docker_with_iptables_nft_leave_the_vni_with_vtepd() {
    rules_of_docker("iptables-nft");
}

#[root_test]
fn rules_of_docker_with_iptables_legacy_leave_the_vni_with_vtepd() {
    rules_of_docker("iptables-legacy");
}

/// A rule that only marks packets appears and disappears while frames pass in both directions. All
/// frames arrive once and in order.
#[root_test]
fn a_rule_that_comes_and_goes_disturbs_no_frame() {
    let lab = Lab::new("filters");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let rate = Rate { frames: 2000, queue_pairs: 8, payload: 512 };
    let streams =
        [Stream::start(&lab.host, &lab.far, rate, 1), Stream::start(&lab.far, &lab.host, rate, 2)];
    for _ in 0..3 {
        streams.iter().for_each(|stream| stream.pass(500));
        nft(&lab, &with(INPUT, &["udp dport 4789 meta mark set 7"]));
        wait_until_left(&vtepd);
        streams.iter().for_each(|stream| stream.pass(500));
        nft(&lab, "delete table inet t");
        wait_until_taken(&vtepd);
    }
    for stream in streams {
        let (sent, report) = stream.finish();
        let fate = (report.lost(), report.duplicated(), report.corrupted(), report.reordered());
        assert_eq!(fate, (0, 0, 0, 0), "lost, doubled, damaged and reordered of {}", sent.frames);
    }
}

/// A strict reverse path filter appears and disappears while frames pass in both directions over
/// both uplinks. All frames arrive once, and vtepd still decapsulates packets of VTEPs whose route
/// uses the uplink.
#[root_test]
fn a_reverse_path_filter_that_all_packets_pass_disturbs_no_frame() {
    let lab = Lab::new("filters");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let rate = Rate { frames: 2000, queue_pairs: 8, payload: 512 };
    let streams =
        [Stream::start(&lab.host, &lab.far, rate, 1), Stream::start(&lab.far, &lab.host, rate, 2)];
    let decapsulated = || vtepd.metrics().vni_frames(VNI, "decapsulated");
    for mode in ["1", "2", "0", "1"] {
        run(&lab.leaf, &format!("sysctl -qw net.ipv4.conf.all.rp_filter={mode}"));
        streams.iter().for_each(|stream| stream.pass(500));
        let (before, received) = (decapsulated(), streams[1].received());
        streams.iter().for_each(|stream| stream.pass(1000));
        let (after, arrived) = (decapsulated(), streams[1].received());
        let (taken, all) = (after - before, arrived - received);
        println!("rp_filter {mode}: {taken} of about {all} frames were decapsulated by vtepd");
        assert!(taken * 10 >= all * 8, "rp_filter {mode}: {taken} of {all}");
    }
    streams.into_iter().for_each(Stream::finish_whole);
}
