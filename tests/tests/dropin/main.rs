//! vtepd in labs that were not built for it: it starts, takes over, reports what it has taken over,
//! and stops. Traffic continues.

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
