//! Namespaces and their links.

#![cfg(test)]

mod netns;
mod rtnl;
mod settings;

root_test::main!();
