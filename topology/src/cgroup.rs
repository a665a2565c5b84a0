//! Limits of control groups: the cpuset, and separately the CPU quota.
//!
//! Where the hierarchies are mounted, and which part of each is visible there, is read from the mount table; the group of
//! this process from `/proc/self/cgroup`. Inside a container the group's path may be that of the host while the mount
//! shows the container's own group as its root: the part of the path that the mount hides is taken off, and where the
//! table does not tell, or a path does not exist below a mount, its parents are tried up to the mount itself.

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

/// A place where a hierarchy can be seen.
#[derive(Debug, PartialEq)]
struct Mount {
    /// The group that is visible at the mount point, where the table tells.
    root: Option<String>,
    point: String,
    kind: Kind,
}

pub(crate) fn read(tree: &Tree) -> Limits {
    let mut limits = Limits::default();
    let table = tree.text("/proc/self/mountinfo").map(|text| detailed_mounts(&text));
    let mounts = table
        .filter(|mounts| !mounts.is_empty())
        .unwrap_or_else(|| mounts(&tree.text("/proc/mounts").unwrap_or_default()));
    let memberships = tree.text("/proc/self/cgroup").unwrap_or_default();
    for mount in &mounts {
        let folders = |controller: &str| {
            let group = group(&memberships, controller);
            // A hierarchy may be mounted several times; a mount that shows somebody else's groups says nothing about
            // this process as long as another one shows ours.
            let shows_ours = |other: &Mount| other.kind == mount.kind && below(other, &group).is_some();
            match below(mount, &group) {
                Some(rest) => ancestors(&mount.point, rest),
                None if mounts.iter().any(shows_ours) => Vec::new(),
                None => ancestors(&mount.point, &group),
            }
        };
        match &mount.kind {
            Kind::V2 => {
                let folders = folders("");
                let cpus = nearest(tree, &folders, &["cpuset.cpus.effective"]);
                let mems = nearest(tree, &folders, &["cpuset.mems.effective"]);
                limit_sets(&mut limits, cpus, mems);
                for folder in &folders {
                    let text = tree.text(&format!("{folder}/cpu.max"));
                    limit_quota(&mut limits, text.and_then(|text| quota_v2(&text)));
                }
            }
            Kind::V1(controllers) => {
                if controllers.iter().any(|name| name == "cpuset") {
                    let folders = folders("cpuset");
                    let cpus = nearest(tree, &folders, &["cpuset.effective_cpus", "cpuset.cpus"]);
                    let mems = nearest(tree, &folders, &["cpuset.effective_mems", "cpuset.mems"]);
                    limit_sets(&mut limits, cpus, mems);
                }
                if controllers.iter().any(|name| name == "cpu") {
                    for folder in folders("cpu") {
                        let number = |name: &str| tree.text(&format!("{folder}/{name}"))?.parse::<f64>().ok();
                        let quota = number("cpu.cfs_quota_us").zip(number("cpu.cfs_period_us"));
                        // A quota of -1 stands for none.
                        let quota = quota.filter(|&(q, p)| q > 0.0 && p > 0.0).map(|(q, p)| q / p);
                        limit_quota(&mut limits, quota);
                    }
                }
            }
            Kind::Cpuset => {
                let group = tree.text("/proc/self/cpuset").unwrap_or_else(|| "/".to_owned());
                let folders = ancestors(&mount.point, below(mount, &group).unwrap_or(&group));
                let cpus = nearest(tree, &folders, &["cpus"]);
                let mems = nearest(tree, &folders, &["mems"]);
                limit_sets(&mut limits, cpus, mems);
            }
        }
    }
    limits
}

/// The group's path below the mount, where the mount is known to show it.
fn below<'a>(mount: &Mount, group: &'a str) -> Option<&'a str> {
    let rest = group.strip_prefix(mount.root.as_deref()?.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
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

/// The hierarchies in `/proc/mounts`.
fn mounts(table: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let mut fields = line.split_whitespace();
        let (_, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Mount {
            root: None,
            point: unescape(point),
            kind: hierarchy(kind, fields.next().unwrap_or_default())?,
        })
    };
    table.lines().filter_map(mount).collect()
}

