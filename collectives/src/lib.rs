#![doc = include_str!("../README.md")]

mod algorithm;
mod auth;
mod call;
mod chunks;
mod communicator;
mod element;
mod error;
mod frame;
mod handle;
pub mod launch;
mod op;
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
pub use rendezvous::connect;
pub use tree_order::{TreeNode, TreeSum, cover};
pub use worker::{Backend, Options, StartHook};
