//! A path as text.

use std::fmt;

use super::{Candidate, Hop, Hops, PORT_VXLAN};

impl fmt::Display for Hops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, vni, hops, paths, .. } = self;
        writeln!(f, "{from} to {to}, VNI {vni}")?;
        let decision = self.decision.as_ref().map(|decision| format!(", {decision}"));
        let decision = decision.unwrap_or_default();
        if !self.placed {
            writeln!(f, "not placed yet: one of {} paths{decision}", paths.len())?;
        }
        for Candidate { outer_port, hops } in paths {
            writeln!(f)?;
            self.write(f, hops, Some(*outer_port), "")?;
        }
        self.write(f, hops, self.outer_port, &decision)
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
        let Self { local, vtep, .. } = self;
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
                write!(f, "\n  {:width$}  {local}:{port} > {vtep}:{PORT_VXLAN}{decision}", "")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
