#![doc = include_str!("../README.md")]

mod algorithm;
mod call;
mod chunks;
mod communicator;
mod element;
mod error;
mod frame;
mod handle;
mod op;
mod transport;
mod tree_order;
mod worker;

pub use communicator::{Communicator, threads, threads_with};
pub use element::Element;
pub use error::{Error, Result};
pub use handle::Handle;
pub use op::ReduceOp;
pub use tree_order::{TreeNode, TreeSum, cover};
pub use worker::{Options, StartHook};
