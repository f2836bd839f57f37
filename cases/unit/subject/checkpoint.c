/* Checkpoints on disk: the same bytes after a round trip over three meshes; every damage is named and changes nothing;
 * a save that dies leaves the one before. */
#include "job_of.h"

#include "core/files.h"
#include "harness/world.h"
#include "sharded/checkpoint.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(call) cr_assert_eq((call), STATUS_OK, "%s", status_note())

enum {
    SAVES = 4,
    WORLD = 4
};
#define FIRST mesh_of("ep", 2, "fsdp", 2)

struct scene {
    struct made_job made;
    struct save save[SAVES];
    bool trains[256];
    char folder[64];
};

/* A dense layer, a tied head; gus trains alone, the router with him, under AdamW; another slot is mad's, a third free.
 */
static void scene_make(struct scene *scene) {
    static const char *const names[SAVES] = {"a", "b", "c", "d"};
    *scene = (struct scene){.folder = "/tmp/checkpoint-test-XXXXXX"};
    tied_job_of(&scene->made);
    struct job *job = &scene->made.job;
    const struct inventory *inventory = checkpoint_inventory(job->model);
    job->slots = 3;
    job->optimizer = (struct optimizer){
        .kind = OPTIMIZER_ADAMW, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01};
    for (int i = 0; i < inventory->count; i++)
        scene->trains[i] = inventory->params[i].kind == PARAM_ROUTER;
    job->trains = scene->trains;
    job->save = scene->save;
    job->saves = SAVES;
    for (int i = 0; i < SAVES; i++)
        strcpy(scene->save[i].name, names[i]);
    job->actions = 0;
    cr_assert_not_null(mkdtemp(scene->folder));
}

static void scene_free(struct scene *scene) {
    OK(folder_remove(scene->folder));
    job_done(&scene->made);
}

static void act(struct scene *scene, enum action_kind kind, int tenant, int save) {
    add_action(&scene->made, (struct action){.kind = kind, .tenant = tenant, .save = save});
}

/* acquire both, train gus in step 0. */
static void begin_script(struct scene *scene) {
    act(scene, ACTION_ACQUIRE, 0, 0);
    act(scene, ACTION_ACQUIRE, 1, 0);
    add_action(&scene->made,
               (struct action){.kind = ACTION_TRAIN, .tenant = 1, .micros = 1, .micro = &scene->made.micros[0]});
}

static void run_part(struct scene *scene, struct mesh mesh, int first, int end) {
    struct run run = {.save_folder = scene->folder, .first = first, .end = end};
    run_world(&run, &scene->made.job, mesh);
    run_done(&run);
}

static char *path_of(const struct scene *scene, const char *save, const char *file) {
    char *path = NULL;
    cr_assert_gt(asprintf(&path, "%s/%s/%s", scene->folder, save, file), 0);
    return path;
}

static void expect_same_file(const struct scene *scene, const char *a, const char *b, const char *file) {
    char *paths[2] = {path_of(scene, a, file), path_of(scene, b, file)}, *data[2];
    size_t bytes[2];
    for (int i = 0; i < 2; i++)
        OK(file_read(paths[i], &data[i], &bytes[i]));
    cr_expect(bytes[0] == bytes[1] && memcmp(data[0], data[1], bytes[0]) == 0, "%s of %s and %s", file, a, b);
    for (int i = 0; i < 2; i++) {
        free(data[i]);
        free(paths[i]);
    }
}

static void expect_same_checkpoint(const struct scene *scene, const char *a, const char *b) {
    char file[32];
    expect_same_file(scene, a, b, "index.json");
    for (int rank = 0; rank < WORLD; rank++) {
        snprintf(file, sizeof file, "rank%05d.safetensors", rank);
        expect_same_file(scene, a, b, file);
    }
}

Test(checkpoint, three_meshes_give_the_same_bytes) {
    struct scene scene;
    scene_make(&scene);
    begin_script(&scene);
    act(&scene, ACTION_SAVE, -1, 0);
    for (int i = 1; i < SAVES; i++) {
        act(&scene, ACTION_LOAD, -1, i - 1);
        act(&scene, ACTION_SAVE, -1, i);
    }
    act(&scene, ACTION_LOAD, -1, 3); /* so that no part is the last */
    run_part(&scene, FIRST, 0, 4);
    run_part(&scene, mesh_of("fsdp", 3, "ep", 1), 4, 6);
    run_part(&scene, mesh_of("ep", 5, "fsdp", 2), 6, 8);
    run_part(&scene, FIRST, 8, 10);
    expect_same_checkpoint(&scene, "a", "d");
    char *path = path_of(&scene, "b", "rank00003.safetensors");
    cr_assert_not(path_exists(path)); /* b is of three ranks */
    free(path);
    scene_free(&scene);
}

