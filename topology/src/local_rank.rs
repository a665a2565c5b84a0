//! Which of the ranks on this machine a process is, whoever started it.
//!
//! The first of these that is there counts; a launcher started by another one comes before it:
//!
//! | started by | rank on the machine | ranks on the machine |
//! |---|---|---|
//! | azulejo's launcher | `AZULEJO_MACHINE_RANK` | `AZULEJO_MACHINE_SIZE` |
//! | torchrun and others | `LOCAL_RANK` | `LOCAL_WORLD_SIZE` |
//! | Open MPI | `OMPI_COMM_WORLD_LOCAL_RANK` | `OMPI_COMM_WORLD_LOCAL_SIZE` |
//! | MPICH, Intel MPI | `MPI_LOCALRANKID` | `MPI_LOCALNRANKS` |
//! | MVAPICH | `MV2_COMM_WORLD_LOCAL_RANK` | `MV2_COMM_WORLD_LOCAL_SIZE` |
//! | Cray's launchers | `PMI_LOCAL_RANK` | `PMI_LOCAL_SIZE` |
//! | `srun` | `SLURM_LOCALID` | `SLURM_STEP_TASKS_PER_NODE` at `SLURM_NODEID` |
//! | any PMI | `PMI_RANK` | `PMI_SIZE` |
//!
//! PMI alone tells ranks of the job and not of the machine. Taken as if all were here, they still get disjoint cores.

use crate::cpuset::CpuSet;
use crate::error::Error;

/// A process's place among the ranks on its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalRank {
    /// From 0 to `ranks - 1`.
    pub rank: usize,
    /// Ranks on this machine.
    pub ranks: usize,
    /// The variable that told the rank.
    pub source: &'static str,
    /// The launcher says that it has bound the process to CPUs itself. What may be used is then what the launcher left,
    /// which is often a single core.
    pub bound: bool,
}

/// Variables of a launcher: rank, and ranks, on the machine.
const PAIRS: [(&str, &str); 6] = [
    ("AZULEJO_MACHINE_RANK", "AZULEJO_MACHINE_SIZE"),
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
];

impl LocalRank {
    /// What this process's environment says; `None` when no launcher has left its variables.
    pub fn from_env() -> Result<Option<LocalRank>, Error> {
        LocalRank::from_variables(|name| std::env::var(name).ok())
    }

    /// What a set of variables says.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Option<LocalRank>, Error> {
        let text = |name: &str| {
            variable(name)
                .map(|text| text.trim().to_owned())
                .filter(|text| !text.is_empty())
        };
        let bound = text("OMPI_MCA_orte_bound_at_launch").is_some_and(|flag| flag != "0")
            || text("SLURM_CPU_BIND_TYPE").is_some_and(|kind| !kind.starts_with("none"));
        let found = |rank: usize, ranks: usize, source| {
            if rank >= ranks {
                return Err(parse(source, &rank.to_string(), "a rank below the number of ranks"));
            }
            Ok(Some(LocalRank {
                rank,
                ranks,
                source,
                bound,
            }))
        };
        for (rank_name, ranks_name) in PAIRS {
            match (text(rank_name), text(ranks_name)) {
                (Some(rank), Some(ranks)) => {
                    return found(number(rank_name, &rank)?, number(ranks_name, &ranks)?, rank_name);
                }
                (Some(rank), None) if rank_name == "LOCAL_RANK" => {
                    let missing = "LOCAL_WORLD_SIZE beside it: the number of ranks on this machine";
                    return Err(parse(rank_name, &rank, missing));
                }
                _ => {}
            }
        }
        // A batch script sees most of Slurm's variables and is no rank; only a step has a number.
        if (text("SLURM_STEP_ID").is_some() || text("SLURM_STEPID").is_some())
            && let Some(rank) = text("SLURM_LOCALID")
        {
            let names = [
                "SLURM_STEP_TASKS_PER_NODE",
                "SLURM_TASKS_PER_NODE",
                "SLURM_NTASKS_PER_NODE",
            ];
            let sizes = names.iter().find_map(|&name| Some((name, text(name)?)));
            if let Some((name, sizes)) = sizes {
                let node = text("SLURM_NODEID").map_or(Ok(0), |node| number("SLURM_NODEID", &node))?;
                let ranks =
                    tasks_on(&sizes, node).ok_or_else(|| parse(name, &sizes, "tasks of each node, as in 2(x3),1"))?;
                return found(number("SLURM_LOCALID", &rank)?, ranks, "SLURM_LOCALID");
            }
        }
        match (text("PMI_RANK"), text("PMI_SIZE")) {
            (Some(rank), Some(size)) => found(number("PMI_RANK", &rank)?, number("PMI_SIZE", &size)?, "PMI_RANK"),
            _ => Ok(None),
        }
    }
}

