//! Detects the release of FRR that zebra belongs to, which FPM does not announce.

use netlink::Message;

/// The release, as far as the messages prove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Generation {
    /// Not known yet.
    #[default]
    Unknown,
    /// FRR before 9.0. Releases before 8.4.7 and 8.5.7 crash when FPM connects while a remote
    /// router MAC is known.
    BeforeFrr9,
    /// FRR 9.0 or later.
    Frr9OrLater,
}

/// Derives properties of a zebra from its messages. Each connection needs a new value, because it
/// may come from another zebra.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZebraTraits {
    generation: Generation,
}

impl ZebraTraits {
    /// Evaluates a message of the connection.
    pub fn observe(&mut self, message: &Message) {
        // Since FRR 9.0, each MAC address comes with its VNI. No other difference is reliable: 8.4
        // also sets NLM_F_REPLACE on routes.
        if let Message::Fdb(_, entry) = message {
            self.generation = match entry.source_vni {
                Some(_) => Generation::Frr9OrLater,
                None => Generation::BeforeFrr9,
            };
        }
    }

    /// The release, as far as it is known.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }
}
