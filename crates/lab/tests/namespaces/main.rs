//! `lab` with namespaces and links.

#![cfg(test)]

mod command_line;
mod fabric;
mod roce;
mod wan;
mod workload;

root_test::main!();
