#!/usr/bin/env bash
# Runs amx/tests/every_isa.rs on every instruction set: on this processor as far as it goes, and in an emulated machine where it has no
# working tiles. `--emulator` asks for the emulated run even where tiles work; `--native` leaves the emulated run out.
# The emulated run needs AZULEJO_AMX_RUNNER (default ../shared/tools/amx-run.sh): a program that executes a static binary with AMX.
# Ends with a line "N passed, N failed"; fails if a test fails or an instruction set or an 8-bit kernel was executed nowhere.
set -euo pipefail
cd "$(dirname "$0")/.."
emulator=auto
case "${1:-}" in
    --emulator) emulator=yes ;;
    --native) emulator=no ;;
    "") ;;
    *) echo "usage: tools/amx_suite.sh [--emulator|--native]" >&2; exit 2 ;;
esac
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed_to_run=0

echo "== native"
cargo test -p azulejo-amx --test every_isa -- --nocapture --test-threads=1 2>&1 | tee -a "$log" || failed_to_run=1
if [ "$emulator" = auto ]; then
    if grep -q "ISA executed: amx" "$log"; then emulator=no; else emulator=yes; fi
fi

if [ "$emulator" = yes ]; then
    runner=${AZULEJO_AMX_RUNNER:-../shared/tools/amx-run.sh}
    if [ ! -x "$runner" ]; then
        echo "no emulator: $runner is missing"
        failed_to_run=1
    else
        echo "== emulated"
        # A static binary at a fixed address; the emulated machine has one processor and no C library.
        # One thread: the emulated processor switches threads only where they block.
        RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static" \
            cargo test --target x86_64-unknown-linux-gnu -p azulejo-amx --test every_isa --no-run --message-format=json 2>/dev/null \
            | sed -n 's/.*"executable":"\([^"]*every_isa[^"]*\)".*/\1/p' > "$log.binary"
        binary=$(tail -n 1 "$log.binary"); rm -f "$log.binary"
        # The emulator flushes a difference of equal exponents in [2^-126, 2^-125) to zero: those cases are left to processors.
        "$runner" "$binary" --nocapture --test-threads=1 --skip near_zero 2>&1 | tee -a "$log" || failed_to_run=1
    fi
fi

for isa in portable avx2 avx512 amx; do
    if ! grep -q "ISA executed: $isa" "$log"; then
        echo "ISA never executed: $isa"
        failed_to_run=1
    fi
done
for kernel in portable-int8 avx2-int8-maddwd avx2-int8-vnni avx512-int8-maddwd avx512-int8-vnni amx-int8-2x2; do
    if ! grep -q "kernel executed: $kernel" "$log"; then
        echo "kernel never executed: $kernel"
        failed_to_run=1
    fi
done
# The count of both runs.
read -r passed failed < <(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed.*/\1 \2/p' "$log" \
    | awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }')
[ "$failed_to_run" = 0 ] || [ "$failed" != 0 ] || failed=1
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
