#!/bin/sh
# Runs every Criterion binary of a build folder and the planted faults through the command line; the last line is
# `N passed, N failed`. A binary that tests nothing, crashes, or leaves a sanitizer report is a failure.
set -u
build=$1
export SHARDPROOF_BUILD="$build"
rm -rf "$build/sanitizer" && mkdir -p "$build/sanitizer"
logs=$(cd "$build/sanitizer" && pwd)
export ASAN_OPTIONS="log_path=$logs/asan:detect_leaks=${DETECT_LEAKS:-1}:fast_unwind_on_malloc=0"
export UBSAN_OPTIONS="print_stacktrace=1:log_path=$logs/ubsan"
export LSAN_OPTIONS="suppressions=$PWD/tools/lsan.supp:print_suppressions=0"

passed=0
failed=0
for suite in cases/unit/*/; do
    name=$(basename "$suite")
    log="$build/test/$name.log"
    timeout 900 "$build/test/$name" --color=never -j2 >"$log" 2>&1
    code=$?
    line=$(grep -a 'Synthesis: Tested:' "$log" | tail -n 1)
    tested=$(echo "$line" | sed -n 's/.*Tested: \([0-9]*\).*/\1/p')
    good=$(echo "$line" | sed -n 's/.*Passing: \([0-9]*\).*/\1/p')
    bad=$(echo "$line" | sed -n 's/.*Failing: \([0-9]*\).*/\1/p')
    if [ "${tested:-0}" = 0 ] || { [ $code != 0 ] && [ "${bad:-0}" = 0 ]; }; then
        bad=$((${bad:-0} + 1))
    fi
    passed=$((passed + ${good:-0}))
    failed=$((failed + bad))
    printf '%-12s %3d passed, %d failed\n' "$name" "${good:-0}" "$bad"
    [ "$bad" = 0 ] || tail -n 60 "$log"
done

for report in "$logs"/*; do
    [ -e "$report" ] || continue
    failed=$((failed + 1))
    echo "sanitizer report $report"
    head -n 40 "$report"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
