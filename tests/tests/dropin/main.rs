//! vtepd in other people's labs: it is added, everything goes on, it says what it has taken over,
//! and it goes.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

mod default_route;
mod hosts;
mod management;
mod strangers;
