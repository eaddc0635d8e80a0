//! vtepd on the leaves of the ScaleAcross fabric with FRR: two data centres, six leaves, EVPN.
//!
//! Each test starts the fabric under a name of its own and deletes it at the end. leaf1, leaf4 and
//! leaf5 offer FPM, the others do not.

mod deployed;
mod dump;
mod experiment;
mod failures;
mod failures_at_times;
mod fixture;
mod graceful;
mod guides;
mod hazard;
mod hosts;
mod lab_command;
mod live_links;
mod mobility;
mod new_fabric;
mod other_lab;
mod other_overlay;
mod placement;
mod program;
mod reach;
mod report;
mod restarts;
mod shared_tier;
mod sources;
mod sprayed;
mod stream;
mod stuck_route;
mod tables;
mod topologies;
mod troubleshooting;
mod web;
