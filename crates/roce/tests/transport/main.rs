//! Two endpoints and a channel between them.
#![cfg(test)]

mod channel;
mod charts;
mod congestion;
mod host;
mod place;
