//! The text output of `vtepctl explain`.

use std::io::{self, Write};

use api::v1;

/// Writes an explanation, with a paragraph for each copy.
///
/// # Errors
/// When the output cannot be written.
pub(crate) fn write(out: &mut impl Write, explanation: &v1::Explanation) -> io::Result<()> {
    if explanation.datapath == "kernel" {
        return by_kernel(out, explanation);
    }
    let v1::Explanation { vni, netdev, dropped, destination, flooded, copies, ports, .. } =
        explanation;
    write!(out, "VNI {vni} ({netdev}): ")?;
    if let Some(drop) = dropped {
        return write_drop(out, drop);
    }
    write!(out, "{destination} ")?;
    match (*flooded, ports.join(" ")) {
        (true, ports) if ports.is_empty() => {
            writeln!(out, "is in no table: a copy for each VTEP of the flood list")?;
        }
        (true, ports) => writeln!(
            out,
            "is not known: a copy for each VTEP of the flood list, and for each port that it does not come from ({ports})"
        )?,
        (false, ports) if ports.is_empty() => writeln!(out, "is behind a known VTEP")?,
        (false, ports) => writeln!(out, "is behind port {ports}, which gets it as it is")?,
    }
    for copy in copies {
        let vtep = if copy.vtep.is_empty() { "a VTEP that is gone" } else { copy.vtep.as_str() };
        writeln!(out, "\nTo {vtep}:")?;
        writeln!(out, "  {} looks at {} ({})", copy.policy, copy.key, copy.reason)?;
        match &copy.placement {
            Some(placement) => write_placement(out, copy, placement)?,
            None => write_hash(out, copy)?,
        }
        if copy.placement.as_ref().is_some_and(|placement| placement.state == "new") {
            continue;
        }
        write!(out, "  ")?;
        match (&copy.route, &copy.dropped) {
            (Some(route), _) => write_route(out, copy, route)?,
            (None, Some(drop)) => write_drop(out, drop)?,
            (None, None) => writeln!(out, "nothing is known of its way")?,
        }
    }
    Ok(())
}

/// For a VNI in the kernel datapath, only the source port can be explained. Kernel VXLAN looks up
/// the destination.
fn by_kernel(out: &mut impl Write, explanation: &v1::Explanation) -> io::Result<()> {
    let v1::Explanation { vni, netdev, destination, copies, .. } = explanation;
    writeln!(
        out,
        "VNI {vni} ({netdev}), datapath kernel: kernel VXLAN forwards the frame to {destination}"
    )?;
    let [copy] = copies.as_slice() else {
        return writeln!(out, "The kernel's own hash gives the outer source port");
    };
    writeln!(out, "  {} looks at {} ({})", copy.policy, copy.key, copy.reason)?;
    if copy.source_port == 0 {
        return writeln!(out, "  the kernel's own hash gives the outer source port");
    }
    match &copy.placement {
        Some(placement) => write_placement(out, copy, placement),
        None => write_hash(out, copy),
    }
}

fn write_hash(out: &mut impl Write, copy: &v1::Copy) -> io::Result<()> {
    write!(out, "  hash {} ", copy.hash)?;
    if let Some(bin) = copy.bin {
        write!(out, "is bin {bin}, ")?;
    }
    writeln!(out, "gives outer source port {} of {}", copy.source_port, copy.source_ports)
}

/// Whether `qp-pin` has chosen the port and the next hop.
fn is_pinned(placement: &v1::Placement) -> bool {
    matches!(placement.state.as_str(), "pinned" | "moving")
}

/// Whether packets that are not sprayed have a place.
fn is_placed(placement: &v1::Placement) -> bool {
    is_pinned(placement) || placement.state == "sprayed"
}

