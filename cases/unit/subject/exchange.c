/* The token exchange against plain enumeration: who holds which row, in which order, and that everything comes home. */
#include "sharded/exchange.h"

#include "ranks.h"

#include "core/random.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define COLUMNS 3

struct scene {
    struct mesh mesh;
    int64_t experts, choices;
    const int64_t *tokens; /* [world] of each rank; global tokens count up over the ranks */
    int64_t favourite;     /* >= 0: nobody chooses experts above this one */
};

static int64_t first_token(const struct scene *scene, int rank) {
    int64_t first = 0;
    for (int before = 0; before < rank; before++)
        first += scene->tokens[before];
    return first;
}

/* Choice c of a global token: distinct for the choices of one token. */
static int64_t chosen(const struct scene *scene, int64_t token, int64_t choice) {
    int64_t range = scene->favourite >= 0 ? scene->favourite + 1 : scene->experts;
    return (random_below(7, 1, (uint64_t)token, range) + choice * (range / scene->choices)) % range;
}

static double row_code(int64_t token, int64_t expert, int64_t column) {
    return (double)((token * 64 + expert) * 8 + column);
}

static int column_of(const struct scene *scene, int rank) {
    return mesh_coordinate(&scene->mesh, mesh_axis(&scene->mesh, "fsdp"), rank);
}

/* The rows that a rank must hold, one after the other: experts ascending, then global tokens of its column. */
static int64_t expect_rows(const struct scene *scene, int rank, const double *got, const int64_t *begin) {
    int world = mesh_world(&scene->mesh), ep = mesh_axis_size(&scene->mesh, "ep");
    int64_t local = scene->experts / ep, rows = 0;
    int64_t first = mesh_coordinate(&scene->mesh, mesh_axis(&scene->mesh, "ep"), rank) * local;
    for (int64_t e = first; e < first + local; e++) {
        cr_expect_eq(begin[e - first], rows);
        for (int source = 0; source < world; source++)
            for (int64_t t = 0; column_of(scene, source) == column_of(scene, rank) && t < scene->tokens[source]; t++)
                for (int64_t c = 0; c < scene->choices; c++) {
                    int64_t token = first_token(scene, source) + t;
                    if (chosen(scene, token, c) != e)
                        continue;
                    for (int64_t j = 0; j < COLUMNS; j++)
                        cr_expect_eq(got[rows * COLUMNS + j], row_code(token, 0, j), "rank %d expert %d token %d", rank,
                                     (int)e, (int)token);
                    rows++;
                }
    }
    cr_expect_eq(begin[local], rows);
    return rows;
}

/* What the experts answer: each row tells its expert and token. */
static void answer(const struct scene *scene, int rank, const struct route *route, double *rows) {
    int64_t local = scene->experts / mesh_axis_size(&scene->mesh, "ep");
    int64_t first = mesh_coordinate(&scene->mesh, mesh_axis(&scene->mesh, "ep"), rank) * local;
    for (int64_t e = 0; e < local; e++)
        for (int64_t i = route->begin[e]; i < route->begin[e + 1]; i++)
            for (int64_t j = 0; j < COLUMNS; j++)
                rows[i * COLUMNS + j] += (double)((first + e) * 8);
}

static enum status there_and_back(struct comm *comm, void *context) {
    const struct scene *scene = context;
    const struct job job = {0};
    struct subject subject = bare_subject(comm, &scene->mesh, DTYPE_F64, &job);
    struct route route = {0};
    int rank = comm_rank(comm);
    int64_t tokens = scene->tokens[rank], first = first_token(scene, rank), n = tokens * scene->choices;
    int64_t *index = calloc((size_t)n + 1, sizeof *index);
    double *table = calloc((size_t)(tokens * COLUMNS) + 1, sizeof *table);
    double *home = calloc((size_t)(n * COLUMNS) + 1, sizeof *home);
    for (int64_t i = 0; i < n; i++)
        index[i] = chosen(scene, first + i / scene->choices, i % scene->choices);
    for (int64_t i = 0; i < tokens * COLUMNS; i++)
        table[i] = row_code(first + i / COLUMNS, 0, i % COLUMNS);
    TRY(route_make(&route, &subject, "experts", index, tokens, scene->choices, scene->experts));
    double *rows = calloc((size_t)(route.arrived * COLUMNS) + 1, sizeof *rows);
    TRY(route_to_experts(&route, &subject, "experts", table, route.token, COLUMNS, rows));
    cr_expect_eq(expect_rows(scene, rank, rows, route.begin), route.arrived);
    answer(scene, rank, &route, rows);
    TRY(route_to_sources(&route, &subject, "experts", PHASE_FORWARD, rows, COLUMNS, home));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < COLUMNS; j++)
            cr_expect_eq(home[i * COLUMNS + j], row_code(first + i / scene->choices, index[i], j),
                         "rank %d row %d column %d", rank, (int)i, (int)j);
    /* the way of the gradients: every copy has a row of its own */
    TRY(route_to_experts(&route, &subject, "experts", home, route.choice, COLUMNS, rows));
    TRY(route_to_sources(&route, &subject, "experts", PHASE_FORWARD, rows, COLUMNS, home));
    for (int64_t i = 0; i < n; i++)
        cr_expect_eq(home[i * COLUMNS], row_code(first + i / scene->choices, index[i], 0));
    route_free(subject.ops, &route);
    comm_groups_free(comm);
    free(rows);
    free(home);
    free(table);
    free(index);
    return STATUS_OK;
}

static const int64_t uneven[] = {4, 1, 0, 5};

Test(exchange, one_rank) {
    struct scene scene = {mesh_of("ep", 1, "fsdp", 1), 8, 2, uneven, -1};
    run_ranks(1, there_and_back, &scene);
}

/* Eight experts on two ranks: regrouping is not its own inverse. */
Test(exchange, two_ranks) {
    struct scene scene = {mesh_of("ep", 2, "fsdp", 1), 8, 2, uneven, -1};
    run_ranks(2, there_and_back, &scene);
}

Test(exchange, rank_without_tokens) {
    struct scene scene = {mesh_of("ep", 4, "fsdp", 1), 12, 3, uneven, -1};
    run_ranks(4, there_and_back, &scene);
}

Test(exchange, two_columns) {
    struct scene scene = {mesh_of("ep", 2, "fsdp", 2), 6, 2, uneven, -1};
    run_ranks(4, there_and_back, &scene);
}

Test(exchange, axes_the_other_way_round) {
    struct scene scene = {mesh_of("fsdp", 2, "ep", 2), 6, 2, uneven, -1};
    run_ranks(4, there_and_back, &scene);
}

/* Ranks whose experts nobody chooses. */
Test(exchange, experts_without_tokens) {
    struct scene scene = {mesh_of("ep", 4, "fsdp", 1), 12, 2, uneven, 3};
    run_ranks(4, there_and_back, &scene);
}

Test(exchange, no_tokens_at_all) {
    static const int64_t none[] = {0, 0, 0, 0};
    struct scene scene = {mesh_of("ep", 2, "fsdp", 2), 6, 2, none, -1};
    run_ranks(4, there_and_back, &scene);
}
