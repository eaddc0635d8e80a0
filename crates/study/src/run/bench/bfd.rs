//! Waits for BFD sessions. BGP establishes its sessions without them.

use std::time::Duration;

use serde::Deserialize;

use crate::error::RunError;
use fabric::node::Node;
use fabric::process::wait_until;
use fabric::progress::OnProgress;
use fabric::{Fabric, FabricError};

/// The field of `show bfd peers json` that is used.
#[derive(Deserialize)]
struct Peer {
    status: String,
}

/// Waits until all BFD sessions of the routers that run bfdd are up.
///
/// # Errors
/// [`FabricError::NotConverged`] with the routers whose sessions are not.
pub(super) fn wait(fabric: &Fabric, limit: Duration, report: OnProgress) -> Result<(), RunError> {
    let speakers = fabric.speakers()?;
    let mut interrupted = Ok(());
    let are_up = wait_until(limit, || {
        interrupted = report("waiting for BFD");
        interrupted.is_err() || speakers.iter().all(is_up)
    });
    interrupted?;
    if are_up {
        return Ok(());
    }
    let down = speakers.iter().filter(|node| !is_up(node)).map(|node| node.name());
    let missing =
        format!("BFD sessions of {} (vtysh: show bfd peers)", down.collect::<Vec<_>>().join(", "));
    Err(FabricError::NotConverged { limit, missing, forwards: false }.into())
}

/// Whether all sessions of a router are up. One without bfdd has none.
fn is_up(node: &Node) -> bool {
    let asked = || node.run(&["vtysh", "-c", "show bfd peers json"]);
    match node.enables("bfdd") {
        Ok(true) => asked().is_ok_and(|text| all_up(&text)),
        Ok(false) => true,
        Err(_) => false,
    }
}

/// Whether what vtysh prints has no session that is not up.
fn all_up(text: &str) -> bool {
    let peers: Result<Vec<Peer>, _> = serde_json::from_str(text);
    peers.is_ok_and(|peers| peers.iter().all(|peer| peer.status == "up"))
}

#[cfg(test)]
mod tests {
    use super::all_up;

    #[test]
    fn a_session_that_is_down_and_no_answer_are_not_up() {
        assert!(all_up("[]") && all_up(r#"[{"status": "up", "multihop": false}]"#));
        assert!(!all_up("") && !all_up(r#"[{"status": "up"}, {"status": "down"}]"#));
    }
}
