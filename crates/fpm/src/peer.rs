//! The local users that may send routes. The kernel reports the owner of the socket at the other
//! end of a local connection ([`netlink::socket_owner`]).

use std::collections::BTreeSet;

/// User ids below this one belong to system services (login.defs(5), `SYS_UID_MAX`).
const FIRST_LOGIN: u32 = 1000;

/// The users whose processes may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Users {
    /// These users. They displace a client of any other user.
    pub named: BTreeSet<u32>,
    /// Users of system services, 1 to 999. If FRR runs in another container, its user has no name
    /// here.
    pub services: bool,
    /// All other users, also on other hosts.
    pub anybody: bool,
}

/// The trust in a peer. A higher rank displaces a lower one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// The settings permit the user without naming it.
    Other,
    /// The settings name the user.
    Named,
}

impl Default for Users {
    /// Root and the users of system services.
    fn default() -> Self {
        Self { named: BTreeSet::from([0]), services: true, anybody: false }
    }
}

impl Users {
    /// The rank of a peer of this user; `None` if it may not connect. The user is unknown if the
    /// peer is on another host or in another network namespace.
    pub(crate) fn rank(&self, uid: Option<u32>) -> Option<Rank> {
        if uid.is_some_and(|uid| self.named.contains(&uid)) {
            return Some(Rank::Named);
        }
        let service = self.services && uid.is_some_and(|uid| (1..FIRST_LOGIN).contains(&uid));
        (service || self.anybody).then_some(Rank::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_logins_and_nobody_are_refused() {
        use Rank::{Named, Other};

        let users = Users::default();
        for (uid, rank) in
            [(0, Some(Named)), (92, Some(Other)), (999, Some(Other)), (1000, None), (65534, None)]
        {
            assert_eq!(users.rank(Some(uid)), rank, "{uid}");
        }
        assert_eq!(users.rank(None), None);
        let strict = Users { services: false, ..Users::default() };
        assert_eq!(strict.rank(Some(92)), None);
        let anybody = Users { anybody: true, ..strict };
        assert_eq!(
            [None, Some(92), Some(0)].map(|uid| anybody.rank(uid)),
            [Some(Other), Some(Other), Some(Named)]
        );
        assert!(Named > Other);
    }
}