/// The hierarchies in `/proc/self/mountinfo`, which also tells which group a mount shows.
fn detailed_mounts(table: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        // Optional fields end with a lone dash; the kind, the source and the options of the file system follow it.
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split_whitespace().skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split_whitespace();
        let kind = after.next()?;
        Some(Mount {
            root: Some(unescape(root)),
            point: unescape(point),
            kind: hierarchy(kind, after.nth(1).unwrap_or_default())?,
        })
    };
    table.lines().filter_map(mount).collect()
}

fn hierarchy(kind: &str, options: &str) -> Option<Kind> {
    match kind {
        "cgroup2" => Some(Kind::V2),
        // Old kernels mount the cpuset file system as a control group without prefixes in its file names.
        "cgroup" if options.split(',').any(|option| option == "noprefix") => Some(Kind::Cpuset),
        "cgroup" => Some(Kind::V1(options.split(',').map(str::to_owned).collect())),
        "cpuset" => Some(Kind::Cpuset),
        _ => None,
    }
}

/// The mount table writes space, tab, newline and backslash as three octal digits after a backslash.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

/// This process's group in the hierarchy of a controller; the unified hierarchy has the empty name.
fn group(memberships: &str, controller: &str) -> String {
    let found = memberships.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        names.split(',').any(|name| name == controller).then(|| path.to_owned())
    });
    found.unwrap_or_else(|| "/".to_owned())
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

/// The set in the file of one of those names that is nearest to the group, the first name before the others. An empty
/// set means that the group leaves the matter to its parent.
fn nearest(tree: &Tree, folders: &[String], names: &[&str]) -> Option<CpuSet> {
    let file = |name: &&str| {
        let set = |folder: &String| {
            let path = format!("{folder}/{name}");
            // Asked first, so that an absent file is not noted as unreadable.
            tree.exists(&path).then(|| tree.list(&path)).flatten()
        };
        folders.iter().filter_map(set).find(|set| !set.is_empty())
    };
    names.iter().find_map(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_tells_the_hierarchies() {
        let table = "proc /proc proc rw 0 0\nnone /dev/cpuset cpuset rw 0 0\n\
                     cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup2 /a\\040b cgroup2 rw 0 0\n\
                     c /cpusets cgroup rw,cpuset,noprefix 0 0\nbroken\n";
        let found = mounts(table);
        assert_eq!(
            (found[0].point.as_str(), &found[0].kind),
            ("/dev/cpuset", &Kind::Cpuset)
        );
        assert!(
            matches!(&found[1].kind, Kind::V1(names) if found[1].point == "/sys/fs/cgroup/cpu,cpuacct" && names.contains(&"cpu".to_owned()))
        );
        assert_eq!((found[2].point.as_str(), &found[2].kind), ("/a b", &Kind::V2));
        assert_eq!((found[3].point.as_str(), &found[3].kind), ("/cpusets", &Kind::Cpuset));
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn the_detailed_table_also_tells_what_a_mount_shows() {
        let table = "22 1 0:20 / /proc rw - proc proc rw\n\
                     31 23 0:28 /docker/ab /sys/fs/cgroup/cpuset ro,nosuid shared:9 master:2 - cgroup cgroup rw,cpuset\n\
                     32 23 0:29 / /cg\\0402 rw - cgroup2 cgroup2 rw\nshort - cgroup2\n";
        let found = detailed_mounts(table);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].root.as_deref(), Some("/docker/ab"));
        assert_eq!(found[1].point, "/cg 2");
        assert_eq!(below(&found[0], "/docker/ab/step"), Some("/step"));
        assert_eq!(below(&found[0], "/docker/ab"), Some(""));
        assert_eq!(below(&found[0], "/docker/abc"), None);
        assert_eq!(below(&found[1], "/x"), Some("/x"));
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
