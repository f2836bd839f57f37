#include "fake.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void ok(enum status status) {
    cr_assert_eq(status, STATUS_OK, "%s", status_note());
}

void fake_make(struct fake *fake, int ep, int fsdp, enum dtype dtype) {
    fake_make_of(fake, ep, fsdp, dtype, NULL);
}

void fake_make_of(struct fake *fake, int ep, int fsdp, enum dtype dtype, void (*change)(struct job *job)) {
    static const int micros[] = {0, 1, 2};
    *fake = (struct fake){0};
    struct test_case *one = &fake->one;
    struct job *job = &one->job;
    one->name = "fake";
    one->limit = 10;
    one->mesh = (struct mesh){.axes = 2, .name = {"ep", "fsdp"}, .size = {ep, fsdp}};
    ok(checkpoint_open(&job->model, TINY "/model"));
    job->dtype = dtype;
    job->slots = 2;
    job->max_rank = 3;
    job->tenants = 1;
    job->tenant = calloc(1, sizeof *job->tenant);
    strcpy(job->tenant[0].name, "ada");
    ok(adapter_open(&job->tenant[0].adapter, TINY "/adapters/ada", checkpoint_inventory(job->model)));
    job->optimizer = (struct optimizer){.kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9};
    ok(batches_open(&job->micro, &job->micros, TINY "/batches.safetensors", checkpoint_config(job->model)->vocab));
    fake->action[0] = (struct action){.kind = ACTION_ACQUIRE, .tenant = 0};
    fake->action[1] =
        (struct action){.kind = ACTION_TRAIN, .opens = true, .tenant = 0, .micros = 1, .micro = micros, .step = 0};
    fake->action[2] = (struct action){
        .kind = ACTION_TRAIN, .opens = true, .tenant = 0, .micros = 2, .micro = micros + 1, .step = 1, .own_step = 1};
    fake->action[3] =
        (struct action){.kind = ACTION_EVALUATE, .opens = true, .tenant = -1, .micros = 1, .micro = micros, .step = 2};
    fake->action[4] = (struct action){.kind = ACTION_EXPORT, .tenant = 0, .step = 3, .own_step = 2};
    job->actions = 5;
    job->action = fake->action;
    job->steps = 3;
    if (change)
        change(job);
    ok(judge_make(&fake->judge, one, &fake->report));
    ok(judge_owed(fake->judge));
    ok(trace_make(&fake->trace, ep * fsdp));
}

void fake_free(struct fake *fake) {
    trace_free(&fake->trace);
    judge_free(fake->judge);
    report_case_free(&fake->report);
    adapter_free(&fake->one.job.tenant[0].adapter);
    free(fake->one.job.tenant);
    batches_free(fake->one.job.micro, fake->one.job.micros);
    checkpoint_close(fake->one.job.model);
    for (int i = 0; i < fake->count; i++)
        free(fake->memory[i]);
    free(fake->memory);
}

static void *keep(struct fake *fake, void *memory) {
    if (fake->count == fake->room) {
        fake->room = fake->room ? 2 * fake->room : 1024;
        fake->memory = realloc(fake->memory, (size_t)fake->room * sizeof *fake->memory);
    }
    cr_assert(memory && fake->memory);
    return fake->memory[fake->count++] = memory;
}

/* ---- cutting */

