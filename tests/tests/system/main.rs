//! vtepd with real links, kernel VXLAN and FRR, in network namespaces.
//!
//! All tests need root. They are one program, because each program takes seconds to link.

mod any_kernel;
mod api;
mod bench;
mod both_directions;
mod burst;
mod busy_poll;
mod bypass;
mod control_hang;
mod cycles;
mod differential;
mod drop_in;
mod entropy;
mod equivalence;
mod equivalence_bridge;
mod equivalence_routing;
mod evpn;
mod foreign;
mod forwarding;
mod fpm_peers;
mod full_rate;
mod headers;
mod hung;
mod ipv6_underlay;
mod kernel_datapath;
mod learning;
mod marks;
mod martian;
mod mobility;
mod modules;
mod moving;
mod mtu;
mod neighbours;
mod next_hops;
mod offload;
mod other_users;
mod own_links;
mod own_tunnels;
mod packet_filters;
mod privileges;
mod qp_pin;
mod qp_pin_by_kernel;
mod qp_pin_over_ipv6;
mod qp_pin_shown;
mod reconcile;
mod service;
mod soft_roce;
mod standalone;
mod takeover;
mod top;
mod tunnel;
mod underlay;
mod upgrade;
mod workers;

root_test::main!();
