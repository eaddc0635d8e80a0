//! `lab` with namespaces and links.

#![cfg(test)]

mod command_line;
mod fabric;
mod roce;
mod rtnl;
mod wan;

root_test::main!();
