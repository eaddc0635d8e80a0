//! vtepd in labs that were not built for it: it starts, takes over, reports what it has taken over,
//! and stops. Traffic continues.

mod default_route;
mod hosts;
mod management;
mod without_frr;
