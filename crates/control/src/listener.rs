//! Where zebra's FPM client is expected, and whose connections are refused.

use std::net::SocketAddr;

/// So many entries of zebra's are kept; a full table of the Internet has about 1,200,000.
const FPM_ENTRIES: usize = 4_000_000;

/// Where zebra's FPM client is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FpmListener {
    /// The address; `None` is nowhere.
    pub address: Option<SocketAddr>,
    /// Whether to listen even where zebra may crash when it connects ([`State::router_mac`]).
    pub accept_hazard: bool,
    /// Who may connect.
    pub users: fpm::Users,
    /// When zebra tells of more entries than this, all of them are forgotten, and FPM is not
    /// listened for any more.
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

/// An FPM connection was refused, as a sentence.
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
