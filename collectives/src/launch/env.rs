//! The variables of launchers, read here and nowhere else.

use std::path::PathBuf;
use std::str::FromStr;

use super::{LARGEST_WORLD, Launch, Meeting, NodeShare, Role};
use crate::auth::Secret;
use crate::error::{Error, Result};

/// Set by this crate's launcher: where the ranks of one machine meet.
pub(super) const MEETING_FILE: &str = "AZULEJO_MEETING_FILE";
/// The job's secret.
pub(super) const SECRET: &str = "AZULEJO_SECRET";
/// A file with the job's secret.
pub(super) const SECRET_FILE: &str = "AZULEJO_SECRET_FILE";
/// Set by this crate's launcher: this rank among all on the machine, and their number.
pub(super) const MACHINE_RANK: &str = "AZULEJO_MACHINE_RANK";
pub(super) const MACHINE_SIZE: &str = "AZULEJO_MACHINE_SIZE";
/// Set by this crate's launcher: its process number; its child ends when it does.
pub(super) const LAUNCHER: &str = "AZULEJO_LAUNCHER";
/// Set by this crate's launcher over ssh: standard input brings the secret, then signals, then the launcher's end.
pub(super) const LIFELINE: &str = "AZULEJO_LIFELINE";

/// Variables that describe a rank; a launcher takes them out of its children's environment before it sets its own.
pub(super) const DESCRIBING: [&str; 24] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PET_NODE_RANK",
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "PMIX_RANK",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_ID",
    MACHINE_RANK,
    MACHINE_SIZE,
];

/// torchrun's own default.
const DEFAULT_PORT: u16 = 29500;

/// What the environment says that this process shall do.
///
/// A process that this crate's launcher has started is tied to it here: it ends when the launcher does. Call this
/// first, on the main thread.
pub fn detect() -> Result<Role> {
    let variable = |name: &str| std::env::var(name).ok();
    let lifeline = super::ssh::take_lifeline(&variable)?;
    super::local::tie_to_launcher(&variable)?;
    detect_in(&|name| {
        if name == SECRET && lifeline.is_some() {
            lifeline.clone()
        } else {
            variable(name)
        }
    })
}

/// [`detect`] over any set of variables; nothing but the secret's file is touched.
pub fn detect_in(variable: &dyn Fn(&str) -> Option<String>) -> Result<Role> {
    let env = Env { variable };
    let torch = env.torch()?;
    let mpi = env.mpi()?;
    if let (Some(torch), Some(mpi)) = (&torch, &mpi)
        && (torch.rank, torch.world) != (mpi.rank, mpi.world)
    {
        let reason = format!(
            "{} says rank {} of {}, {} says rank {} of {}: which is meant?",
            torch.source, torch.rank, torch.world, mpi.source, mpi.rank, mpi.world
        );
        return Err(Error::Variable {
            name: "RANK".into(),
            reason,
        });
    }
    // A PyTorchJob sets RANK per replica; with several processes per replica and no torchrun in between, this
    // process stands for the replica and has to start them.
    if let Some(share) = env.node()?
        && env.text("LOCAL_RANK").is_none()
        && mpi.is_none()
    {
        if share.ranks_per_node > 1 {
            return Ok(Role::Node(share));
        }
        let found = Found {
            rank: share.node,
            world: share.nodes,
            local: Some((0, 1)),
            source: "PET_NODE_RANK",
        };
        return env.launch(found);
    }
    match torch.or(mpi).map_or_else(|| env.slurm(), |found| Ok(Some(found)))? {
        Some(found) => env.launch(found),
        None => Ok(Role::Unassigned),
    }
}

struct Env<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
}

struct Found {
    rank: usize,
    world: usize,
    /// Rank on the node and number of ranks there, where the source says so.
    local: Option<(usize, usize)>,
    source: &'static str,
}

