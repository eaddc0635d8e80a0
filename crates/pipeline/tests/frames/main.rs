//! Frames through the pipeline.
#![cfg(test)]

mod accounting;
mod aggregate;
mod allocation;
mod bridge;
mod burst;
mod common;
mod decapsulate;
mod encapsulate;
mod flows;
mod hosts;
mod ipv6_underlay;
mod learn;
mod offloads;
mod policies;
mod sprayed;
