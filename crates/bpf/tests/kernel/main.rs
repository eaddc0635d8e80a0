//! `bpf` with the running kernel, in network namespaces.

#![cfg(test)]

mod chosen_port;
mod instructions;
mod offload;
mod placed_port;
mod probe_filter;
mod random;
mod steering;

root_test::main!();
