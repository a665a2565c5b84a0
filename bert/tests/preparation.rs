//! Data are prepared on all CPUs of the process, although the thread that asks is pinned to one.

use azulejo_bert::runtime::preparation_threads;
use azulejo_topology::{CpuSet, allowed_cpus, pin_current_thread};

#[test]
fn threads_that_prepare_data_roam_over_all_cpus() {
    let all = allowed_cpus().unwrap();
    let one = CpuSet::single(all.first().unwrap());
    pin_current_thread(&one).unwrap();
    assert!(preparation_threads(None, &all));
    let seen = rayon::broadcast(|_| allowed_cpus().unwrap());
    assert_eq!(seen, vec![all.clone(); all.len()]);
    assert_eq!(allowed_cpus().unwrap(), one, "the caller stays where it was");
    assert!(!preparation_threads(Some(1), &all), "they are started once");
}