fn parse(origin: &str, text: &str, expected: &'static str) -> Error {
    Error::Parse {
        origin: origin.to_owned(),
        text: text.to_owned(),
        expected,
    }
}

fn number(origin: &str, text: &str) -> Result<usize, Error> {
    let id = CpuSet::parse_list(text).filter(|set| set.len() == 1);
    id.and_then(|set| set.first())
        .ok_or_else(|| parse(origin, text, "a number"))
}

/// Slurm's `2(x3),1`: three nodes of two tasks, then one of one.
fn tasks_on(sizes: &str, node: usize) -> Option<usize> {
    let mut before = 0;
    for part in sizes.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        before += nodes;
        if node < before {
            return tasks.trim().parse().ok().filter(|&tasks| tasks > 0);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<LocalRank>, Error> {
        LocalRank::from_variables(|name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn every_launcher_is_understood() {
        let slurm = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NODEID", "3"),
            ("SLURM_STEP_TASKS_PER_NODE", "4(x3),2"),
        ];
        for (variables, rank, ranks) in [
            (&[("LOCAL_RANK", "3"), ("LOCAL_WORLD_SIZE", "4")][..], 3, 4),
            (
                &[("OMPI_COMM_WORLD_LOCAL_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")],
                0,
                2,
            ),
            (
                &[
                    ("MPI_LOCALRANKID", "1"),
                    ("MPI_LOCALNRANKS", "2"),
                    ("PMI_RANK", "5"),
                    ("PMI_SIZE", "6"),
                ],
                1,
                2,
            ),
            (&slurm, 1, 2),
            (&[("PMI_RANK", "1"), ("PMI_SIZE", "2")], 1, 2),
            // torchrun as the one task of a Slurm step.
            (
                &[
                    ("LOCAL_RANK", "3"),
                    ("LOCAL_WORLD_SIZE", "4"),
                    ("SLURM_STEP_ID", "0"),
                    ("SLURM_LOCALID", "0"),
                    ("SLURM_TASKS_PER_NODE", "1"),
                ],
                3,
                4,
            ),
        ] {
            let found = read(variables).unwrap().unwrap();
            assert_eq!(
                (found.rank, found.ranks, found.bound),
                (rank, ranks, false),
                "{variables:?}"
            );
        }
        assert_eq!(read(&[]).unwrap(), None);
        // A batch script is no rank.
        assert_eq!(
            read(&[("SLURM_LOCALID", "0"), ("SLURM_TASKS_PER_NODE", "2")]).unwrap(),
            None
        );
        let bound = read(&[
            ("PMI_RANK", "1"),
            ("PMI_SIZE", "2"),
            ("OMPI_MCA_orte_bound_at_launch", "1"),
        ]);
        assert!(bound.unwrap().unwrap().bound);
    }

    #[test]
    fn what_makes_no_sense_is_an_error_that_names_the_variable() {
        for (variables, name) in [
            (&[("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "2")][..], "LOCAL_RANK"),
            (&[("LOCAL_RANK", "0")], "LOCAL_RANK"),
            (&[("PMI_RANK", "x"), ("PMI_SIZE", "2")], "PMI_RANK"),
            (
                &[
                    ("SLURM_STEP_ID", "0"),
                    ("SLURM_LOCALID", "0"),
                    ("SLURM_TASKS_PER_NODE", "2(x"),
                ],
                "SLURM_TASKS_PER_NODE",
            ),
        ] {
            let message = read(variables).unwrap_err().to_string();
            assert!(message.starts_with(name), "{message}");
        }
    }
}
