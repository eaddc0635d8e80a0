//! Encapsulate and decapsulate batches of frames against a snapshot: no I/O, no async.
