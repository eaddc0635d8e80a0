//! The table of rows, in groups.

pub mod bridge;
pub mod filters;
pub mod frames;
pub mod netdev;
pub mod routes;

use super::table::Row;

/// Rows for leaves whose netdev has the same options.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// The group's name, which is also the name of its test.
    pub name: &'static str,
    /// Options of the netdev.
    pub options: &'static str,
    /// The rows.
    pub rows: &'static [Row],
}

/// All groups.
pub const GROUPS: &[Group] = &[
    Group { name: "rules", options: "", rows: routes::RULES },
    Group { name: "routes", options: "", rows: routes::ROUTES },
    Group { name: "by_type_of_service", options: "tos inherit", rows: routes::BY_TOS },
    Group { name: "hop_limits_with_ttl_inherit", options: "ttl inherit", rows: routes::HOP_LIMITS },
    Group { name: "addresses_and_uplinks", options: "", rows: routes::ADDRESSES },
    Group { name: "ipsec_policies", options: "", rows: routes::POLICIES },
    Group { name: "nftables", options: "", rows: filters::NFTABLES },
    Group { name: "iptables", options: "", rows: filters::IPTABLES },
    Group { name: "reverse_path_filters", options: "", rows: filters::REVERSE_PATH },
    Group { name: "programs_of_others", options: "", rows: filters::PROGRAMS },
    Group { name: "the_netdev_as_a_bridge_port", options: "", rows: bridge::PORT_OF_VXLAN },
    Group { name: "a_host_port", options: "", rows: bridge::PORT_OF_A_HOST },
    Group { name: "the_bridge", options: "", rows: bridge::BRIDGE },
    Group { name: "options", options: "", rows: netdev::OPTIONS },
    Group { name: "entries", options: "", rows: netdev::FDB },
    Group { name: "path_mtu_with_df_set", options: "df set", rows: netdev::PATH_MTU },
    Group { name: "path_mtu_with_df_inherit", options: "df inherit", rows: netdev::PATH_MTU },
    Group { name: "path_mtu_with_df_unset", options: "df unset", rows: netdev::PATH_MTU },
    Group { name: "outer_sources", options: "", rows: frames::SOURCES },
    Group { name: "outer_headers", options: "", rows: frames::OUTER },
    Group { name: "inner_tags", options: "", rows: frames::TAGS },
    Group { name: "inner_frames", options: "", rows: frames::DAMAGE },
    Group { name: "bridge_netfilter", options: "", rows: frames::BRIDGE_FILTER },
];

#[cfg(test)]
mod tests {
    use super::GROUPS;

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
}
