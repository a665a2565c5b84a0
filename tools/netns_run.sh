#!/usr/bin/env bash
# netns_run.sh: four network namespaces as four hosts on one machine, each with its own address behind a bridge; the
# collectives suite runs over them, one rank a host. Ends with "N passed, N failed"; where the kernel or the rights do
# not allow namespaces it prints NOT RUN and why.
set -uo pipefail
cd "$(dirname "$0")/.."
id=az$$
hosts=4
work=$(mktemp -d)
cleanup() {
    for i in $(seq $hosts); do
        # Only what runs inside the namespaces made here.
        ip netns pids $id-$i 2>/dev/null | xargs -r kill -9 2>/dev/null
        ip netns del $id-$i 2>/dev/null
    done
    ip link del $id-br 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
not_run() { echo "NOT RUN: $1"; echo "0 passed, 0 failed"; exit 0; }

command -v ip >/dev/null || not_run "the command ip is missing"
reason=$( (ip netns add $id-1 && ip netns del $id-1) 2>&1) || not_run "network namespaces are not permitted: $reason"
reason=$(ip link add $id-br type bridge 2>&1 && ip link set $id-br up 2>&1) || not_run "no bridge: $reason"
for i in $(seq $hosts); do
    reason=$( { ip netns add $id-$i &&
        ip link add $id-v$i type veth peer name eth0 netns $id-$i &&
        ip link set $id-v$i master $id-br up &&
        ip -n $id-$i addr add 10.77.0.$i/24 dev eth0 &&
        ip -n $id-$i link set eth0 up && ip -n $id-$i link set lo up; } 2>&1) || not_run "host $i: $reason"
done

cargo build -q --release -p azulejo-collectives --example ring_check || { echo "0 passed, 1 failed"; exit 1; }
program=${CARGO_TARGET_DIR:-target}/release/examples/ring_check
export AZULEJO_SECRET; AZULEJO_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
passed=0 failed=0

start() { # rank: one rank on its host, as torchrun would describe it
    ip netns exec $id-$(($1 + 1)) env RANK=$1 WORLD_SIZE=$hosts LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
        MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 "$program" >"$work/out$1" 2>&1 &
    pids[$1]=$!
}
report() { # name, good?
    if [ "$2" = 0 ]; then passed=$((passed + 1)); echo "ok     $1"; else failed=$((failed + 1)); echo "FAILED $1"; tail -5 "$work"/out*; fi
}

# The suite, and who listens where while it starts.
for rank in $(seq 0 $((hosts - 1))); do start $rank; done
bad=0; for pid in "${pids[@]}"; do wait "$pid" || bad=1; done
grep -q ' passed, 0 failed$' "$work/out0" || bad=1
report "the suite over four hosts: $(grep ' ranks by ' "$work/out0")" $bad

# The name of a host must not resolve to loopback: refused with the reason.
mkdir -p "$work/etc"; echo "127.0.1.1 headnode" >"$work/etc/hosts"
unshare -m sh -c "mount --bind '$work/etc/hosts' /etc/hosts && exec ip netns exec $id-1 env RANK=0 WORLD_SIZE=$hosts \
    LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=headnode MASTER_PORT=29500 '$program'" >"$work/out0" 2>&1
bad=1; grep -q 'other nodes cannot reach' "$work/out0" && bad=0
report "a name that means loopback is refused" $bad

# A cable is cut while ranks wait for each other: every other rank names the rank behind it.
export RING_CHECK_FOREVER=1
for rank in $(seq 0 $((hosts - 1))); do start $rank; done
for try in $(seq 100); do grep -q 'under way' "$work/out0" && break; sleep 0.1; done
began=$(date +%s)
ip link set $id-v4 down
bad=0; for rank in 0 1 2; do wait "${pids[$rank]}" && bad=1; grep -q 'rank 3 ' "$work/out$rank" || bad=1; done
took=$(($(date +%s) - began)); [ $took -le 11 ] || bad=1
report "a cut cable: all others name rank 3 within 10 s (took $took s)" $bad
wait "${pids[3]}"
ip link set $id-v4 up

# A rank is killed, a rank is frozen.
for signal in KILL STOP; do
    for rank in $(seq 0 $((hosts - 1))); do start $rank; done
    for try in $(seq 100); do grep -q 'under way' "$work/out0" && break; sleep 0.1; done
    began=$(date +%s)
    ip netns pids $id-3 | xargs -r kill -$signal
    bad=0; for rank in 0 1 3; do wait "${pids[$rank]}" && bad=1; grep -q 'rank 2 ' "$work/out$rank" || bad=1; done
    took=$(($(date +%s) - began)); [ $took -le 11 ] || bad=1
    report "SIG$signal on rank 2: all others name it within 10 s (took $took s)" $bad
    ip netns pids $id-3 | xargs -r kill -KILL
    wait "${pids[2]}" 2>/dev/null
done

echo "$passed passed, $failed failed"
[ $failed = 0 ]