/// Where qp-pin has placed the queue pair, or will place it.
fn write_placement(
    out: &mut impl Write,
    copy: &v1::Copy,
    placement: &v1::Placement,
) -> io::Result<()> {
    let v1::Placement { state, reason, paths } = placement;
    if is_pinned(placement) {
        writeln!(
            out,
            "  placed by qp-pin on outer source port {} of {}: {reason}",
            copy.source_port, copy.source_ports
        )?;
    } else if state == "new" {
        writeln!(out, "  {reason}")?;
    } else if state == "sprayed" {
        writeln!(out, "  sprayed: {reason}")?;
    } else {
        writeln!(out, "  by qp-hash: {reason}")?;
        write_hash(out, copy)?;
    }
    for (number, path) in paths.iter().enumerate() {
        let ports: Vec<String> = path.source_ports.iter().map(u32::to_string).collect();
        let what = match (state.as_str(), number) {
            ("new", _) => "known path",
            ("sprayed", _) => "one path",
            ("moving", 1..) => "next path",
            _ => "path",
        };
        writeln!(out, "  {what}: port {}, {}", ports.join(" "), tiers(path))?;
    }
    Ok(())
}

/// What sends on the links of a path, tier by tier.
fn tiers(path: &v1::Path) -> String {
    let mut tiers = vec![path.uplink.clone()];
    tiers.extend(path.routers.iter().cloned());
    if !path.routers.is_empty() && path.router_count != Some(path.routers.len() as u32) {
        let routers = path.routers.join(" ");
        return format!("tier 1 {}, then {routers}, other tiers unknown", path.uplink);
    }
    if path.routers.is_empty() {
        let last = path.arrival.map(|arrival| format!("to interface {arrival} of the VTEP"));
        match path.router_count {
            Some(0) => {}
            Some(routers) => {
                tiers.resize(routers.min(255) as usize, "unknown".to_owned());
                tiers.push(last.unwrap_or_else(|| "unknown".to_owned()));
            }
            None => {
                let last = last.map_or_else(String::new, |last| format!(", last tier {last}"));
                return format!("tier 1 {}, then unknown{last}", path.uplink);
            }
        }
    }
    let tier = |(number, sender)| format!("tier {number} {sender}");
    (1..).zip(&tiers).map(tier).collect::<Vec<_>>().join(", ")
}

fn write_route(out: &mut impl Write, copy: &v1::Copy, route: &v1::CopyRoute) -> io::Result<()> {
    let mac = route.destination_mac.as_deref().unwrap_or("not resolved yet: it waits");
    if copy.placement.as_ref().is_some_and(|placement| placement.state == "sprayed") {
        write!(out, "what is not sprayed ")?;
    }
    write!(out, "leaves by {}, gateway {} ({mac}), ", route.uplink, route.gateway)?;
    match route.choices {
        1 => writeln!(out, "the only next hop")?,
        choices if copy.placement.as_ref().is_some_and(is_placed) => {
            writeln!(out, "one of {choices} next hops, by its place")?;
        }
        choices => {
            write!(out, "one of {choices} next hops by path hash {}", route.path_hash)?;
            if let Some(bucket) = route.bucket {
                write!(
                    out,
                    " (bucket {bucket} of 1024; weight {} of {})",
                    route.weight, route.weights
                )?;
            }
            writeln!(out)?;
        }
    }
    if route.default_route {
        writeln!(out, "  nothing better than the default route leads there")?;
    }
    write_outer(out, copy, route)
}

/// Writes the outer headers.
fn write_outer(out: &mut impl Write, copy: &v1::Copy, route: &v1::CopyRoute) -> io::Result<()> {
    let v1::CopyRoute { local, destination_port, tos, ttl, length, .. } = route;
    let v1::Copy { vtep, source_port, .. } = copy;
    if local.contains(':') {
        let label = route.flow_label.unwrap_or(0);
        return writeln!(
            out,
            "  [{local}]:{source_port} > [{vtep}]:{destination_port}, traffic class {tos:#04x}, flow label {label:#07x}, hop limit {ttl}, {length} bytes of IPv6"
        );
    }
    let df = if route.dont_fragment { "DF" } else { "no DF" };
    writeln!(
        out,
        "  {local}:{source_port} > {vtep}:{destination_port}, ToS {tos:#04x}, TTL {ttl}, {df}, {length} bytes of IPv4"
    )
}

