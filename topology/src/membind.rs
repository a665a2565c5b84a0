//! Memory on the nodes of a plan.
//!
//! The policy calls are often denied inside containers. Memory then goes where the thread runs that touches it first,
//! which for pinned threads is the same place in nearly all cases; the outcome says so in one line.

use std::fmt;

use crate::cpuset::{NodeId, NodeSet};
use crate::sys;

/// What became of a wish to bind memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binding {
    /// The kernel confirms the policy: memory comes from these nodes.
    Bound(NodeSet),
    /// There was nothing to bind to; the thread that touches a page first decides.
    FirstTouch,
    /// The system refused; the thread that touches a page first decides.
    Refused {
        /// The nodes that were asked for.
        asked: NodeSet,
        /// What the system said, or what it reports instead.
        reason: String,
    },
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Binding::Bound(nodes) => write!(f, "memory bound to node {nodes}"),
            Binding::FirstTouch => write!(f, "memory where it is touched first"),
            Binding::Refused { asked, reason } => {
                write!(
                    f,
                    "memory could not be bound to node {asked} ({reason}); it goes where it is touched first"
                )
            }
        }
    }
}

/// Makes the calling thread, and the threads it starts from now on, take new memory from `nodes`, and reads the policy
/// back.
pub fn bind_current_thread(nodes: &NodeSet) -> Binding {
    if nodes.is_empty() {
        return Binding::FirstTouch;
    }
    let refused = |reason: String| Binding::Refused {
        asked: nodes.clone(),
        reason,
    };
    if let Err(error) = sys::bind_thread_memory(nodes) {
        return refused(error.to_string());
    }
    match sys::thread_memory() {
        Ok(actual) if actual == *nodes => Binding::Bound(actual),
        Ok(actual) => refused(format!("the kernel reports node {actual:#}")),
        Err(error) => refused(error.to_string()),
    }
}

/// Binds the pages of a range of memory that are not there yet to `nodes`. The range must begin on a page.
pub fn bind_range(memory: &mut [u8], nodes: &NodeSet) -> Binding {
    if nodes.is_empty() {
        return Binding::FirstTouch;
    }
    match sys::bind_memory(memory, nodes) {
        Ok(()) => Binding::Bound(nodes.clone()),
        Err(error) => Binding::Refused {
            asked: nodes.clone(),
            reason: error.to_string(),
        },
    }
}

/// The node of the page that holds the first byte; `None` where the system does not tell or the page is not there.
pub fn node_of(memory: &[u8]) -> Option<NodeId> {
    sys::node_of(memory.first()?)
}
