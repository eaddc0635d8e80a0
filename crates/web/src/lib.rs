//! A live page of a fabric that is up, for a browser on the same machine.
//!
//! - [`model`]: what the caller tells about the fabric
//! - [`Server`]: the server, on the loopback interface, with a secret in its address
//!   (`door` has the bounds of its connections)
//! - [`Stage`]: what it shows, for a program whose fabrics come and go
//! - `reader`: link counters of the nodes (`interfaces`) and answers of each leaf's vtepd (`leaf`),
//!   while a page is open; `watched` counts the packets of queue pairs that pages look at;
//!   `completions` has how long operations took, which `listener` hears
//! - `slow`: links that go down and up, and what circuits lose
//! - `hub`: the state, and its changes for all pages; `patch` computes them;
//!   `history` has the last ten minutes
//! - `action`: commands that a page asks for; `jobs` runs them
//!
//! A page gets the whole state, then JSON merge patches (RFC 7396) against what it has. Each change is
//! made text once. There is no queue: a slow reader gets fewer and larger changes.

mod action;
mod completions;
mod door;
mod history;
mod hub;
mod interfaces;
mod jobs;
mod leaf;
mod listener;
mod patch;
mod reader;
mod server;
mod slow;
mod stage;
mod watched;

pub mod model;

pub use model::{Fabric, Link, Node};
pub use server::{Access, FORMAT, ServeError, Server};
pub use stage::Stage;