/// Writes what happens to a packet from the underlay.
///
/// # Errors
/// When the output cannot be written.
pub(crate) fn received(
    out: &mut impl Write,
    explanation: &v1::ReceivedExplanation,
) -> io::Result<()> {
    if let (Some(vtep), Some(local), Some(port)) =
        (&explanation.vtep, &explanation.local, explanation.destination_port)
    {
        write!(out, "From VTEP {vtep} ")?;
        if explanation.netdev.is_some() && !explanation.known_vtep {
            write!(out, "(which no table names) ")?;
        }
        writeln!(out, "to {local}:{port}")?;
    }
    if let Some(vni) = explanation.vni {
        let netdev =
            explanation.netdev.as_deref().unwrap_or("not taken over with that address and port");
        writeln!(out, "VNI {vni} ({netdev})")?;
    }
    if let (Some(source), Some(destination)) = (&explanation.source, &explanation.destination) {
        write!(out, "Inner frame from {source} to {destination}")?;
        match (explanation.learning.as_deref(), &explanation.previous_vtep) {
            (Some("new"), _) => write!(out, "; the source is new, and is to be learned")?,
            (Some("moved"), Some(before)) => {
                write!(out, "; the source was behind {before}, and is to be moved")?
            }
            (Some("known"), _) => write!(out, "; the source is known there")?,
            (Some("static"), _) => write!(out, "; the source has a static entry there")?,
            _ => {}
        }
        writeln!(out)?;
    }
    match (explanation.fate.as_str(), &explanation.netdev, &explanation.reason) {
        ("bridge" | "host", Some(netdev), _) => {
            match &explanation.port {
                Some(port) => write!(out, "Decapsulated, to host port {port} past the bridge")?,
                None => write!(out, "Decapsulated, into {netdev} and its bridge")?,
            }
            if let Some(ecn) = &explanation.ecn {
                write!(out, "; ECN becomes {ecn}")?;
            }
            writeln!(out)
        }
        ("kernel", _, Some(reason)) => {
            writeln!(out, "Left to the kernel, {}: {}", reason.reason, reason.sentence)
        }
        (_, _, Some(reason)) => write_drop(out, reason),
        (fate, ..) => writeln!(out, "{fate}"),
    }
}

