//! Which generation of zebra is on the other end; FPM itself does not say.

use netlink::{Message, Operation};

/// What the messages so far prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Generation {
    /// Nothing yet.
    #[default]
    Unknown,
    /// FRR before 9.0. Releases before 8.4.7 and 8.5.7 crash when FPM connects while a remote router MAC is known.
    BeforeFrr9,
    /// FRR 9.0 or later.
    Frr9OrLater,
}

/// Learns about a zebra from its messages. One per connection: the next one may come from another zebra.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZebraTraits {
    generation: Generation,
}

impl ZebraTraits {
    /// Takes a message of the connection.
    pub fn observe(&mut self, message: &Message) {
        match message {
            // From 9.0 on each MAC comes with its VNI.
            Message::Fdb(_, entry) if entry.source_vni.is_some() => self.generation = Generation::Frr9OrLater,
            Message::Fdb(..) => self.generation = Generation::BeforeFrr9,
            // From 9.1 on updates replace (unless switched off); before, zebra deletes and adds.
            Message::Route(Operation::New, route) if route.replace => {
                self.generation = Generation::Frr9OrLater;
            }
            _ => {}
        }
    }

    /// What is known so far.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }
}
