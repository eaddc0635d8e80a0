//! Routing: rules, routes and next hops.

use vtepd_tests::equivalence::table::Row;

use crate::both;

const RULES: &[Row] = &[
    Row::new(
        "a rule by destination",
        "ip route add 10.0.0.2 via 10.1.2.2 dev up2 table 100; ip rule add to 10.0.0.2 lookup 100",
        "ip rule del to 10.0.0.2 lookup 100; ip route flush table 100",
    ),
    Row::new(
        "a rule by source",
        "ip route add 10.0.0.2 via 10.1.2.2 dev up2 table 100; ip rule add from 10.0.0.1 lookup 100",
        "ip rule del from 10.0.0.1 lookup 100; ip route flush table 100",
    ),
    Row::new(
        "a rule by destination port",
        "ip route add 10.0.0.2 via 10.1.2.2 dev up2 table 100; ip rule add ipproto udp dport 4789 lookup 100",
        "ip rule del ipproto udp dport 4789 lookup 100; ip route flush table 100",
    ),
    Row::new("a rule that prohibits", "ip rule add to 10.0.0.2 prohibit", "ip rule del to 10.0.0.2 prohibit"),
    Row::new("a rule that drops", "ip rule add to 10.0.0.2 blackhole", "ip rule del to 10.0.0.2 blackhole"),
    Row::new(
        "a rule that does not match",
        "ip rule add to 10.9.9.9 lookup 100",
        "ip rule del to 10.9.9.9 lookup 100",
    )
    .harmless(),
];

const ROUTES: &[Row] = &[
    Row::new(
        "a blackhole route",
        "ip route replace blackhole 10.0.0.2",
        "ip route del blackhole 10.0.0.2; ip route add 10.0.0.2 via 10.1.1.2 dev up1 src 10.0.0.1",
    ),
    Row::new(
        "a prohibit route",
        "ip route replace prohibit 10.0.0.2",
        "ip route del prohibit 10.0.0.2; ip route add 10.0.0.2 via 10.1.1.2 dev up1 src 10.0.0.1",
    ),
    Row::new(
        "an unreachable route",
        "ip route replace unreachable 10.0.0.2",
        "ip route del unreachable 10.0.0.2; ip route add 10.0.0.2 via 10.1.1.2 dev up1 src 10.0.0.1",
    ),
    Row::new(
        "two next hops",
        "ip route replace 10.0.0.2 src 10.0.0.1 nexthop via 10.1.1.2 nexthop via 10.1.2.2",
        "ip route replace 10.0.0.2 via 10.1.1.2 dev up1 src 10.0.0.1",
    )
    .balanced()
    .harmless(),
];

#[test]
fn rules() {
    both("rules", RULES);
}

#[test]
fn routes() {
    both("routes", ROUTES);
}
