//! Messages of the running kernel, in network namespaces.

#![cfg(test)]

mod discard;
mod dump;
mod leaf;
mod monitor;
mod packet_filter;
mod policies;
mod request;

root_test::main!();
