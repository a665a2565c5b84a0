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
