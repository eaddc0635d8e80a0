//! FRR's configuration of a router.

use std::fmt::Write as _;

use super::layout::{Role, Router};
use super::plan::Plan;

/// The number of BFD intervals without a packet after which a session ends.
const BFD_MULTIPLIER: u32 = 3;

/// The file `/etc/frr/daemons`. With FPM, zebra offers what it programs to vtepd.
pub(super) fn daemons(fpm: bool) -> String {
    let module = if fpm { " -M dplane_fpm_nl" } else { "" };
    format!(
        "# Which FRR daemons run (zebra and staticd always do). This file is read by frrinit.sh.\n\
         bgpd=yes\nbfdd=yes\nvtysh_enable=yes\n\
         zebra_options=\"  -A 127.0.0.1 -s 90000000{module}\"\n\
         staticd_options=\"-A 127.0.0.1\"\nbgpd_options=\"   -A 127.0.0.1\"\n\
         bfdd_options=\"   -A 127.0.0.1\"\n"
    )
}

/// The file `frr.conf`.
pub(super) fn frr(plan: &Plan, router: &Router) -> String {
    // With next-hop objects, zebra 8.4 may not give the kernel an uplink that has returned.
    let mut text = format!(
        "frr defaults datacenter\nhostname {}\nlog stdout informational\n\
         no zebra nexthop kernel enable\n",
        router.name
    );
    if router.role == Role::Leaf {
        text += "no fpm use-next-hop-groups\nfpm address 127.0.0.1\n";
    }
    // Writing to a string does not fail.
    let _ = interfaces(&mut text, router);
    let _ = bfd(&mut text, plan, router);
    let _ = bgp(&mut text, plan, router);
    text
}

fn interfaces(text: &mut String, router: &Router) -> std::fmt::Result {
    writeln!(text, "!\ninterface lo\n ip address {}/32\nexit", router.loopback)?;
    for port in &router.ports {
        writeln!(
            text,
            "!\ninterface {}\n description to {}\n ip address {}/31\nexit",
            port.interface, port.neighbour, port.address
        )?;
    }
    Ok(())
}

/// Routers list their BFD peers, although bgpd asks for them, too: a session that bgpd alone has
/// asked for ends and starts again when its first connection tells it its own address.
fn bfd(text: &mut String, plan: &Plan, router: &Router) -> std::fmt::Result {
    let Some(interval) = plan.bfd.map(|interval| interval.as_millis()) else { return Ok(()) };
    writeln!(
        text,
        "!\nbfd\n profile fabric\n  transmit-interval {interval}\n  receive-interval {interval}\n  \
         detect-multiplier {BFD_MULTIPLIER}\n exit"
    )?;
    for port in &router.ports {
        writeln!(text, " peer {}\n  profile fabric\n exit", port.neighbour_address)?;
    }
    writeln!(text, "exit")
}

fn bgp(text: &mut String, plan: &Plan, router: &Router) -> std::fmt::Result {
    writeln!(
        text,
        "!\nrouter bgp {}\n bgp router-id {}\n no bgp ebgp-requires-policy\n \
         no bgp default ipv4-unicast\n bgp bestpath as-path multipath-relax\n \
         neighbor FABRIC peer-group",
        router.autonomous_system, router.loopback
    )?;
    if plan.bfd.is_some() {
        writeln!(text, " neighbor FABRIC bfd profile fabric")?;
    }
    writeln!(text, " neighbor FABRIC timers connect 1")?;
    for port in &router.ports {
        let neighbour = port.neighbour_address;
        writeln!(
            text,
            " neighbor {neighbour} remote-as {}\n neighbor {neighbour} peer-group FABRIC",
            port.neighbour_system
        )?;
    }
    let evpn = match router.role {
        Role::Leaf => "advertise-all-vni",
        // Leaves send to each other's addresses, not to the spine's.
        Role::Spine => "neighbor FABRIC attribute-unchanged next-hop",
    };
    writeln!(
        text,
        " !\n address-family ipv4 unicast\n  network {}/32\n  neighbor FABRIC activate\n  \
         maximum-paths {}\n exit-address-family\n !\n address-family l2vpn evpn\n  \
         neighbor FABRIC activate\n  {evpn}\n exit-address-family\nexit\n!",
        router.loopback,
        plan.spines.max(2)
    )
}
