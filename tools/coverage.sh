#!/bin/sh
# Line coverage of core, layout, reference and sharded over the whole of make test (unit tests, rank programs, command line): HTML in
# BUILD/html, the lines that nothing ran in BUILD/uncovered.txt. Needs lcov.
set -u
build=$1
command -v lcov >/dev/null && command -v genhtml >/dev/null || {
    echo "make coverage needs lcov (apt-get install lcov)" >&2
    exit 1
}
find "$build" -name '*.gcda' -delete
tools/test.sh "$build" | tail -n 1
lcov -q -c -d "$build/obj" -b . -o "$build/all.info" --no-external 2>/dev/null
lcov -q -e "$build/all.info" "*/core/*" "*/layout/*" "*/reference/*" "*/sharded/*" -o "$build/parts.info" 2>/dev/null
lcov -q -r "$build/parts.info" "*/cases/*" -o "$build/parts.info" 2>/dev/null
genhtml -q "$build/parts.info" -o "$build/html" >/dev/null 2>&1
awk -F: '/^SF:/ {file = $2} /^DA:/ {split($2, d, ","); if (d[2] == 0) print file ":" d[1]}' "$build/parts.info" >"$build/uncovered.txt"
for part in core layout reference sharded; do
    awk -F: -v part="/$part/" '/^SF:/ {on = index($2, part) > 0} /^DA:/ && on {split($2, d, ","); all++; hit += d[2] > 0}
        END {printf "%-10s %5d of %5d lines, %.1f %%\n", substr(part, 2, length(part) - 2), hit, all, all ? 100 * hit / all : 0}' "$build/parts.info"
done
echo "HTML: $build/html/index.html; lines that nothing ran: $build/uncovered.txt"