/* ---- damage */

struct attempt {
    enum status status[WORLD];
    char note[WORLD][1024];
};
static struct attempt attempt; /* of the test at hand; each rank writes its own line */

static enum status try_to_load(void *context, struct subject *subject, int step) {
    (void)context;
    if (step != 1)
        return STATUS_OK;
    attempt.status[subject->rank] = checkpoint_load(subject, 0);
    snprintf(attempt.note[subject->rank], sizeof attempt.note[0], "%s", status_note());
    status_clear();
    return STATUS_OK;
}

/* Another state than the checkpoint's: one step more. */
static void go_on_script(struct scene *scene) {
    scene->made.job.actions = 0;
    begin_script(scene);
    for (int step = 1; step < STEPS; step++)
        add_action(&scene->made, (struct action){.kind = ACTION_TRAIN,
                                                 .tenant = 1,
                                                 .micros = 1,
                                                 .micro = &scene->made.micros[step],
                                                 .step = step,
                                                 .own_step = step});
}

/* The load before step 1 fails on every rank with the same words, and all records are those of a run without it. */
static void expect_refused(struct scene *scene, const char *file, const char *reason) {
    struct run plain = {0}, run = {.save_folder = scene->folder, .before_step = try_to_load};
    go_on_script(scene);
    memset(&attempt, 0, sizeof attempt);
    run_world(&plain, &scene->made.job, FIRST);
    run_world(&run, &scene->made.job, FIRST);
    for (int rank = 0; rank < WORLD; rank++) {
        cr_expect_eq(attempt.status[rank], STATUS_INPUT, "%s: rank %d, %s", reason, rank, attempt.note[rank]);
        cr_expect(strstr(attempt.note[rank], file) && strstr(attempt.note[rank], reason), "want %s: %s, got %s", file,
                  reason, attempt.note[rank]);
        cr_expect_eq(run.records[rank], plain.records[rank]);
        for (const struct kept *kept = plain.kept[rank]; kept; kept = kept->next) {
            const struct tensor *got = kept_need(&run, rank, "%s", kept->name);
            cr_expect_eq(memcmp(got->data, kept->tensor.data, tensor_bytes(got)), 0, "%s", kept->name);
        }
    }
    run_done(&plain);
    run_done(&run);
}

static void saved_scene(struct scene *scene) {
    scene_make(scene);
    begin_script(scene);
    act(scene, ACTION_SAVE, -1, 0);
    act(scene, ACTION_LOAD, -1, 0);
    run_part(scene, FIRST, 0, 4);
}

Test(checkpoint, file_missing) {
    struct scene scene;
    saved_scene(&scene);
    char *path = path_of(&scene, "a", "rank00002.safetensors");
    cr_assert_eq(unlink(path), 0);
    expect_refused(&scene, path, "does not exist, expected the shards of a rank");
    free(path);
    scene_free(&scene);
}

Test(checkpoint, file_truncated) {
    struct scene scene;
    saved_scene(&scene);
    char *path = path_of(&scene, "a", "rank00003.safetensors");
    cr_assert_eq(truncate(path, 1000), 0);
    expect_refused(&scene, path, "has 1000 bytes, expected the ");
    free(path);
    scene_free(&scene);
}

Test(checkpoint, file_of_another_save) {
    struct scene scene;
    saved_scene(&scene);
    char *path = path_of(&scene, "a", "rank00001.safetensors");
    FILE *file = fopen(path, "r+b");
    cr_assert_not_null(file);
    cr_assert_eq(fseek(file, -9, SEEK_END), 0);
    cr_assert_eq(fputc('x', file), 'x');
    fclose(file);
    expect_refused(&scene, path, "its checksum is not its index's, expected the file of the same save");
    free(path);
    scene_free(&scene);
}

/* The file with the first `from` replaced; returns what it was. */
static char *rewrite(const char *path, const char *from, const char *to) {
    char *text, *changed = NULL;
    size_t length;
    OK(file_read(path, &text, &length));
    char *at = strstr(text, from);
    cr_assert_not_null(at, "%s", from);
    cr_assert_gt(asprintf(&changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)), 0);
    OK(file_write(path, changed, strlen(changed)));
    free(changed);
    return text;
}

