/* Memory, choice of the instruction set, ties, empty and masked places, NaN that must not leak. */
#include "run.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define each_isa(i) (int i = 0; i < isa_count(); i++)

static bool same_bits(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static double *many(int64_t count, int stream) {
    double *x = isa_at(0)->allocate((size_t)count * sizeof *x);
    cr_assert(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = number_at(stream, i);
    return x;
}

Test(edges, memory_is_born_nan_and_moves) {
    for
        each_isa(i) {
            const struct ops *ops = isa_at(i);
            double *x = ops->allocate(3 * sizeof *x), host[3] = {1, 2, 3}, back[3] = {0};
            cr_assert(isnan(x[0]) && isnan(x[1]) && isnan(x[2]));
            cr_assert((uintptr_t)x % 64 == 0);
            ops->to_device(x, host, sizeof host);
            ops->to_host(back, x, sizeof back);
            cr_assert(back[0] == 1 && back[1] == 2 && back[2] == 3);
            ops->zero(x, 2 * sizeof *x);
            cr_assert(same_bits(x[0], 0) && same_bits(x[1], 0) && x[2] == 3);
            ops->copy(x + 1, x + 2, sizeof *x);
            cr_assert(x[1] == 3);
            void *empty = ops->allocate(0);
            cr_assert(empty);
            ops->copy(empty, empty, 0);
            ops->release(empty);
            ops->release(x);
            ops->release(NULL);
            cr_assert_null(ops->allocate(SIZE_MAX));
        }
}

Test(edges, instruction_set_by_name_and_environment) {
    cr_assert_str_eq(ops_cpu_named("plain")->name, "cpu plain");
    cr_assert_null(ops_cpu_named("sse9"));
    cr_assert_null(ops_cpu_named(""));
    unsetenv("SHARDPROOF_ISA");
    cr_assert_eq(ops_cpu(), isa_at(isa_count() - 1), "the best one");
    setenv("SHARDPROOF_ISA", "plain", 1);
    cr_assert_eq(ops_cpu(), ops_cpu_named("plain"));
    setenv("SHARDPROOF_ISA", "avx1024", 1);
    cr_assert_null(ops_cpu());
    unsetenv("SHARDPROOF_ISA");
}

Test(edges, topk_falls_and_ties_go_to_the_lower_index) {
    const double x[] = {1,    3,   3,         -1, 3,    1,  2,   2,  2, 2,   2, 2,
                        -0.0, 0.0, -INFINITY, 0,  -0.0, -1, NAN, -2, 5, NAN, 5, -INFINITY};
    const int64_t want[] = {1, 2, 4, 0, 0, 1, 2, 3, 0, 1, 3, 4, 2, 4, 1, 5};
    for
        each_isa(i) {
            int64_t got[16];
            isa_at(i)->topk(DTYPE_F64, 4, 6, 4, x, got);
            for (int c = 0; c < 12; c++)
                cr_assert_eq(got[c], want[c], "choice %d: %d, want %d", c, (int)got[c], (int)want[c]);
            const double fall[] = {5, 5, -2, -INFINITY}; /* NaN last */
            for (int c = 0; c < 4; c++)
                cr_assert(x[18 + got[12 + c]] == fall[c], "choice %d: %d", c, (int)got[12 + c]);
            isa_at(i)->topk(DTYPE_F64, 1, 6, 6, x + 18, got);
            cr_assert(got[4] == 0 && got[5] == 3, "NaN, the lower index first");
        }
}

Test(edges, combine_adds_in_ascending_expert_number) {
    /* 1e16 + 1 - 1e16 differs with the order: experts 2 (1), 5 (-1e16), 7 (1e16) give (1 - 1e16) + 1e16 = 0 or 2 */
    const double output[] = {1e16, 1, -1e16}, ones[] = {1, 1, 1};
    const int64_t index[] = {7, 2, 5}, other[] = {5, 7, 2};
    const double want = (1 + -1e16) + 1e16, want_other = (-1e16 + 1e16) + 1;
    cr_assert(want != want_other);
    for
        each_isa(i) {
            double out;
            isa_at(i)->combine(DTYPE_F64, 1, 3, 1, index, NULL, output, &out);
            cr_assert(same_bits(out, want), "%g", out);
            isa_at(i)->combine(DTYPE_F64, 1, 3, 1, index, ones, output, &out);
            cr_assert(same_bits(out, want), "%g", out);
            const double turned[] = {-1e16, 1, 1e16}; /* expert 5: -1e16, 7: 1, 2: 1e16: 1e16 - 1e16 + 1 */
            isa_at(i)->combine(DTYPE_F64, 1, 3, 1, other, NULL, turned, &out);
            cr_assert(same_bits(out, 1), "%g", out);
            const int64_t twice[] = {4, 3, 4}; /* the same expert twice: in the order of the choices */
            isa_at(i)->combine(DTYPE_F64, 1, 3, 1, twice, NULL, output, &out);
            cr_assert(same_bits(out, (1 + 1e16) + -1e16), "%g", out);
            isa_at(i)->combine(DTYPE_F64, 1, 0, 1, index, NULL, output, &out);
            cr_assert(same_bits(out, 0));
        }
}

Test(edges, swiglu_saturates) {
    const double gate[] = {-INFINITY, -1000, 1000, -0.0, 0, NAN}, up[] = {1, 1, 1, 1, 1, 1};
    for
        each_isa(i) {
            double h[6];
            float gate_f[6], up_f[6], h_f[6];
            for (int j = 0; j < 6; j++) {
                gate_f[j] = (float)gate[j];
                up_f[j] = 1;
            }
            isa_at(i)->swiglu(DTYPE_F64, 1, 6, gate, 6, up, 6, h);
            isa_at(i)->swiglu(DTYPE_F32, 1, 6, gate_f, 6, up_f, 6, h_f);
            cr_assert(same_bits(h[1], -0.0) && h[2] == 1000 && same_bits(h[3], -0.0) && same_bits(h[4], 0));
            cr_assert(h_f[1] == 0 && h_f[2] == 1000 && h_f[3] == 0 && h_f[4] == 0);
            cr_assert(isnan(h[0]) && isnan(h[5]) && isnan(h_f[5]), "-inf / inf is no number; NaN stays");
        }
}

Test(edges, softmax_of_large_numbers) {
    const double x[] = {1e300, -1e300, 1e300, -INFINITY}, nan[] = {0, NAN, 1, 2};
    for
        each_isa(i) {
            double y[4];
            isa_at(i)->softmax(DTYPE_F64, 1, 4, x, y);
            cr_assert(y[0] == 0.5 && same_bits(y[1], 0) && y[2] == 0.5 && same_bits(y[3], 0));
            isa_at(i)->softmax(DTYPE_F64, 1, 4, nan, y);
            cr_assert(isnan(y[0]) && isnan(y[1]) && isnan(y[2]) && isnan(y[3]), "a NaN spoils its row");
        }
}

Test(edges, a_nan_spoils_its_own_row_only) {
    enum {
        ROWS = 17,
        N = 19
    };
    for
        each_isa(i) {
            const struct ops *ops = isa_at(i);
            double *x = many(ROWS * N, 1), *clean = many(ROWS * N, 2), *y = many(ROWS * N, 3);
            double g[N], inverse[ROWS];
            memcpy(g, clean, sizeof g);
            for (int kind = 0; kind < 2; kind++) {
                for (int spoilt = 0; spoilt < 2; spoilt++) {
                    x[9 * N + 16] = spoilt ? NAN : 1;
                    if (kind)
                        ops->softmax(DTYPE_F64, ROWS, N, x, spoilt ? y : clean);
                    else
                        ops->rms_norm(DTYPE_F64, ROWS, N, 1e-6, x, g, inverse, spoilt ? y : clean);
                }
                for (int j = 0; j < ROWS * N; j++)
                    cr_assert(j / N == 9 ? isnan(y[j]) : same_bits(y[j], clean[j]), "row %d", j / N);
            }
            ops->release(y);
            ops->release(clean);
            ops->release(x);
        }
}

enum {
    B = 2,
    T = 37,
    HEADS = 4,
    KV = 2,
    D = 6,
    Q = B * T * HEADS * D,
    K = B * T * KV * D,
    SQUARE = B * HEADS * T * T
};

/* Tokens from `from` on are NaN: nothing before them may notice. */
Test(edges, attention_does_not_look_ahead) {
    enum {
        FROM = 33
    };
    for
        each_isa(i) {
            const struct ops *ops = isa_at(i);
            double *q = many(Q, 1), *k = many(K, 2), *v = many(K, 3), *p[2], *scores[2], *context[2];
            for (int spoilt = 0; spoilt < 2; spoilt++) {
                p[spoilt] = many(SQUARE, 4);
                scores[spoilt] = many(SQUARE, 5);
                context[spoilt] = many(Q, 6);
                for (int64_t j = 0; j < Q && spoilt; j++)
                    if (j / (HEADS * D) % T >= FROM)
                        q[j] = k[j / 2] = v[j / 2] = NAN;
                ops->attention(DTYPE_F64, B, T, HEADS, KV, D, q, k, v, scores[spoilt], p[spoilt], context[spoilt]);
            }
            for (int64_t j = 0; j < Q; j++)
                cr_assert(j / (HEADS * D) % T >= FROM ? isnan(context[1][j]) : same_bits(context[0][j], context[1][j]));
            for (int64_t j = 0; j < SQUARE; j++) {
                int64_t t = j / T % T, s = j % T;
                if (s > t)
                    cr_assert(same_bits(scores[1][j], 0) && same_bits(p[1][j], 0), "0 behind the diagonal");
                else if (t < FROM)
                    cr_assert(same_bits(scores[0][j], scores[1][j]) && same_bits(p[0][j], p[1][j]));
            }
            for (int spoilt = 0; spoilt < 2; spoilt++) {
                ops->release(context[spoilt]);
                ops->release(scores[spoilt]);
                ops->release(p[spoilt]);
            }
            ops->release(v);
            ops->release(k);
            ops->release(q);
        }
}

/* What lies behind the diagonal of the probabilities is not read. */
Test(edges, attention_backward_reads_the_triangle_only) {
    for
        each_isa(i) {
            const struct ops *ops = isa_at(i);
            double *q = many(Q, 1), *k = many(K, 2), *v = many(K, 3), *dc = many(Q, 4), *p = many(SQUARE, 5);
            double *out[2][5];
            const int64_t count[5] = {SQUARE, SQUARE, Q, K, K};
            for (int spoilt = 0; spoilt < 2; spoilt++) {
                for (int o = 0; o < 5; o++)
                    out[spoilt][o] = many(count[o], 6);
                for (int64_t j = 0; j < SQUARE && spoilt; j++)
                    if (j % T > j / T % T)
                        p[j] = NAN;
                double **to = out[spoilt];
                ops->attention_backward(DTYPE_F64, B, T, HEADS, KV, D, q, k, v, p, dc, to[0], to[1], to[2], to[3],
                                        to[4]);
            }
            for (int o = 0; o < 5; o++) {
                cr_assert(memcmp(out[0][o], out[1][o], (size_t)count[o] * sizeof(double)) == 0, "%s output %d",
                          ops->name, o);
                ops->release(out[0][o]);
                ops->release(out[1][o]);
            }
            double *all[] = {q, k, v, dc, p};
            for (int a = 0; a < 5; a++)
                ops->release(all[a]);
        }
}

Test(edges, tokens_without_a_label_cost_nothing) {
    enum {
        TOKENS = 4,
        V = 5
    };
    const int64_t labels[] = {3, -100, 2, -100};
    for
        each_isa(i) {
            const struct ops *ops = isa_at(i);
            double *logits = many(TOKENS * V, 1), *d = many(TOKENS * V, 2), lse[3], loss[3];
            ops->cross_entropy(DTYPE_F64, 1, TOKENS, V, logits, labels, lse, loss);
            cr_assert(same_bits(loss[0], 0) && loss[1] > 0 && same_bits(loss[2], 0));
            cr_assert(same_bits(loss[1], lse[1] - logits[V + 2]));
            ops->cross_entropy_backward(DTYPE_F64, 1, TOKENS, V, logits, labels, lse, d);
            for (int j = 0; j < TOKENS * V; j++)
                cr_assert(j / V == 1 ? d[j] != 0 : same_bits(d[j], 0), "d_logits[%d,%d] = %g", j / V, j % V, d[j]);
            ops->cross_entropy(DTYPE_F64, 4, 1, V, logits, labels, lse, loss); /* one token: nothing to predict */
            ops->cross_entropy_backward(DTYPE_F64, 4, 1, V, logits, labels, lse, d);
            for (int j = 0; j < TOKENS * V; j++)
                cr_assert(same_bits(d[j], 0));
            ops->release(d);
            ops->release(logits);
        }
}

Test(edges, outputs_may_be_inputs_where_the_table_says_so) {
    for
        each_isa(i) {
            double a[19], b[19], sum[19];
            for (int j = 0; j < 19; j++) {
                a[j] = number_at(1, j);
                b[j] = number_at(2, j);
            }
            isa_at(i)->add(DTYPE_F64, 19, sum, a, b);
            isa_at(i)->add(DTYPE_F64, 19, a, a, b);
            cr_assert(memcmp(a, sum, sizeof a) == 0);
        }
}