static int64_t ceiling(int64_t n, int64_t k) {
    return (n + k - 1) / k;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

struct recorder {
    struct fake *fake;
    const char *without;
    int without_rank;
    int64_t choices[8][4096]; /* [layer][token*k + choice] of the micro-batch at hand */
};

static struct tensor new_record(struct recorder *recorder, enum dtype dtype, int ndim, const int64_t *shape) {
    struct tensor tensor;
    ok(tensor_make(&tensor, dtype, ndim, shape));
    keep(recorder->fake, tensor.data);
    tensor.owns = false;
    return tensor;
}

static void add(struct recorder *recorder, int rank, const char *name, const struct tensor *tensor) {
    bool skipped = recorder->without && strcmp(recorder->without, name) == 0;
    if (skipped && (recorder->without_rank < 0 || recorder->without_rank == rank))
        return;
    ok(trace_add(&recorder->fake->trace, rank, keep(recorder->fake, strdup(name)), tensor));
}

static int64_t columns_of(const struct value *value) {
    int64_t columns = 1;
    for (int d = 1; d < value->ndim; d++)
        columns *= value->shape[d];
    return columns;
}

/* Rows of dim 0 chosen one by one. */
static void add_rows(struct recorder *recorder, int rank, const char *name, enum dtype dtype, const struct value *value,
                     const int64_t *rows, int64_t count) {
    int64_t shape[VALUE_MAX_DIMS], columns = columns_of(value);
    memcpy(shape, value->shape, sizeof shape);
    shape[0] = count;
    struct tensor tensor = new_record(recorder, dtype, value->ndim, shape);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < columns; j++)
            tensor_set(&tensor, i * columns + j, value->x[rows[i] * columns + j]);
    add(recorder, rank, name, &tensor);
}

static void add_whole(struct recorder *recorder, int rank, const char *name, enum dtype dtype,
                      const struct value *value) {
    struct tensor tensor = new_record(recorder, dtype, value->ndim, value->shape);
    for (int64_t i = 0; i < tensor_elements(&tensor); i++)
        tensor_set(&tensor, i, value->x[i]);
    add(recorder, rank, name, &tensor);
}

/* Sequences of a rank: torch.chunk over the world. */
static void sequences_of(const struct fake *fake, int rank, int64_t sequences, int64_t *begin, int64_t *end) {
    int64_t piece = ceiling(sequences, fake->trace.ranks);
    *begin = least(rank * piece, sequences);
    *end = least(*begin + piece, sequences);
}

static void add_tokens(struct recorder *recorder, const char *name, enum dtype dtype, const struct point *point,
                       const struct value *value) {
    const struct micro_batch *micro = &recorder->fake->one.job.micro[point->micro];
    int64_t per = value->shape[0] / micro->sequences, begin, end; /* rows of a sequence: T, or 1 */
    int64_t rows[4096];
    for (int rank = 0; rank < recorder->fake->trace.ranks; rank++) {
        sequences_of(recorder->fake, rank, micro->sequences, &begin, &end);
        for (int64_t i = begin * per; i < end * per; i++)
            rows[i - begin * per] = i;
        add_rows(recorder, rank, name, dtype, value, rows, (end - begin) * per);
    }
}

/* Rank (p, f): experts [p*E/ep, (p+1)*E/ep), tokens of column f, by (expert, token). A row's number in the whole form
 * counts all rows before it. */
static void add_exchanged(struct recorder *recorder, const char *name, enum dtype dtype, const struct point *point,
                          const struct value *value) {
    const struct fake *fake = recorder->fake;
    const struct micro_batch *micro = &fake->one.job.micro[point->micro];
    const int64_t *choices = recorder->choices[point->layer];
    int64_t E = 12, k = 3, T = micro->tokens, rows[4096], begin, end;
    int ep = fake->one.mesh.size[0], fsdp = fake->one.mesh.size[1];
    for (int rank = 0; rank < fake->trace.ranks; rank++) {
        int64_t row = 0, count = 0, p = rank / fsdp;
        for (int64_t e = 0; e < E; e++)
            for (int64_t n = 0; n < micro->sequences * T; n++) {
                int source = 0;
                for (int r = 0; r < fake->trace.ranks; r++) {
                    sequences_of(fake, r, micro->sequences, &begin, &end);
                    if (n / T >= begin && n / T < end)
                        source = r;
                }
                for (int64_t c = 0; c < k; c++) {
                    if (choices[n * k + c] != e)
                        continue;
                    if (e / (E / ep) == p && source % fsdp == rank % fsdp)
                        rows[count++] = row;
                    row++;
                }
            }
        add_rows(recorder, rank, name, dtype, value, rows, count);
    }
}

