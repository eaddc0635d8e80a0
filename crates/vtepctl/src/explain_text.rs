//! The text output of `vtepctl explain`.

use std::io::{self, Write};

use api::v1;

/// Writes an explanation, with a paragraph for each copy.
///
/// # Errors
/// When the output cannot be written.
pub fn write(out: &mut impl Write, explanation: &v1::Explanation) -> io::Result<()> {
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
        write!(out, "  hash {} ", copy.hash)?;
        if let Some(bin) = copy.bin {
            write!(out, "is bin {bin}, ")?;
        }
        writeln!(out, "gives outer source port {} of {}", copy.source_port, copy.source_ports)?;
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
    write!(out, "  hash {} ", copy.hash)?;
    if let Some(bin) = copy.bin {
        write!(out, "is bin {bin}, ")?;
    }
    writeln!(out, "gives outer source port {} of {}", copy.source_port, copy.source_ports)
}

fn write_route(out: &mut impl Write, copy: &v1::Copy, route: &v1::CopyRoute) -> io::Result<()> {
    let mac = route.destination_mac.as_deref().unwrap_or("not resolved yet: it waits");
    write!(out, "leaves by {}, gateway {} ({mac}), ", route.uplink, route.gateway)?;
    match route.choices {
        1 => writeln!(out, "the only next hop")?,
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
    writeln!(
        out,
        "  {}:{} > {}:{}, ToS {:#04x}, TTL {}, {}, {} bytes of IPv4",
        route.local,
        copy.source_port,
        copy.vtep,
        route.destination_port,
        route.tos,
        route.ttl,
        if route.dont_fragment { "DF" } else { "no DF" },
        route.length
    )
}

/// Writes what happens to a packet from the underlay.
///
/// # Errors
/// When the output cannot be written.
pub fn received(out: &mut impl Write, explanation: &v1::ReceivedExplanation) -> io::Result<()> {
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
