//! What the stories share.
