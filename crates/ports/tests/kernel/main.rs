//! `ports` with the running kernel, in network namespaces.

#![cfg(test)]

mod ring;

root_test::main!();
