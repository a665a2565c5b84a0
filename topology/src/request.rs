//! What a user asks of the planner, in the words of the launchers people know.
//!
//! * `OMP_NUM_THREADS=24` (or `24,2`: the first level counts): threads per rank.
//! * `KMP_HW_SUBSET=1T` or `24c,1t`: threads per core, and cores per rank at most.
//! * `CCL_WORKER_COUNT=1`: cores per rank for the collectives worker.
//! * `CCL_WORKER_AFFINITY=auto` or `3,7-8`: the last cores of each rank, or these CPUs for all local ranks together.

use serde::Serialize;

use crate::cpuset::{CpuId, CpuSet};
use crate::error::Error;

/// Limits and wishes for a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Request {
    /// Compute threads per rank; `None` for as many as there are cores to compute on.
    pub threads_per_rank: Option<usize>,
    /// Hardware threads of a core that compute; 1 leaves the siblings idle.
    pub threads_per_core: usize,
    /// Cores per rank at most.
    pub cores_per_rank: Option<usize>,
    /// Cores per rank for the collectives worker; 0 for a job of one rank.
    pub workers_per_rank: usize,
    /// CPUs of the workers of all local ranks, in the order of the ranks; `None` for the last cores of each rank.
    pub worker_cpus: Option<Vec<CpuId>>,
    /// Cores per package left to the operating system, where there are enough of them.
    pub os_reserve: usize,
    /// Use the fastest kind of core only, on a machine that has several.
    pub performance_cores: bool,
    /// Use CPUs that are kept from the scheduler (`isolcpus`) as well. Otherwise they are left alone as long as there are
    /// others.
    pub isolated: bool,
    /// Use persistent and CXL memory as well, and memory of unknown kind that has no CPUs.
    pub slow_memory: bool,
}

impl Default for Request {
    fn default() -> Self {
        Request {
            threads_per_rank: None,
            threads_per_core: 1,
            cores_per_rank: None,
            workers_per_rank: 1,
            worker_cpus: None,
            os_reserve: 1,
            performance_cores: false,
            isolated: false,
            slow_memory: false,
        }
    }
}

impl Request {
    /// The request that this process's environment makes.
    pub fn from_env() -> Result<Request, Error> {
        Request::from_variables(|name| std::env::var(name).ok())
    }

    /// The request that a set of variables makes; variables that are absent or empty ask for nothing.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Request, Error> {
        let text = |name: &str| {
            variable(name)
                .map(|text| text.trim().to_owned())
                .filter(|text| !text.is_empty())
        };
        let mut request = Request::default();
        if let Some(threads) = text("OMP_NUM_THREADS") {
            let first = threads.split(',').next().unwrap_or_default();
            request.threads_per_rank = Some(count(
                "OMP_NUM_THREADS",
                &threads,
                first,
                "a number of threads such as 24, or a list such as 24,2",
            )?);
        }
        if let Some(subset) = text("KMP_HW_SUBSET") {
            request.hardware_subset(&subset)?;
        }
        if let Some(workers) = text("CCL_WORKER_COUNT") {
            request.workers_per_rank = count("CCL_WORKER_COUNT", &workers, &workers, "a number of workers such as 1")?;
        }
        match text("CCL_WORKER_AFFINITY") {
            Some(list) if !list.eq_ignore_ascii_case("auto") => request.worker_cpus = Some(worker_list(&list)?),
            _ => {}
        }
        Ok(request)
    }

    fn hardware_subset(&mut self, subset: &str) -> Result<(), Error> {
        const EXPECTED: &str = "threads per core and cores per rank, such as 1T or 24c,1t";
        for part in subset.split([',', 'x', 'X']) {
            let part = part.trim();
            let unit = part.trim_start_matches(|c: char| c.is_ascii_digit());
            let number = count("KMP_HW_SUBSET", subset, &part[..part.len() - unit.len()], EXPECTED)?;
            match unit.to_ascii_lowercase().as_str() {
                "t" | "thread" | "threads" => self.threads_per_core = number,
                "c" | "core" | "cores" => self.cores_per_rank = Some(number),
                _ => return Err(parse("KMP_HW_SUBSET", subset, EXPECTED)),
            }
        }
        Ok(())
    }
}

fn parse(origin: &str, text: &str, expected: &'static str) -> Error {
    Error::Parse {
        origin: origin.to_owned(),
        text: text.to_owned(),
        expected,
    }
}

/// A number from 1 to a million.
fn count(origin: &str, whole: &str, text: &str, expected: &'static str) -> Result<usize, Error> {
    let number = CpuSet::parse_list(text)
        .filter(|set| set.len() == 1)
        .and_then(|set| set.first());
    number
        .filter(|&number| number > 0)
        .ok_or_else(|| parse(origin, whole, expected))
}

/// Ids and ranges in the order they are written, because that order assigns them to ranks.
fn worker_list(list: &str) -> Result<Vec<CpuId>, Error> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let set = CpuSet::parse_list(part).filter(|set| !set.is_empty());
        cpus.extend(
            set.ok_or_else(|| parse("CCL_WORKER_AFFINITY", list, "auto, or CPUs such as 3,7-8"))?
                .iter(),
        );
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(pairs: &[(&str, &str)]) -> Result<Request, Error> {
        Request::from_variables(|name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_mean_what_they_mean_elsewhere() {
        assert_eq!(request(&[]).unwrap(), Request::default());
        assert_eq!(
            request(&[("OMP_NUM_THREADS", "24")]).unwrap().threads_per_rank,
            Some(24)
        );
        assert_eq!(
            request(&[("OMP_NUM_THREADS", "24,2")]).unwrap().threads_per_rank,
            Some(24)
        );
        assert_eq!(request(&[("KMP_HW_SUBSET", "1T")]).unwrap().threads_per_core, 1);
        let subset = request(&[("KMP_HW_SUBSET", "24c,2t")]).unwrap();
        assert_eq!((subset.cores_per_rank, subset.threads_per_core), (Some(24), 2));
        assert_eq!(request(&[("CCL_WORKER_COUNT", "2")]).unwrap().workers_per_rank, 2);
        assert_eq!(request(&[("CCL_WORKER_AFFINITY", "auto")]).unwrap().worker_cpus, None);
        assert_eq!(
            request(&[("CCL_WORKER_AFFINITY", "9,3-4")]).unwrap().worker_cpus,
            Some(vec![9, 3, 4])
        );
    }

    #[test]
    fn what_is_not_understood_is_an_error_that_names_the_variable() {
        for (name, text) in [
            ("OMP_NUM_THREADS", "0"),
            ("OMP_NUM_THREADS", "many"),
            ("KMP_HW_SUBSET", "2s,1t"),
            ("KMP_HW_SUBSET", "T"),
            ("CCL_WORKER_COUNT", "-1"),
            ("CCL_WORKER_AFFINITY", "3,,4"),
        ] {
            let message = request(&[(name, text)]).unwrap_err().to_string();
            assert!(message.starts_with(name) && message.contains(text), "{message}");
        }
    }
}
