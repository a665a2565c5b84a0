#!/usr/bin/env bash
# mpi_check.sh: the collectives suite over Open MPI and MPICH, as 2 and 4 ranks each, with MPI as the transport and
# with MPI as the launcher alone (the ranks then talk TCP). Ends with "N passed, N failed".
# Needs: libopenmpi-dev, libmpich-dev (or mpich), libclang-dev. What is missing is NOT RUN, and said.
set -uo pipefail
cd "$(dirname "$0")/.."
base=${CARGO_TARGET_DIR:-$PWD/target}
log=$(mktemp -d); trap 'rm -rf "$log"' EXIT
passed=0 failed=0
check() { # name, command...
    local name=$1; shift
    if timeout 120 "$@" >"$log/out" 2>&1 && grep -q ' passed, 0 failed$' "$log/out"; then
        passed=$((passed + 1)); echo "ok     $name: $(grep ' ranks by ' "$log/out")"
    else
        failed=$((failed + 1)); echo "FAILED $name (status $?)"; tail -30 "$log/out"
    fi
}
for mpi in openmpi mpich; do
    cc=$(command -v mpicc.$mpi) && run=$(command -v mpirun.$mpi) || { echo "NOT RUN $mpi: not installed"; continue; }
    # One folder for each: changing MPICC alone does not rebuild.
    export CARGO_TARGET_DIR=$base/mpi-$mpi MPICC=$cc
    if ! cargo build -q --release -p azulejo-collectives --features mpi --example ring_check 2>"$log/build"; then
        failed=$((failed + 1)); echo "FAILED $mpi: it does not build"; tail -20 "$log/build"; continue
    fi
    with=$CARGO_TARGET_DIR/release/examples/ring_check
    cp "$with" "$log/with-$mpi"
    flags=()
    if [ $mpi = openmpi ]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        flags=(--oversubscribe)
    fi
    for ranks in 2 4; do
        check "$mpi, $ranks ranks, MPI carries the data" "$run" "${flags[@]}" -n $ranks "$log/with-$mpi"
    done
done
export CARGO_TARGET_DIR=$base; unset MPICC
if cargo build -q --release -p azulejo-collectives --example ring_check 2>"$log/build"; then
    for mpi in openmpi mpich; do
        run=$(command -v mpirun.$mpi) || continue
        flags=(); [ $mpi = openmpi ] && flags=(--oversubscribe)
        check "$mpi starts 4 ranks, TCP carries the data" "$run" "${flags[@]}" -n 4 "$base/release/examples/ring_check"
    done
else
    failed=$((failed + 1)); echo "FAILED: the build without MPI"; tail -20 "$log/build"
fi
# A program linked to one MPI under the other's launcher: an error that says so, not worlds of size 1.
if [ -x "$log/with-mpich" ] && command -v mpirun.openmpi >/dev/null; then
    if timeout 60 mpirun.openmpi --oversubscribe -n 2 "$log/with-mpich" >"$log/out" 2>&1; then
        failed=$((failed + 1)); echo "FAILED the other MPI's launcher was not noticed"
    elif grep -q "another MPI's mpirun" "$log/out"; then
        passed=$((passed + 1)); echo "ok     the other MPI's launcher is refused"
    else
        failed=$((failed + 1)); echo "FAILED the other MPI's launcher"; tail -20 "$log/out"
    fi
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
