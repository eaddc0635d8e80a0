//! `worker` with the running kernel, in network namespaces.

#![cfg(test)]

mod features;

root_test::main!();
