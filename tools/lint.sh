#!/bin/sh
# The shape of the house: include arrows, headers that stand alone, formatting.
set -u
cd "$(dirname "$0")/.."
bad=0
complain() {
    echo "$1"
    bad=$((bad + 1))
}

# part: the parts whose headers it may include
arrows() {
    case $1 in
    core) echo core ;;
    layout) echo "core layout" ;;
    reference) echo "core reference" ;;
    sharded) echo "core layout sharded" ;;
    reports) echo "core reports" ;;
    harness) echo "core layout reference sharded reports harness" ;;
    esac
}
for part in core layout reference sharded reports harness; do
    allowed=$(arrows $part | tr ' ' '|')
    found=$(grep -nE '#include "' $part/*.[ch] | grep -vE "#include \"($allowed)/[a-z0-9_.]+\"")
    [ -z "$found" ] || complain "include against the arrows in $part:
$found"
done

found=$(grep -lE '#include <mpi\.h>' core/* layout/* reference/* reports/* harness/* sharded/* | grep -v '^sharded/comm_mpi\.c$')
[ -z "$found" ] || complain "MPI header outside its engine: $found"
found=$(grep -lE '#include <(cuda|nccl|cublas)' core/* layout/* reference/* reports/* harness/* sharded/*)
[ -z "$found" ] || complain "GPU header outside the GPU back end: $found"
found=$(grep -nE 'ffast-math|Ofast' Makefile)
[ -z "$found" ] || complain "fast-math: $found"

headers=0
for header in core/*.h layout/*.h reference/*.h sharded/*.h reports/*.h harness/*.h; do
    case $header in *.inc.h) continue ;; esac
    headers=$((headers + 1))
    echo "#include \"$header\"" | gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -I. -fsyntax-only -x c - ||
        complain "$header does not stand alone"
done

if command -v clang-format >/dev/null; then
    files=$(git ls-files '*.c' '*.h' | grep -v '^fixtures/')
    clang-format --dry-run -Werror $files 2>&1 | head -n 20
    clang-format --dry-run -Werror $files >/dev/null 2>&1 || complain "clang-format: run clang-format -i on the files above"
else
    echo "clang-format is not installed: formatting was not checked (apt-get install clang-format)"
fi
echo "$headers headers, $bad complaints"
[ $bad = 0 ]
