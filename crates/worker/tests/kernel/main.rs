//! `worker` with the running kernel, in network namespaces.

#![cfg(test)]

mod features;
mod longest_frame;
mod scheduling;

root_test::main!();
