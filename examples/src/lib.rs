//! What the example programs of azulejo share.

pub mod demo;