/* Parameters, slots, gradients, state: pieces by the layout; a sum's first piece is what the others leave of it. */
static void add_placed(struct recorder *recorder, const char *name, enum dtype dtype, const struct place *place,
                       struct value *value) {
    double *others = calloc((size_t)place->elements + 1, sizeof *others);
    for (int rank = place->world - 1; rank >= 0; rank--) {
        const struct shard *piece = place_shard(place, rank);
        struct tensor tensor = new_record(recorder, dtype, piece->ndim, piece->shape);
        for (int64_t i = 0; i < shard_elements(piece); i++) {
            int64_t at = shard_global(piece, i, NULL);
            if (place->turn[rank] > 0) {
                tensor_set(&tensor, i, value->x[at] / 8);
                others[at] += tensor_get(&tensor, i);
            } else { /* the lowest rank of a sum's group comes last; the subject goes on from the sum */
                tensor_set(&tensor, i, value->x[at] - others[at]);
                value->x[at] = others[at] + tensor_get(&tensor, i);
                others[at] = 0;
            }
        }
        add(recorder, rank, name, &tensor);
    }
    free(others);
}

static enum status record(void *context, const struct point *point, struct value *value) {
    struct recorder *recorder = context;
    struct fake *fake = recorder->fake;
    char name[POINT_NAME_MAX];
    enum dtype dtype = owed_dtype(&fake->one.job, point);
    /* the pieces of a sum are rounded one by one */
    bool stays = dtype == DTYPE_I64 || point->phase == PHASE_EXPORT || point_is_partial(point);
    int64_t elements = value->ndim ? value->shape[0] * columns_of(value) : 1;
    const struct place *place;
    point_name(name, point);
    for (int64_t i = 0; i < elements && !stays; i++)
        value->x[i] = dtype_round(dtype, value->x[i]);
    if (point->activation == ACT_TOPK_INDEX)
        for (int64_t i = 0; i < elements; i++)
            recorder->choices[point->layer][i] = (int64_t)value->x[i];
    if (point->activation == ACT_ROTARY_COS || point->activation == ACT_ROTARY_SIN || point->phase == PHASE_LOSS ||
        point->phase == PHASE_EXPORT) {
        for (int rank = 0; rank < fake->trace.ranks; rank++)
            add_whole(recorder, rank, name, dtype, value);
    } else if (point_kind(point) == POINT_EXCHANGED) {
        add_exchanged(recorder, name, dtype, point, value);
    } else if (point->activation != ACT_NONE) {
        add_tokens(recorder, name, dtype, point, value);
    } else {
        TRY(place_find(&fake->judge->places, point, value->ndim, value->shape, &place));
        add_placed(recorder, name, dtype, place, value);
    }
    return STATUS_OK;
}

void fake_record(struct fake *fake, const char *without, int rank) {
    struct recorder *recorder = calloc(1, sizeof *recorder);
    struct reference_options options = {0};
    struct reference_hooks hooks = {.context = recorder, .emit = record};
    recorder->fake = fake;
    recorder->without = without;
    recorder->without_rank = rank;
    ok(reference_run(&fake->one.job, &options, &hooks));
    free(recorder);
}

struct tensor *fake_tensor(struct fake *fake, int rank, const char *name) {
    const struct trace_record *found = trace_find(&fake->trace, rank, name);
    cr_assert(found, "no record %s on rank %d", name, rank);
    return &fake->trace.rank[rank].record[found - fake->trace.rank[rank].record].tensor;
}

void fake_judge(struct fake *fake) {
    ok(judge_relay(fake->judge, &fake->trace));
    ok(judge_close(fake->judge, &fake->trace));
}
