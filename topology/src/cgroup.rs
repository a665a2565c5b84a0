//! Limits of control groups: the cpuset, and separately the CPU quota.
//!
//! Where the hierarchies are mounted is read from the mount table, and the group of this process from
//! `/proc/self/cgroup`. Inside a container the group's path may be that of the host while the mount shows the
//! container's own group as its root; so when a path does not exist below a mount, its parents are tried up to the mount
//! itself.

use crate::cpuset::{CpuSet, NodeSet};
use crate::tree::Tree;

/// What the control groups of this process allow.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    pub(crate) cpus: Option<CpuSet>,
    pub(crate) mems: Option<NodeSet>,
    /// CPUs' worth of time a period, as a fraction.
    pub(crate) quota: Option<f64>,
}

/// A mounted hierarchy that matters here.
#[derive(Debug, PartialEq)]
enum Kind {
    /// The unified hierarchy.
    V2,
    /// A version 1 hierarchy with these controllers.
    V1(Vec<String>),
    /// The cpuset file system of old kernels, whose files have no prefix.
    Cpuset,
}

pub(crate) fn read(tree: &Tree) -> Limits {
    let mut limits = Limits::default();
    for (point, kind) in mounts(&tree.text("/proc/mounts").unwrap_or_default()) {
        match kind {
            Kind::V2 => {
                let group = group(tree, "");
                let (cpus, mems) = (
                    nearest(tree, &point, &group, "cpuset.cpus.effective"),
                    nearest(tree, &point, &group, "cpuset.mems.effective"),
                );
                limit_sets(&mut limits, cpus, mems);
                for folder in ancestors(&point, &group) {
                    let text = tree.text(&format!("{folder}/cpu.max"));
                    limit_quota(&mut limits, text.and_then(|text| quota_v2(&text)));
                }
            }
            Kind::V1(controllers) => {
                if controllers.iter().any(|name| name == "cpuset") {
                    let group = group(tree, "cpuset");
                    let first = |names: [&str; 2]| names.iter().find_map(|name| nearest(tree, &point, &group, name));
                    let cpus = first(["cpuset.effective_cpus", "cpuset.cpus"]);
                    let mems = first(["cpuset.effective_mems", "cpuset.mems"]);
                    limit_sets(&mut limits, cpus, mems);
                }
                if controllers.iter().any(|name| name == "cpu") {
                    for folder in ancestors(&point, &group(tree, "cpu")) {
                        let number = |name: &str| tree.text(&format!("{folder}/{name}"))?.parse::<f64>().ok();
                        let quota = number("cpu.cfs_quota_us").zip(number("cpu.cfs_period_us"));
                        // A quota of -1 stands for none.
                        limit_quota(
                            &mut limits,
                            quota.filter(|&(q, p)| q > 0.0 && p > 0.0).map(|(q, p)| q / p),
                        );
                    }
                }
            }
            Kind::Cpuset => {
                let group = tree.text("/proc/self/cpuset").unwrap_or_else(|| "/".to_owned());
                let (cpus, mems) = (
                    nearest(tree, &point, &group, "cpus"),
                    nearest(tree, &point, &group, "mems"),
                );
                limit_sets(&mut limits, cpus, mems);
            }
        }
    }
    limits
}

/// Hybrid systems have several hierarchies; whatever one of them forbids is forbidden.
fn limit_sets(limits: &mut Limits, cpus: Option<CpuSet>, mems: Option<NodeSet>) {
    for (limit, new) in [(&mut limits.cpus, cpus), (&mut limits.mems, mems)] {
        if let Some(new) = new {
            *limit = Some(limit.as_ref().map_or(new.clone(), |old| old.and(&new)));
        }
    }
}

fn limit_quota(limits: &mut Limits, quota: Option<f64>) {
    if let Some(quota) = quota {
        limits.quota = Some(limits.quota.map_or(quota, |old| old.min(quota)));
    }
}

/// `QUOTA PERIOD` in microseconds, or `max PERIOD` for none.
fn quota_v2(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period) = (quota.parse::<f64>().ok()?, period.trim().parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// The hierarchies in a mount table.
fn mounts(table: &str) -> Vec<(String, Kind)> {
    let mut found = Vec::new();
    for line in table.lines() {
        let mut fields = line.split_whitespace();
        let (Some(_), Some(point), Some(kind)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let options = fields.next().unwrap_or_default();
        let kind = match kind {
            "cgroup2" => Kind::V2,
            "cgroup" => Kind::V1(options.split(',').map(str::to_owned).collect()),
            "cpuset" => Kind::Cpuset,
            _ => continue,
        };
        found.push((unescape(point), kind));
    }
    found
}

/// The mount table writes space, tab, newline and backslash as three octal digits after a backslash.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

/// This process's group in the hierarchy of a controller; the unified hierarchy has the empty name.
fn group(tree: &Tree, controller: &str) -> String {
    let table = tree.text("/proc/self/cgroup").unwrap_or_default();
    for line in table.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, names, path) = (fields.next(), fields.next(), fields.next());
        if let (Some(names), Some(path)) = (names, path)
            && names.split(',').any(|name| name == controller)
        {
            return path.to_owned();
        }
    }
    "/".to_owned()
}

/// The folder of a group and those of its ancestors, up to the mount point.
fn ancestors(point: &str, group: &str) -> Vec<String> {
    let mut rest = group.trim_matches('/');
    let mut folders = Vec::new();
    while !rest.is_empty() {
        // A path that climbs out of the mount, as shown for groups outside a namespace, is worth nothing.
        if !rest.split('/').any(|part| part == "..") {
            folders.push(format!("{point}/{rest}"));
        }
        rest = rest.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    folders.push(point.to_owned());
    folders
}

/// The set in the file of that name that is nearest to the group. An empty set means that the group leaves the matter
/// to its parent.
fn nearest(tree: &Tree, point: &str, group: &str, name: &str) -> Option<CpuSet> {
    ancestors(point, group)
        .iter()
        .filter_map(|folder| {
            let path = format!("{folder}/{name}");
            // Asked first, so that an absent file is not noted as unreadable.
            tree.exists(&path).then(|| tree.list(&path)).flatten()
        })
        .find(|set| !set.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_tells_the_hierarchies() {
        let table = "proc /proc proc rw 0 0\nnone /dev/cpuset cpuset rw 0 0\n\
                     cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup2 /a\\040b cgroup2 rw 0 0\nbroken\n";
        let found = mounts(table);
        assert_eq!(found[0], ("/dev/cpuset".to_owned(), Kind::Cpuset));
        assert!(
            matches!(&found[1], (point, Kind::V1(names)) if point == "/sys/fs/cgroup/cpu,cpuacct" && names.contains(&"cpu".to_owned()))
        );
        assert_eq!(found[2], ("/a b".to_owned(), Kind::V2));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn quotas_are_fractions_of_cpus() {
        assert_eq!(quota_v2("200000 100000"), Some(2.0));
        assert_eq!(quota_v2("50000 100000"), Some(0.5));
        for none in ["max 100000", "", "x y", "0 0"] {
            assert_eq!(quota_v2(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_path_is_tried_with_all_its_parents() {
        assert_eq!(ancestors("/m", "/a/b"), ["/m/a/b", "/m/a", "/m"]);
        assert_eq!(ancestors("/m", "/"), ["/m"]);
        assert_eq!(ancestors("/m", "/../x"), ["/m"]);
    }
}
