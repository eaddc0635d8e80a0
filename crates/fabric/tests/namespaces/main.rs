//! Namespaces, their links, and nodes in them.

#![cfg(test)]

mod containers;
mod netns;
mod rtnl;
mod settings;

root_test::main!();
