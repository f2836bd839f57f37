#!/bin/sh
# A fixed sample of 20 cases on local ranks under valgrind's memcheck. Valgrind knows no AVX-512, so the kernels run as AVX2 (the same bits).
set -u
build=$1
command -v valgrind >/dev/null || {
    echo "make valgrind needs valgrind (apt-get install valgrind)" >&2
    exit 1
}
log="$build/valgrind"
rm -rf "$log" && mkdir -p "$log"
export SHARDPROOF_ISA=avx2
ran=0
failed=0
for glob in 'tiny_ada?ep2.fsdp2*' 'tiny_bob?ep2.fsdp1*' 'tiny_cyd?ep1.fsdp2*' 'tiny_dov?ep1.fsdp3*' 'tiny_eve?ep2.fsdp2*' 'uneven_fay?ep2.fsdp2*' \
    'uneven_gus?ep1.fsdp3*' 'made_model_random?ep2.fsdp2*' 'made_model_index?ep2.fsdp2*' 'evaluate_base_and_disabled?ep2.fsdp2*'; do
    valgrind -q --trace-children=yes --error-exitcode=9 --errors-for-leak-kinds=definite --leak-check=full --log-file="$log/%p" \
        "$build/shardproof" run --filter "$glob" >"$log/out" 2>&1 || failed=$((failed + 1))
    ran=$((ran + $(sed -n 's/^\([0-9]*\) passed.*/\1/p' "$log/out")))
    rm -f "$log/out"
done
reports=$(find "$log" -type f -size +0 | wc -l)
echo "$ran cases under valgrind, $failed runs failed, $reports reports in $log"
[ $failed = 0 ] && [ "$reports" = 0 ] && [ "$ran" -ge 20 ]