Test(checkpoint, index_missing) {
    struct scene scene;
    saved_scene(&scene);
    char *path = path_of(&scene, "a", "index.json");
    cr_assert_eq(unlink(path), 0);
    expect_refused(&scene, path, "does not exist, expected the index of a checkpoint");
    OK(file_write(path, "{\"schema\": ", 11));
    expect_refused(&scene, path, "is no JSON object");
    free(path);
    scene_free(&scene);
}

/* What a checkpoint of another job says of itself. */
Test(checkpoint, index_of_another_job) {
    static const struct {
        const char *from, *to, *reason;
    } edits[] = {
        {"shardproof.checkpoint/1", "shardproof.checkpoint/2",
         "schema is 'shardproof.checkpoint/2', expected 'shardproof.checkpoint/1'"},
        {"\"float64\"", "\"float32\"", "dtype is 'float32', expected 'float64'"},
        {"\"adamw\"", "\"sgd\"", "optimizer is 'sgd', expected 'adamw'"},
        {"\"slots\": 3", "\"slots\": 2", "slots is 2, expected 3"},
        {"\"max_rank\": 5", "\"max_rank\": 6", "max_rank is 6, expected 5"},
        {"\"ep\": 2", "\"ep\": 3", "world is 4, expected 6"},
        {"\"mad\"", "\"zed\"", "is tenant zed's, expected a tenant of this job"},
        {"\"slot\": 1", "\"slot\": 0", "'tenants' is missing or damaged"},
        {"\"base/model", "\"cellar/model", "has no tensor base/model"},
    };
    struct scene scene;
    saved_scene(&scene);
    char *path = path_of(&scene, "a", "index.json");
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *before = rewrite(path, edits[i].from, edits[i].to);
        expect_refused(&scene, path, edits[i].reason);
        OK(file_write(path, before, strlen(before)));
        free(before);
    }
    free(path);
    scene_free(&scene);
}

/* ---- a rank dies while it saves */

static bool die_before_the_index(void *context, enum collective operation, const char *group, const char *what,
                                 int rank) {
    (void)context;
    (void)operation;
    (void)group;
    if (rank == 1 && strcmp(what, "checkpoint files") == 0)
        raise(SIGKILL);
    return false;
}

static enum status save_and_die(void *context, struct subject *subject, int step) {
    (void)context;
    if (step != 2) /* another state than what is saved */
        return STATUS_OK;
    comm_set_intercept(subject->comm, die_before_the_index, NULL);
    return checkpoint_save(subject, 0);
}

static enum status forked_rank(void *context, int index, struct comm *comm,
                               enum status (*record)(void *sink, const struct point *point, const struct tensor *data),
                               void *sink) {
    const struct scene *scene = context;
    struct mesh mesh = FIRST;
    (void)index;
    (void)record;
    (void)sink;
    const struct subject_hooks hooks = {.before_step = save_and_die, .save_folder = scene->folder};
    return subject_run(&scene->made.job, &mesh, NULL, &rules_right, comm, &hooks);
}

Test(checkpoint, a_rank_killed_while_it_saves) {
    struct scene scene;
    struct world *world;
    struct outcome outcome = {0};
    char *kept = NULL, *copy = NULL;
    saved_scene(&scene);
    act(&scene, ACTION_SAVE, -1, 1); /* a second copy of what `a` held, under b */
    run_part(&scene, FIRST, 4, 6);
    expect_same_checkpoint(&scene, "a", "b");
    go_on_script(&scene);
    const struct world_spec spec = {.engine = ENGINE_LOCAL, .size = WORLD, .run = forked_rank, .context = &scene};
    OK(world_launch(&world, &spec));
    world_run(world, 0, 20, &outcome);
    cr_expect_eq(outcome.kind, OUTCOME_CRASH, "%s", outcome.text);
    cr_expect_eq(outcome.rank, 1);
    world_end(world);
    outcome_free(&outcome);
    expect_same_checkpoint(&scene, "a", "b");
    kept = path_of(&scene, "a.tmp", "rank00001.safetensors");
    copy = path_of(&scene, "a", "rank00001.safetensors");
    cr_expect(path_exists(kept) && path_exists(copy)); /* the save was under way */
    free(copy);
    free(kept);
    scene_free(&scene);
}
