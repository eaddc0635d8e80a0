//! `lab` with namespaces and links.

#![cfg(test)]

mod allreduce;
mod command_line;
mod fabric;
mod names;
mod planned;
mod roce;
mod super_frames;
mod wan;
mod wan_faults;
mod workload;

root_test::main!();
