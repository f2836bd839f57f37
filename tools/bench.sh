#!/bin/sh
# Measured speeds on this machine. Whole processes, launch to verdict; the best and the median of several runs.
set -u
build=$1
shardproof="$build/shardproof"

seconds() { # of one run of a command
    start=$(date +%s.%N)
    "$@" >/dev/null 2>&1 || echo "failed: $*" >&2
    end=$(date +%s.%N)
    echo "$start $end" | awk '{printf "%.3f\n", $2 - $1}'
}

measure() { # label, limit in seconds, runs, command...
    label=$1
    limit=$2
    runs=$3
    shift 3
    i=0
    while [ $i -lt "$runs" ]; do
        seconds "$@"
        i=$((i + 1))
    done | sort -n | awk -v label="$label" -v limit="$limit" '
        {t[NR] = $1}
        END {m = t[int((NR + 1) / 2)]; printf "%-44s best %7.3f s  median %7.3f s  %.2f of %g s allowed\n", label, t[1], m, m / limit, limit}'
}

measure "tiny, 8 local ranks, launch to verdict" 0.3 7 "$shardproof" run tools/bench/tiny_8_ranks.yaml
measure "tiny, 64 local ranks" 3 5 "$shardproof" run tools/bench/tiny_64_ranks.yaml
measure "default suite, local" 20 2 "$shardproof" run
measure "default suite, mpi" 90 1 "$shardproof" run --engine mpi
for bench in "$build"/bench/*; do
    [ -x "$bench" ] && [ -f "$bench" ] && echo "--- $(basename "$bench")" && "$bench"
done