fn write_drop(out: &mut impl Write, drop: &v1::Drop) -> io::Result<()> {
    writeln!(out, "dropped, {}: {}", drop.reason, drop.sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_headers_are_those_of_the_underlay() {
        let shown = |local: &str, vtep: &str| {
            let copy =
                v1::Copy { vtep: vtep.to_owned(), source_port: 50_000, ..v1::Copy::default() };
            let route = v1::CopyRoute {
                local: local.to_owned(),
                destination_port: 4789,
                ttl: 64,
                length: 140,
                flow_label: Some(50_000),
                ..v1::CopyRoute::default()
            };
            let mut out = Vec::new();
            write_outer(&mut out, &copy, &route).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            shown("10.0.0.1", "10.0.0.2"),
            "  10.0.0.1:50000 > 10.0.0.2:4789, ToS 0x00, TTL 64, no DF, 140 bytes of IPv4\n"
        );
        assert_eq!(
            shown("fd00::1", "fd00::2"),
            "  [fd00::1]:50000 > [fd00::2]:4789, traffic class 0x00, flow label 0x0c350, hop limit 64, 140 bytes of IPv6\n"
        );
    }

    fn path(uplink: &str, routers: &[&str], arrival: Option<u32>) -> v1::Path {
        let router_count = (!routers.is_empty()).then_some(routers.len() as u32);
        let routers = routers.iter().map(|&router| router.to_owned()).collect();
        let source_ports = vec![50_001];
        v1::Path {
            uplink: uplink.to_owned(),
            routers,
            router_count,
            arrival,
            source_ports,
            ..v1::Path::default()
        }
    }

    /// The lines about a copy, behind the policy.
    fn said(state: &str, paths: Vec<v1::Path>) -> Vec<String> {
        let route = v1::CopyRoute {
            uplink: "up2".to_owned(),
            choices: 2,
            path_hash: "0xabc".to_owned(),
            ..v1::CopyRoute::default()
        };
        let reason = "BECAUSE".to_owned();
        let copy = v1::Copy {
            hash: "0x123".to_owned(),
            source_port: 50_001,
            route: Some(route),
            placement: Some(v1::Placement { state: state.to_owned(), reason, paths }),
            ..v1::Copy::default()
        };
        let mut out = Vec::new();
        let explanation = v1::Explanation { copies: vec![copy], ..v1::Explanation::default() };
        write(&mut out, &explanation).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().skip(4).map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn a_placed_queue_pair_has_a_path_and_no_hash() {
        let lines = said("pinned", vec![path("up2", &["10.9.0.1", "10.2.1.0"], None)]);
        assert!(lines[0].starts_with("placed by qp-pin on outer source port 50001"), "{lines:?}");
        assert_eq!(lines[1], "path: port 50001, tier 1 up2, tier 2 10.9.0.1, tier 3 10.2.1.0");
        assert!(!lines.concat().contains("hash"), "{lines:?}");
    }

    #[test]
    fn what_is_not_known_of_a_path_is_called_unknown() {
        let blind = v1::Path { router_count: Some(2), ..path("up1", &[], Some(4)) };
        let lines = said("moving", vec![blind, path("up2", &[], None)]);
        let (blind, uplink) = (
            "path: port 50001, tier 1 up1, tier 2 unknown, tier 3 to interface 4 of the VTEP",
            "next path: port 50001, tier 1 up2, then unknown",
        );
        assert_eq!(lines[1..3], [blind, uplink]);
        let unlike = path("up1", &[], Some(4));
        assert_eq!(
            tiers(&unlike),
            "tier 1 up1, then unknown, last tier to interface 4 of the VTEP"
        );
        let traced = v1::Path { router_count: Some(3), ..path("up1", &["10.9.0.1"], None) };
        assert_eq!(tiers(&traced), "tier 1 up1, then 10.9.0.1, other tiers unknown");
        let direct = v1::Path { router_count: Some(1), ..unlike };
        assert_eq!(tiers(&direct), "tier 1 up1, tier 2 to interface 4 of the VTEP");
    }

    #[test]
    fn a_new_queue_pair_has_no_port_yet_and_a_hashed_one_says_why() {
        let lines = said("new", vec![path("up1", &["10.2.1.0"], None), path("up2", &[], None)]);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(lines[0..2], ["BECAUSE", "known path: port 50001, tier 1 up1, tier 2 10.2.1.0"]);
        let lines = said("sprayed", vec![path("up1", &[], None), path("up2", &[], None)]);
        assert!(lines[0].starts_with("sprayed: "), "{lines:?}");
        assert!(lines[1].starts_with("one path: port ") && lines[2].contains("up2"), "{lines:?}");
        assert!(lines[3].starts_with("what is not sprayed leaves by up2, "), "{lines:?}");
        assert!(lines[3].ends_with("next hops, by its place"), "{lines:?}");
        let lines = said("hashed", Vec::new());
        assert_eq!(lines[0], "by qp-hash: BECAUSE");
        assert!(lines[1].starts_with("hash 0x123 gives outer source port 50001"), "{lines:?}");
        assert!(lines[2].ends_with("next hops by path hash 0xabc"), "{lines:?}");
    }
}
