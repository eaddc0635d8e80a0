//! Equivalence of kernel VXLAN and vtepd, with a row for each knob of the leaf.
//! `ROW=part-of-a-name` selects rows.

use root_test::root_test;
use vtepd_tests::equivalence::leaf::Plan;
use vtepd_tests::equivalence::rows::GROUPS;
use vtepd_tests::equivalence::table::try_all;

/// Tests a group with and without `learning` on the netdev.
fn both(name: &str) {
    let group = GROUPS.iter().find(|group| group.name == name).unwrap();
    // In parallel, because most of the time is waiting.
    std::thread::scope(|scope| {
        for learning in ["nolearning", "learning"] {
            let plan = Plan { vxlan: format!("{learning} {}", group.options), ..Plan::default() };
            scope.spawn(move || try_all(name, &plan, group.rows));
        }
    });
}

#[root_test]
fn rules() {
    both("rules");
}

#[root_test]
fn routes() {
    both("routes");
}

#[root_test]
fn by_type_of_service() {
    both("by_type_of_service");
}

#[root_test]
fn hop_limits_with_ttl_inherit() {
    both("hop_limits_with_ttl_inherit");
}

#[root_test]
fn addresses_and_uplinks() {
    both("addresses_and_uplinks");
}

#[root_test]
fn ipsec_policies() {
    both("ipsec_policies");
}

#[root_test]
fn nftables() {
    both("nftables");
}

#[root_test]
fn iptables() {
    both("iptables");
}

#[root_test]
fn reverse_path_filters() {
    both("reverse_path_filters");
}

#[root_test]
fn programs_of_others() {
    both("programs_of_others");
}

#[root_test]
fn the_netdev_as_a_bridge_port() {
    both("the_netdev_as_a_bridge_port");
}

#[root_test]
fn a_host_port() {
    both("a_host_port");
}

#[root_test]
fn the_bridge() {
    both("the_bridge");
}

#[root_test]
fn options() {
    both("options");
}

#[root_test]
fn entries() {
    both("entries");
}

#[root_test]
fn path_mtu_with_df_set() {
    both("path_mtu_with_df_set");
}

#[root_test]
fn path_mtu_with_df_inherit() {
    both("path_mtu_with_df_inherit");
}

#[root_test]
fn path_mtu_with_df_unset() {
    both("path_mtu_with_df_unset");
}

#[root_test]
fn outer_sources() {
    both("outer_sources");
}

#[root_test]
fn outer_headers() {
    both("outer_headers");
}

#[root_test]
fn inner_tags() {
    both("inner_tags");
}

#[root_test]
fn inner_frames() {
    both("inner_frames");
}

#[root_test]
fn bridge_netfilter() {
    both("bridge_netfilter");
}
