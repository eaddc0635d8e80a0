//! Namespaces and their links.

#![cfg(test)]

mod netns;
mod rtnl;

root_test::main!();
