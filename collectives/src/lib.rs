#![doc = include_str!("../README.md")]

mod algorithm;
mod auth;
mod call;
mod chunks;
mod communicator;
mod element;
mod engine;
mod error;
mod frame;
mod group;
mod handle;
pub mod launch;
mod op;
mod options;
mod rendezvous;
mod transport;
mod tree_order;
mod worker;

pub use auth::Secret;
pub use communicator::{Communicator, threads, threads_with};
pub use element::Element;
pub use error::{Error, Result};
pub use handle::Handle;
pub use op::ReduceOp;
pub use options::{Backend, Options, StartHook};
pub use rendezvous::connect;
pub use tree_order::{TreeNode, TreeSum, cover};