impl Env<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name)
            .map(|text| text.trim().to_string())
            .filter(|text| !text.is_empty())
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let parsed = text.parse().ok();
        let reason = || format!("expected a number, got {text:?}");
        parsed.map(Some).ok_or_else(|| Error::Variable {
            name: name.into(),
            reason: reason(),
        })
    }

    /// Rank and world from two variables of which both or none must be set, and the local ones where they are.
    fn found(&self, names: [&'static str; 4]) -> Result<Option<Found>> {
        let [rank_name, world_name, local_name, size_name] = names;
        let (rank, world) = match (self.number(rank_name)?, self.number(world_name)?) {
            (Some(rank), Some(world)) => (rank, world),
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(missing(world_name, rank_name)),
            (None, Some(_)) => return Err(missing(rank_name, world_name)),
        };
        if world > LARGEST_WORLD {
            let reason = format!("a world of {world} ranks, at most {LARGEST_WORLD} are possible");
            return Err(Error::Variable {
                name: world_name.into(),
                reason,
            });
        }
        if rank >= world {
            let reason = format!("rank {rank} is no rank of a world of {world} ({world_name})");
            return Err(Error::Variable {
                name: rank_name.into(),
                reason,
            });
        }
        let local = match (self.number(local_name)?, self.number(size_name)?) {
            (Some(local), Some(size)) if local < size && size <= world => Some((local, size)),
            (Some(local), Some(size)) => {
                let reason = format!("{local} does not fit {size_name}={size} and {world_name}={world}");
                return Err(Error::Variable {
                    name: local_name.into(),
                    reason,
                });
            }
            // Old launchers tell the local rank alone; one rank alone says all.
            (Some(0), None) if world == 1 => Some((0, 1)),
            _ => None,
        };
        Ok(Some(Found {
            rank,
            world,
            local,
            source: rank_name,
        }))
    }

    fn torch(&self) -> Result<Option<Found>> {
        // WORLD_SIZE or RANK alone may be anybody's variable; only both make a rank.
        if self.text("RANK").is_none() || self.text("WORLD_SIZE").is_none() {
            return Ok(None);
        }
        self.found(["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
    }

    fn mpi(&self) -> Result<Option<Found>> {
        let open_mpi = [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ];
        if let Some(found) = self.found(open_mpi)? {
            return Ok(Some(found));
        }
        self.found(["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"])
    }

    fn slurm(&self) -> Result<Option<Found>> {
        // Without a step this is the batch script itself, which is no rank.
        if self
            .text("SLURM_STEP_ID")
            .or_else(|| self.text("SLURM_STEPID"))
            .is_none()
        {
            return Ok(None);
        }
        let Some(mut found) = self.found(["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""])? else {
            return Ok(None);
        };
        let nodes = self
            .number::<usize>("SLURM_STEP_NUM_NODES")?
            .or(self.number("SLURM_NNODES")?);
        let local = self.number("SLURM_LOCALID")?.unwrap_or(0);
        // "4" or "4(x2)": the same on each node; anything else is uneven, and this node's own number is not told.
        let per_node = self
            .text("SLURM_STEP_TASKS_PER_NODE")
            .or_else(|| self.text("SLURM_NTASKS_PER_NODE"));
        let per_node = per_node.and_then(|text| text.split('(').next().and_then(|head| head.parse().ok()));
        let size = if nodes == Some(1) { Some(found.world) } else { per_node };
        found.local = size.filter(|&size| local < size).map(|size| (local, size));
        Ok(Some(found))
    }

    /// The share of this node where `PET_*` variables describe nodes.
    fn node(&self) -> Result<Option<NodeShare>> {
        let Some(nodes) = self.text("PET_NNODES") else {
            return Ok(None);
        };
        // An elastic job says "min:max"; a fixed world has the upper one.
        let last = nodes.rsplit(':').next().unwrap_or_default();
        let reason = || format!("expected a number of nodes, got {nodes:?}");
        let nodes: usize = last.parse().map_err(|_| Error::Variable {
            name: "PET_NNODES".into(),
            reason: reason(),
        })?;
        let Some(node) = self.number("PET_NODE_RANK")?.or(self.number("RANK")?) else {
            return Ok(None);
        };
        if node >= nodes {
            let reason = format!("node {node} is none of {nodes} (PET_NNODES)");
            return Err(Error::Variable {
                name: "PET_NODE_RANK".into(),
                reason,
            });
        }
        let per_node = self.text("PET_NPROC_PER_NODE").unwrap_or_else(|| "1".into());
        let ranks_per_node = match per_node.as_str() {
            // One rank a node uses all its cores by threads.
            "auto" | "cpu" => 1,
            number => number
                .parse()
                .ok()
                .filter(|&n: &usize| n > 0)
                .ok_or_else(|| Error::Variable {
                    name: "PET_NPROC_PER_NODE".into(),
                    reason: format!("expected a positive number, auto or cpu, got {number:?}"),
                })?,
        };
        if nodes.saturating_mul(ranks_per_node) > LARGEST_WORLD {
            let reason =
                format!("{nodes} nodes of {ranks_per_node} ranks, at most {LARGEST_WORLD} in all are possible");
            return Err(Error::Variable {
                name: "PET_NNODES".into(),
                reason,
            });
        }
        let meeting = self.meeting(nodes == 1)?;
        Ok(Some(NodeShare {
            node,
            nodes,
            ranks_per_node,
            meeting,
        }))
    }

    fn meeting(&self, one_machine: bool) -> Result<Meeting> {
        if let Some(path) = self.text(MEETING_FILE) {
            return Ok(Meeting::File(PathBuf::from(path)));
        }
        if let Some(host) = self.text("PET_MASTER_ADDR").or_else(|| self.text("MASTER_ADDR")) {
            let port = self
                .number("PET_MASTER_PORT")?
                .or(self.number("MASTER_PORT")?)
                .unwrap_or(DEFAULT_PORT);
            let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
            return Ok(Meeting::Address { host, port });
        }
        if let Some(endpoint) = self.text("PET_RDZV_ENDPOINT") {
            let (host, port) = endpoint.rsplit_once(':').unwrap_or((&endpoint, ""));
            return Ok(Meeting::Address {
                host: host.to_string(),
                port: port.parse().unwrap_or(DEFAULT_PORT),
            });
        }
        if one_machine {
            return Ok(Meeting::File(self.own_meeting_file()));
        }
        Ok(Meeting::Unknown)
    }

    /// A file that the ranks of one job on one machine find without being told: named by the job where its launcher
    /// names it, else by the process that started them all.
    fn own_meeting_file(&self) -> PathBuf {
        let job = self
            .text("PMIX_NAMESPACE")
            .or_else(|| {
                Some(format!(
                    "{}.{}",
                    self.text("SLURM_JOB_ID")?,
                    self.text("SLURM_STEP_ID")?
                ))
            })
            .unwrap_or_else(parent_key);
        let job: String = job
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
            .collect();
        let user = rustix::process::geteuid().as_raw();
        std::env::temp_dir()
            .join(format!("azulejo-{user}"))
            .join(format!("meeting-{job}"))
    }

    fn launch(&self, found: Found) -> Result<Role> {
        let Found {
            rank,
            world,
            local,
            source,
        } = found;
        let one_machine = local.is_none_or(|(_, size)| size == world);
        let (local_rank, local_size) = local.unwrap_or((rank, world));
        let machine = (self.number(MACHINE_RANK)?, self.number(MACHINE_SIZE)?);
        let (machine_rank, machine_size) = match machine {
            (Some(rank), Some(size)) if rank < size => (rank, size),
            _ => (local_rank, local_size),
        };
        let meeting = self.meeting(one_machine)?;
        let secret = match (self.text(SECRET), self.text(SECRET_FILE)) {
            (Some(text), _) => Some(Secret::new(text)?),
            (None, Some(path)) => Some(Secret::read(path.as_ref())?),
            (None, None) => None,
        };
        // Local ranks of one user need no secret of the user's making, wherever the launcher wants them to meet.
        let meeting = match meeting {
            Meeting::Address { .. } if secret.is_none() && one_machine && local.is_some() => {
                Meeting::File(self.own_meeting_file())
            }
            meeting => meeting,
        };
        Ok(Role::Rank(Launch {
            rank,
            world_size: world,
            local_rank,
            local_size,
            machine_rank,
            machine_size,
            meeting,
            secret,
            source,
        }))
    }
}

fn missing(name: &'static str, because: &'static str) -> Error {
    Error::Variable {
        name: name.into(),
        reason: format!("it is not set, but {because} is"),
    }
}

/// The parent's process number and start time, which name it even after its number is used again.
fn parent_key() -> String {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let stat = std::fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
    // The name in brackets may hold anything; the fields behind it are numbers. The start is the 22nd field.
    let start = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19))
        .unwrap_or("0");
    format!("{parent}.{start}")
}
