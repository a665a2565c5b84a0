//! What was asked is what the kernel reports.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use azulejo_topology::{CpuSet, Error, allowed_cpus, pin_current_thread};

/// Runs `body` on a thread of its own, so that no other test sees its affinity.
fn apart(body: impl FnOnce() + Send + 'static) {
    std::thread::spawn(body).join().unwrap();
}

#[test]
fn one_cpu_and_all_cpus_are_reported_as_asked() {
    apart(|| {
        let Ok(all) = allowed_cpus() else {
            return eprintln!("skipped: no affinity here");
        };
        for cpu in all.iter() {
            let readback = pin_current_thread(&CpuSet::single(cpu)).unwrap();
            assert!(readback.is_exact(), "{readback:?}");
        }
        assert_eq!(pin_current_thread(&all).unwrap().actual, all);
    });
}

#[test]
fn cpus_that_do_not_exist_are_an_error_and_never_a_panic() {
    apart(|| {
        let Ok(all) = allowed_cpus() else {
            return eprintln!("skipped: no affinity here");
        };
        for absent in ["1023", "1024", "2000", "60000", ""] {
            let asked: CpuSet = absent.parse().unwrap();
            let error = pin_current_thread(&asked).unwrap_err();
            assert!(matches!(&error, Error::Pin { actual, .. } if *actual == all), "{error}");
        }
    });
}

#[test]
fn a_cpu_that_does_not_exist_beside_one_that_does_shows_in_the_readback() {
    apart(|| {
        let Ok(all) = allowed_cpus() else {
            return eprintln!("skipped: no affinity here");
        };
        let mut asked = all.clone();
        asked.insert(5000);
        let readback = pin_current_thread(&asked).unwrap();
        assert!(!readback.is_exact());
        assert_eq!(readback.actual, all);
    });
}

#[test]
fn a_plan_for_the_running_machine_is_what_the_kernel_reports() {
    apart(|| {
        use azulejo_topology::{Binding, Machine, Plan, Request, apply, node_of};
        let Ok(machine) = Machine::read() else {
            return eprintln!("skipped: this system does not describe itself");
        };
        let plan = Plan::make(&machine, &Request::default(), 1).unwrap();
        let report = apply(&plan.ranks[0]);
        eprintln!("{plan}\n{report}");
        assert_eq!(report.cpus.as_ref().unwrap().actual, plan.ranks[0].process());
        match &report.memory {
            Binding::Bound(nodes) => {
                // A page touched after binding lies on one of the nodes.
                let page = vec![1u8; 1 << 20];
                if let Some(node) = node_of(&page[1 << 19..]) {
                    assert!(nodes.contains(node), "{node} not in {nodes}");
                }
            }
            Binding::Refused { .. } => assert!(report.differences.iter().any(|line| line.contains("touched first"))),
            _ => {}
        }
    });
}
