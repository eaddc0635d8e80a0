//! vtepd on the leaves of the ScaleAcross fabric, with real FRR: two data centres, six leaves,
//! ordinary EVPN.
//!
//! Each story brings the fabric up under a name of its own and takes it down again. leaf1, leaf4
//! and leaf5 offer FPM, the others do not.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

mod dump;
mod failures;
mod fixture;
mod graceful;
mod hazard;
mod hosts;
mod mobility;
mod placement;
mod reach;
mod report;
mod restarts;
mod sources;
mod stranger;
mod stream;
mod tables;
