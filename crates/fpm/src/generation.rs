//! Which generation of zebra is on the other end; FPM itself does not say.

use netlink::Message;

/// What the messages so far prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Generation {
    /// Nothing yet.
    #[default]
    Unknown,
    /// FRR before 9.0. Releases before 8.4.7 and 8.5.7 crash when FPM connects while a remote
    /// router MAC is known.
    BeforeFrr9,
    /// FRR 9.0 or later.
    Frr9OrLater,
}

/// Learns about a zebra from its messages. One per connection: the next one may come from another
/// zebra.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZebraTraits {
    generation: Generation,
}

impl ZebraTraits {
    /// Takes a message of the connection.
    pub fn observe(&mut self, message: &Message) {
        // Each MAC comes with its VNI from 9.0 on. Nothing else differs reliably: 8.4 too sets
        // NLM_F_REPLACE on routes.
        if let Message::Fdb(_, entry) = message {
            self.generation = match entry.source_vni {
                Some(_) => Generation::Frr9OrLater,
                None => Generation::BeforeFrr9,
            };
        }
    }

    /// What is known so far.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }
}
