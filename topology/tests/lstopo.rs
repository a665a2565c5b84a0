//! `lstopo` of the hwloc project counts the same, on this machine and on the recorded ones.

mod common;

use std::path::Path;
use std::process::Command;

use azulejo_topology::Machine;
use common::{recorded, recordings};

/// The lines `lstopo` prints for one type of object; `None` where it is not installed.
fn lstopo(root: Option<&Path>, kind: &str) -> Option<Vec<String>> {
    let mut command = Command::new("lstopo-no-graphics");
    command.args(["-p", "--only", kind]);
    if let Some(root) = root {
        command.env("HWLOC_FSROOT", root).env("HWLOC_COMPONENTS", "linux,stop");
    }
    let output = command.output().ok()?;
    assert!(
        output.status.success(),
        "lstopo: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(str::to_owned)
            .collect(),
    )
}

fn check(case: &str, root: Option<&Path>, machine: &Machine) -> Option<()> {
    let count = |kind| Some(lstopo(root, kind)?.len());
    assert_eq!(count("package")?, machine.packages.len(), "{case}: packages");
    assert_eq!(count("numanode")?, machine.nodes.len(), "{case}: NUMA nodes");
    assert_eq!(count("core")?, machine.cores.len(), "{case}: cores");
    assert_eq!(count("l3")?, machine.caches_of_level(3).count(), "{case}: L3");
    assert_eq!(count("l2")?, machine.caches_of_level(2).count(), "{case}: L2");
    let mut cpus: Vec<usize> = lstopo(root, "pu")?
        .iter()
        .filter_map(|line| line.strip_prefix("PU P#")?.trim().parse().ok())
        .collect();
    cpus.sort_unstable();
    assert_eq!(cpus, machine.usable().iter().collect::<Vec<_>>(), "{case}: CPUs");
    Some(())
}

#[test]
fn lstopo_counts_the_same() {
    let machine = match Machine::read() {
        Ok(machine) => machine,
        Err(error) => return eprintln!("skipped: this system does not describe itself: {error}"),
    };
    if check("this machine", None, &machine).is_none() {
        return eprintln!("skipped: lstopo-no-graphics is not installed");
    }
    let Some(shared) = recordings() else {
        return eprintln!("skipped: the recorded machines are not here");
    };
    let mut cases = 0;
    for entry in std::fs::read_dir(shared).expect("the folder of recordings").flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let Some(case) = name.strip_suffix(".tar.bz2") else {
            continue;
        };
        let Some((_folder, root)) = recorded(case) else {
            return eprintln!("skipped: tar cannot unpack bzip2 here");
        };
        let machine = Machine::read_from(&root).expect("a recorded machine");
        check(case, Some(&root), &machine).expect("lstopo is here");
        cases += 1;
    }
    assert!(cases > 0, "no recording in the folder");
    eprintln!("lstopo agrees on this machine and {cases} recorded ones");
}
