//! `worker` with the running kernel, in network namespaces.

#![cfg(test)]

mod features;
mod longest_frame;

root_test::main!();
