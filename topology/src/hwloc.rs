//! A second reading of the machine through libhwloc, to compare with ours: the fence around `hwloc2`.
//!
//! In version 2.2.0 of that crate, seen with libhwloc 2.9.0, several safe calls are not sound: `Display` of an object
//! overflows a buffer, `name()` dereferences null, everything about NUMA nodes uses the numbers of hwloc 1 and panics,
//! `cache_attributes()` on anything but a cache reads a union without a check, and an object type read from the library
//! may be no value of the enum. So only three things are used: building a topology, the objects of a *given* type among
//! package, core, PU, L2 and L3, and the CPU set of such an object or of the root. No type of that crate leaves this file.
//!
//! libhwloc ignores the affinity mask, so its answer is compared with what is online and inside the cpuset.

use hwloc2::{ObjectType, Topology};

use crate::cpuset::CpuSet;
use crate::error::Error;
use crate::machine::Machine;

/// What libhwloc says about the running machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of packages.
    pub packages: usize,
    /// Number of physical cores.
    pub cores: usize,
    /// Number of CPUs.
    pub pus: usize,
    /// Number of second-level caches.
    pub l2: usize,
    /// Number of third-level caches.
    pub l3: usize,
    /// The CPUs.
    pub cpus: CpuSet,
}

impl Counts {
    /// Asks libhwloc.
    pub fn read() -> Result<Counts, Error> {
        let failed = |what, reason: &str| Error::Hwloc {
            what,
            reason: reason.to_owned(),
        };
        let topology = Topology::new().ok_or_else(|| failed("a topology", "it could not be built"))?;
        // A type that the machine does not have comes back as an error, which counts as none.
        let count = |kind: ObjectType| topology.objects_with_type(&kind).map_or(0, |objects| objects.len());
        let set = topology
            .object_at_root()
            .cpuset()
            .ok_or_else(|| failed("the CPUs of the root", "there are none"))?;
        // The set may be infinite in principle; its last element is then negative.
        let last = usize::try_from(set.last()).map_err(|_| failed("the CPUs of the root", "the set has no end"))?;
        let cpus = (0..=last)
            .filter(|&id| u32::try_from(id).is_ok_and(|id| set.is_set(id)))
            .collect();
        Ok(Counts {
            packages: count(ObjectType::Package),
            cores: count(ObjectType::Core),
            pus: count(ObjectType::PU),
            l2: count(ObjectType::L2Cache),
            l3: count(ObjectType::L3Cache),
            cpus,
        })
    }

    /// The same figures in our own reading.
    pub fn of(machine: &Machine) -> Counts {
        Counts {
            packages: machine.packages.len(),
            cores: machine.cores.len(),
            pus: machine.usable().len(),
            l2: machine.caches_of_level(2).count(),
            l3: machine.caches_of_level(3).count(),
            cpus: machine.usable(),
        }
    }
}
