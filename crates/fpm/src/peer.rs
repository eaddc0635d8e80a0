//! The local users that may send routes. The kernel reports the owner of the socket at the other
//! end of a local connection ([`netlink::socket_owner`]).

use std::collections::BTreeSet;

/// The users whose processes may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Users {
    /// These users. They displace a client of any other user.
    pub named: BTreeSet<u32>,
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
    /// Root alone.
    fn default() -> Self {
        Self { named: BTreeSet::from([0]), anybody: false }
    }
}

impl Users {
    /// The rank of a peer of this user; `None` if it may not connect. The user is unknown if the
    /// peer is on another host or in another network namespace.
    pub(crate) fn rank(&self, uid: Option<u32>) -> Option<Rank> {
        if uid.is_some_and(|uid| self.named.contains(&uid)) {
            return Some(Rank::Named);
        }
        self.anybody.then_some(Rank::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_without_a_name_in_the_settings_are_refused() {
        use Rank::{Named, Other};

        let users = Users { named: [0, 92].into(), ..Users::default() };
        let ranks = [0, 92, 33, 999, 1000, 65534].map(|uid| users.rank(Some(uid)));
        assert_eq!(ranks, [Some(Named), Some(Named), None, None, None, None]);
        assert_eq!((users.rank(None), Users::default().rank(Some(92))), (None, None));
        let anybody = Users { anybody: true, ..Users::default() };
        assert_eq!(
            [None, Some(92), Some(0)].map(|uid| anybody.rank(uid)),
            [Some(Other), Some(Other), Some(Named)]
        );
        assert!(Named > Other);
    }
}
