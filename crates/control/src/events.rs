//! Events, for users who watch what happens. The control task writes them into a [`Journal`].

pub(crate) mod diff;
mod event;
mod journal;
mod text;

pub use event::Event;
pub use journal::{CAPACITY, Journal, Read, Reader, Stamped};

pub use crate::stores::overlay::MacChange;
