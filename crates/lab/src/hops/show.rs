//! A path as text.

use std::fmt;
use std::net::IpAddr;

use super::{Candidate, Hop, Hops};
use api::v1;

impl fmt::Display for Hops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, vni, hops, paths, .. } = self;
        writeln!(f, "{from} to {to}, VNI {vni}")?;
        let decision = self.decision.as_ref().map(|decision| format!(", {decision}"));
        let decision = decision.unwrap_or_default();
        if !self.placed {
            writeln!(f, "not placed yet: one of {} paths{decision}", paths.len())?;
        }
        let counts = || paths.iter().filter_map(|path| path.sprayed.as_ref());
        let sent: u64 = counts().map(|path| path.sent).sum();
        if self.sprayed {
            writeln!(f, "sprayed over {} paths{decision}: {sent} packets so far", paths.len())?;
        }
        for Candidate { outer_port, sprayed, hops } in paths {
            writeln!(f)?;
            if let Some(v1::SprayedPath { sent: own, marked, lost, .. }) = sprayed {
                let share = *own as f64 * 100.0 / sent.max(1) as f64;
                writeln!(f, "  {share:.1} % of them, {marked} with ECN marks, {lost} lost")?;
            }
            self.write(f, hops, Some(*outer_port), "")?;
        }
        self.write(f, hops, self.outer_port, &decision)?;
        match &self.reverse {
            Some(back) => write!(f, "\nback: {back}"),
            None => Ok(()),
        }
    }
}

impl Hops {
    /// Writes the routers of a path, and the outer headers behind the first.
    fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        hops: &[Hop],
        outer_port: Option<u32>,
        decision: &str,
    ) -> fmt::Result {
        let Self { local, vtep, udp_port, .. } = self;
        let width = hops.iter().map(|hop| hop.node.len()).max().unwrap_or_default();
        for (index, Hop { node, arrives, leaves, gateway, circuit }) in hops.iter().enumerate() {
            write!(f, "  {node:width$}  {arrives} to {leaves}")?;
            if let Some(gateway) = gateway {
                write!(f, ", next hop {gateway}")?;
            }
            if let Some(circuit) = circuit {
                write!(f, ", circuit {circuit}")?;
            }
            if let (0, Some(port)) = (index, outer_port) {
                let source = with_port(local, port);
                let vtep = with_port(vtep, *udp_port);
                write!(f, "\n  {:width$}  {source} > {vtep}{decision}", "")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// An address with a UDP port; an IPv6 address in brackets.
fn with_port(address: &IpAddr, port: impl fmt::Display) -> String {
    match address {
        IpAddr::V4(address) => format!("{address}:{port}"),
        IpAddr::V6(address) => format!("[{address}]:{port}"),
    }
}
