//! Namespaces, their links, and nodes in them.

#![cfg(test)]

mod containers;
mod netns;
mod rtnl;
mod settings;
mod watch;

root_test::main!();
