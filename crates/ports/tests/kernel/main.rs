//! `ports` with the running kernel, in network namespaces.

#![cfg(test)]

mod ring;
mod tap;

root_test::main!();
