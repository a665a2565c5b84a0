#!/usr/bin/env bash
# Discovery, fork-join against rayon and OpenMP, and oversubscribed throughput. Needs gcc for the OpenMP program.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
gcc -O2 -fopenmp topology/benches/openmp.c -o "$work/openmp"
cargo bench -q -p azulejo-topology --bench topology
# Threads pinned as the team's are, and spinning between regions as its are.
OMP_PROC_BIND=close OMP_PLACES=threads OMP_WAIT_POLICY=active "$work/openmp"
