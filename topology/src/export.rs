//! A plan in the words of other tools: JSON, `numactl` and `taskset` lines, the environment of children that are not
//! ours, and a rank file.

use serde_json::Value;

use crate::cpuset::CpuSet;
use crate::error::Error;
use crate::plan::{Plan, RankPlan};

impl RankPlan {
    /// The words that start a command under this part of the plan with `numactl`.
    pub fn numactl(&self) -> Vec<String> {
        let mut words = vec!["numactl".to_owned(), format!("--physcpubind={}", self.process())];
        if !self.prefer.is_empty() {
            words.push(format!("--preferred-many={}", self.prefer));
        } else if !self.nodes.is_empty() {
            words.push(format!("--membind={}", self.nodes));
        }
        words
    }

    /// The words that start a command under this part of the plan with `taskset`, which knows nothing of memory.
    pub fn taskset(&self) -> Vec<String> {
        vec!["taskset".into(), "--cpu-list".into(), self.process().to_string()]
    }
}

impl Plan {
    /// The whole plan: `ranks`, the `machine` in a line, the `notes`, what was `asked` and the `request`.
    pub fn to_json(&self) -> Value {
        // Strings, numbers and lists only: nothing in it can fail to be written.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The variables that make OpenMP (GNU, LLVM and Intel), Intel MPI, Open MPI and oneCCL keep to the plan, for a child
    /// process that is the given local rank. Those of the MPIs and of oneCCL are the same for all ranks; an MPI's launcher
    /// reads them.
    pub fn environment(&self, local_rank: usize) -> Result<Vec<(&'static str, String)>, Error> {
        let rank = self.rank(local_rank)?;
        let mut variables = vec![("OMP_NUM_THREADS", rank.threads.to_string())];
        if rank.pinned {
            let cpus = || rank.compute.iter().map(|cpu| cpu.to_string());
            let places: Vec<String> = cpus().map(|cpu| format!("{{{cpu}}}")).collect();
            let list = cpus().collect::<Vec<_>>();
            variables.extend([
                ("OMP_PLACES", places.join(",")),
                ("OMP_PROC_BIND", "close".to_owned()),
                ("GOMP_CPU_AFFINITY", list.join(" ")),
                (
                    "KMP_AFFINITY",
                    format!("granularity=fine,proclist=[{}],explicit", list.join(",")),
                ),
                ("KMP_HW_SUBSET", format!("{}T", self.request.threads_per_core.max(1))),
            ]);
        } else {
            variables.extend([
                ("OMP_PROC_BIND", "false".to_owned()),
                ("KMP_AFFINITY", "disabled".to_owned()),
            ]);
        }
        // A millisecond of spinning after a parallel region, as the published recipes have it.
        variables.push(("KMP_BLOCKTIME", "1".to_owned()));

        if self.ranks.iter().all(|rank| rank.pinned) {
            let masks: Vec<String> = self.ranks.iter().map(|rank| mask(&rank.process())).collect();
            variables.push(("I_MPI_PIN", "1".to_owned()));
            variables.push(("I_MPI_PIN_DOMAIN", format!("[{}]", masks.join(","))));
        } else {
            variables.push(("I_MPI_PIN", "0".to_owned()));
        }
        // Open MPI 4 and 5 leave the binding to whoever applies the plan; `rank_file` is for those who let Open MPI do it.
        variables.push(("OMPI_MCA_hwloc_base_binding_policy", "none".to_owned()));
        variables.push(("PRTE_MCA_hwloc_default_binding_policy", "none".to_owned()));

        let workers = rank.worker.len();
        let regular = self
            .ranks
            .iter()
            .all(|other| other.pinned && other.worker.len() == workers);
        if workers > 0 && regular {
            let all: Vec<String> = self
                .ranks
                .iter()
                .flat_map(|rank| rank.worker.iter())
                .map(|cpu| cpu.to_string())
                .collect();
            variables.push(("CCL_WORKER_COUNT", workers.to_string()));
            variables.push(("CCL_WORKER_AFFINITY", all.join(",")));
        }
        Ok(variables)
    }

    /// A rank file for Open MPI's `--rankfile`, with the kernel's CPU numbers (`--mca rmaps_rank_file_physical 1`).
    pub fn rank_file(&self, host: &str) -> String {
        let line = |(rank, part): (usize, &RankPlan)| format!("rank {rank}={host} slot={}\n", part.process());
        self.ranks.iter().enumerate().map(line).collect()
    }
}

/// The set as one hexadecimal number.
fn mask(cpus: &CpuSet) -> String {
    let Some((top, rest)) = cpus.words().split_last() else {
        return "0".to_owned();
    };
    let rest: String = rest.iter().rev().map(|word| format!("{word:016x}")).collect();
    format!("{top:x}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_one_hexadecimal_number() {
        for (cpus, expected) in [
            ("0-3", "f"),
            ("64", "10000000000000000"),
            ("0,68", "100000000000000001"),
            ("", "0"),
        ] {
            assert_eq!(mask(&cpus.parse().unwrap()), expected, "{cpus}");
        }
    }
}
