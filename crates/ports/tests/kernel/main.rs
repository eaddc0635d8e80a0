//! `ports` with the running kernel, in network namespaces.

#![cfg(test)]

mod queue_pair_counter;
mod ring;
mod tap;

root_test::main!();
