//! The FPM server's address, and the clients that it accepts.

use std::net::SocketAddr;

/// Number of zebra's entries that are kept. A full Internet table has about 1,200,000.
const FPM_ENTRIES: usize = 4_000_000;

/// The settings of the FPM server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FpmListener {
    /// The address; `None`: no server.
    pub address: Option<SocketAddr>,
    /// Whether to listen even if zebra may crash when it connects ([`crate::state::State::router_mac`]).
    pub accept_hazard: bool,
    /// The users that may connect.
    pub users: fpm::Users,
    /// If zebra reports more entries than this, all of them are removed, and the server stops
    /// listening.
    pub most_entries: usize,
}

impl Default for FpmListener {
    fn default() -> Self {
        Self {
            address: None,
            accept_hazard: false,
            users: fpm::Users::default(),
            most_entries: FPM_ENTRIES,
        }
    }
}

/// The sentence about an FPM connection that was refused.
pub(crate) fn refused(peer: SocketAddr, uid: Option<u32>) -> String {
    let user = match uid {
        Some(uid) => format!("user {uid} may not connect"),
        None => {
            "its user is unknown: the socket is closed, or not in this network namespace".to_owned()
        }
    };
    format!(
        "the FPM connection from {peer} was refused: {user} (fpm.users in the configuration says who may)"
    )
}
