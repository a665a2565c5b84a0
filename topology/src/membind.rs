//! Memory on the nodes of a plan.
//!
//! The policy calls are often denied inside containers. Memory then goes where the thread runs that touches it first,
//! which for pinned threads is the same place in nearly all cases; the outcome says so in one line.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use crate::cpuset::{NodeId, NodeSet};
use crate::error::Error;
use crate::sys::{self, Policy};

/// What became of a wish to bind memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binding {
    /// The kernel confirms the policy: memory comes from these nodes.
    Bound(NodeSet),
    /// The kernel confirms the policy: memory comes from these nodes as long as there is some, then from the nearest
    /// others.
    Preferred(NodeSet),
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
            Binding::Preferred(nodes) => write!(f, "memory from node {nodes} first"),
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

/// The nodes of sampled pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageNodes {
    /// Sampled pages on each node.
    pub pages: BTreeMap<NodeId, usize>,
    /// Sampled pages that nobody has touched yet.
    pub absent: usize,
}

impl PageNodes {
    /// The nodes that hold a sampled page.
    pub fn nodes(&self) -> NodeSet {
        self.pages.keys().copied().collect()
    }
}

impl fmt::Display for PageNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self
            .pages
            .iter()
            .map(|(node, pages)| format!("{pages} on node {node}"))
            .collect();
        if self.absent > 0 || parts.is_empty() {
            parts.push(format!("{} not touched", self.absent));
        }
        write!(f, "sampled pages: {}", parts.join(", "))
    }
}

/// Makes the calling thread, and the threads it starts from now on, take new memory from `nodes`, and reads the policy
/// back.
pub fn bind_current_thread(nodes: &NodeSet) -> Binding {
    place_thread(nodes, Policy::Bind)
}

/// Makes the calling thread, and the threads it starts from now on, take new memory from `nodes` as long as there is
/// some and then from the nearest others, and reads the policy back. The kernel can do so since version 5.15.
pub fn prefer_current_thread(nodes: &NodeSet) -> Binding {
    place_thread(nodes, Policy::Prefer)
}

fn place_thread(nodes: &NodeSet, policy: Policy) -> Binding {
    if nodes.is_empty() {
        return Binding::FirstTouch;
    }
    match sys::set_thread_memory(policy, nodes).and_then(|()| sys::thread_memory()) {
        Ok(actual) => confirmed(nodes, policy, actual),
        Err(error) => refused(nodes, &error),
    }
}

/// Lets the calling thread's memory come from where it is touched first again, which is what the system does by itself.
/// Returns whether the system allowed it.
pub fn unbind_current_thread() -> bool {
    sys::set_thread_memory(Policy::Default, &NodeSet::new()).is_ok()
}

/// Binds the whole pages of a range of memory that are not there yet to `nodes`, and reads the policy back.
pub fn bind_range(memory: &mut [u8], nodes: &NodeSet) -> Binding {
    place_range(memory, nodes, false)
}

/// Binds the whole pages of a range of memory to `nodes`, moves those that lie elsewhere, and reads the policy back.
/// Where a page could not be moved, the outcome is a refusal, though the others have moved.
pub fn move_range(memory: &mut [u8], nodes: &NodeSet) -> Binding {
    place_range(memory, nodes, true)
}

fn place_range(memory: &mut [u8], nodes: &NodeSet, move_all: bool) -> Binding {
    if nodes.is_empty() {
        return Binding::FirstTouch;
    }
    let page = sys::page_size();
    let before = memory.as_ptr().align_offset(page).min(memory.len());
    let whole = (memory.len() - before) / page * page;
    let inner = &mut memory[before..before + whole];
    if inner.is_empty() {
        return Binding::Refused {
            asked: nodes.clone(),
            reason: format!("the range holds no whole page of {page} bytes"),
        };
    }
    match sys::bind_memory(inner, nodes, move_all).and_then(|()| sys::memory_policy(inner)) {
        Ok(actual) => confirmed(nodes, Policy::Bind, actual),
        Err(error) => refused(nodes, &error),
    }
}

/// Moves all pages of this process that lie on `from` to `to`; the number of pages that could not be moved.
pub fn migrate_process(from: &NodeSet, to: &NodeSet) -> Result<usize, Error> {
    sys::migrate(from, to).map_err(|source| Error::System {
        call: "migrate_pages",
        source,
    })
}

/// The nodes of up to `samples` pages, evenly spread over the range.
pub fn sample_pages(memory: &[u8], samples: usize) -> Result<PageNodes, Error> {
    let step = (memory.len().div_ceil(samples.max(1))).max(sys::page_size());
    let found = sys::nodes_of(memory.iter().step_by(step)).map_err(|source| Error::System {
        call: "move_pages",
        source,
    })?;
    let mut pages = PageNodes::default();
    for node in found {
        match node {
            Some(node) => *pages.pages.entry(node).or_default() += 1,
            None => pages.absent += 1,
        }
    }
    Ok(pages)
}

/// The node of the page that holds the first byte; `None` where the system does not tell or the page is not there.
pub fn node_of(memory: &[u8]) -> Option<NodeId> {
    sys::nodes_of(memory.first().into_iter()).ok()?.into_iter().next()?
}

/// What the kernel reports, against what was asked for.
fn confirmed(asked: &NodeSet, policy: Policy, (mode, actual): (i32, NodeSet)) -> Binding {
    if (mode, &actual) != (policy as i32, asked) {
        let reason = if mode == policy as i32 {
            format!("the kernel reports node {actual:#}")
        } else {
            format!("the kernel reports policy {mode} on node {actual:#}")
        };
        return Binding::Refused {
            asked: asked.clone(),
            reason,
        };
    }
    match policy {
        Policy::Bind => Binding::Bound(actual),
        Policy::Prefer => Binding::Preferred(actual),
        Policy::Default => Binding::FirstTouch,
    }
}

fn refused(asked: &NodeSet, error: &io::Error) -> Binding {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => "; containers often deny it",
        io::ErrorKind::InvalidInput => "; no such node here, or a kernel too old",
        _ => "",
    };
    Binding::Refused {
        asked: asked.clone(),
        reason: format!("{error}{why}"),
    }
}
