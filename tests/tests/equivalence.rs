//! Equivalence of kernel VXLAN and vtepd, with a row for each knob of the leaf.
//! `ROW=part-of-a-name` selects rows.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test may panic")]

use vtepd_tests::equivalence::leaf::Plan;
use vtepd_tests::equivalence::rows::GROUPS;
use vtepd_tests::equivalence::table::try_all;
use vtepd_tests::guard::can_run;

/// Tests a group with and without `learning` on the netdev.
fn both(name: &str) {
    if !can_run(name) {
        return;
    }
    let group = GROUPS.iter().find(|group| group.name == name).unwrap();
    // In parallel, because most of the time is waiting.
    std::thread::scope(|scope| {
        for learning in ["nolearning", "learning"] {
            let plan = Plan { vxlan: format!("{learning} {}", group.options), ..Plan::default() };
            scope.spawn(move || try_all(name, &plan, group.rows));
        }
    });
}

/// The table has at least the documented number of rows, each with a unique name within its group.
#[test]
fn the_table_is_whole() {
    let names: Vec<_> = GROUPS
        .iter()
        .flat_map(|group| group.rows.iter().map(|row| (group.name, row.name)))
        .collect();
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert!(
        distinct.len() == names.len() && names.len() >= 60,
        "{} of {}",
        distinct.len(),
        names.len()
    );
}

#[test]
fn rules() {
    both("rules");
}

#[test]
fn routes() {
    both("routes");
}

#[test]
fn by_type_of_service() {
    both("by_type_of_service");
}

#[test]
fn hop_limits_with_ttl_inherit() {
    both("hop_limits_with_ttl_inherit");
}

#[test]
fn addresses_and_uplinks() {
    both("addresses_and_uplinks");
}

#[test]
fn ipsec_policies() {
    both("ipsec_policies");
}

#[test]
fn nftables() {
    both("nftables");
}

#[test]
fn iptables() {
    both("iptables");
}

#[test]
fn reverse_path_filters() {
    both("reverse_path_filters");
}

#[test]
fn programs_of_others() {
    both("programs_of_others");
}

#[test]
fn the_netdev_as_a_bridge_port() {
    both("the_netdev_as_a_bridge_port");
}

#[test]
fn a_host_port() {
    both("a_host_port");
}

#[test]
fn the_bridge() {
    both("the_bridge");
}

#[test]
fn options() {
    both("options");
}

#[test]
fn entries() {
    both("entries");
}

#[test]
fn path_mtu_with_df_set() {
    both("path_mtu_with_df_set");
}

#[test]
fn path_mtu_with_df_inherit() {
    both("path_mtu_with_df_inherit");
}

#[test]
fn path_mtu_with_df_unset() {
    both("path_mtu_with_df_unset");
}

#[test]
fn outer_sources() {
    both("outer_sources");
}

#[test]
fn outer_headers() {
    both("outer_headers");
}

#[test]
fn inner_tags() {
    both("inner_tags");
}

#[test]
fn inner_frames() {
    both("inner_frames");
}

#[test]
fn bridge_netfilter() {
    both("bridge_netfilter");
}
