//! Namespaces and their links.

#![cfg(test)]

mod rtnl;

root_test::main!();
