#include "sharded/checkpoint_index.h"

#include "core/files.h"
#include "sharded/state.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_TEXT_MAX 512

char *saved_file_name(char *out, size_t size, int rank) {
    snprintf(out, size, "rank%05d.safetensors", rank);
    return out;
}

uint64_t saved_checksum(const void *data, size_t bytes) {
    const unsigned char *from = data;
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ from[i]) * UINT64_C(0x100000001b3);
    return sum;
}

static enum status allocate(struct saved_index *out) {
    void *tenant, *steps, *file;
    TRY(host_zeros(&tenant, (size_t)out->slots, sizeof *out->tenant));
    out->tenant = tenant;
    TRY(host_zeros(&steps, (size_t)out->slots, sizeof *out->steps));
    out->steps = steps;
    TRY(host_zeros(&file, (size_t)out->world, sizeof *out->file));
    out->file = file;
    return STATUS_OK;
}

enum status saved_index_of(struct saved_index *out, const struct subject *subject) {
    *out = (struct saved_index){.mesh = subject->mesh, .world = subject->world, .slots = subject->job->slots};
    TRY(allocate(out));
    for (int slot = 0; slot < out->slots; slot++) {
        out->tenant[slot] = subject->slots.slot[slot].tenant;
        out->steps[slot] = subject->slots.slot[slot].steps;
    }
    return STATUS_OK;
}

void saved_index_free(struct saved_index *index) {
    free(index->tenant);
    free(index->steps);
    free(index->file);
    json_decref(index->root);
    *index = (struct saved_index){0};
}

/* ---- writing */

static json_t *mesh_json(const struct mesh *mesh) {
    json_t *out = json_object();
    for (int axis = 0; axis < mesh->axes; axis++)
        json_object_set_new(out, mesh->name[axis], json_integer(mesh->size[axis]));
    return out;
}

static json_t *slots_json(const struct saved_index *index, const struct subject *subject) {
    json_t *out = json_array();
    for (int slot = 0; slot < index->slots; slot++)
        if (index->tenant[slot] >= 0)
            json_array_append_new(out, json_pack("{s:i, s:s, s:i}", "slot", slot, "tenant",
                                                 subject->job->tenant[index->tenant[slot]].name, "steps",
                                                 index->steps[slot]));
    return out;
}

static json_t *files_json(const struct saved_index *index) {
    json_t *out = json_array();
    for (int rank = 0; rank < index->world; rank++) {
        char name[32], checksum[20];
        snprintf(checksum, sizeof checksum, "%016" PRIx64, index->file[rank].checksum);
        json_array_append_new(out, json_pack("{s:s, s:I, s:s}", "name", saved_file_name(name, sizeof name, rank),
                                             "bytes", (json_int_t)index->file[rank].bytes, "checksum", checksum));
    }
    return out;
}

static json_t *tensors_json(const struct saved_index *index, const struct saved_list *list) {
    json_t *out = json_object();
    for (int i = 0; i < list->count; i++) {
        const struct saved_tensor *tensor = &list->item[i];
        const struct shard *shard = &tensor->place->shard;
        char line[LINE_TEXT_MAX];
        json_t *shape = json_array();
        for (int d = 0; d < shard->ndim; d++)
            json_array_append_new(shape, json_integer(shard->global[d]));
        line_text(line, sizeof line, &tensor->place->placed.line, &index->mesh);
        json_object_set_new(out, tensor->name, json_pack("{s:s, s:o}", "layout", line, "shape", shape));
    }
    return out;
}

static const char *optimizer_name(const struct job *job) {
    return job->optimizer.kind == OPTIMIZER_ADAMW ? "adamw" : "sgd";
}

enum status saved_index_write(const struct saved_index *index, const struct subject *subject,
                              const struct saved_list *list, const char *folder) {
    const struct job *job = subject->job;
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:o, s:i, s:i, s:I, s:o, s:o, s:o}", "schema", CHECKPOINT_SCHEMA, "dtype",
                  dtype_word(subject->dtype), "optimizer", optimizer_name(job), "mesh", mesh_json(&index->mesh),
                  "world", index->world, "slots", index->slots, "max_rank", (json_int_t)job->max_rank, "tenants",
                  slots_json(index, subject), "files", files_json(index), "tensors", tensors_json(index, list));
    char *path = path_join(folder, CHECKPOINT_INDEX);
    char *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER) : NULL;
    enum status status =
        path && text ? file_write(path, text, strlen(text)) : status_fail(STATUS_MEMORY, "%s: out of memory", folder);
    free(text);
    free(path);
    json_decref(root);
    return status;
}

/* ---- reading */

struct reading {
    const char *path; /* of the index */
    json_t *root;
};

static enum status need_text(const struct reading *reading, const char *key, const char *want) {
    const char *got = json_string_value(json_object_get(reading->root, key));
    if (got && strcmp(got, want) == 0)
        return STATUS_OK;
    return status_fail(STATUS_INPUT, "%s: %s is '%s', expected '%s'", reading->path, key, got ? got : "missing", want);
}

static enum status need_number(const struct reading *reading, const char *key, int64_t want) {
    const json_t *got = json_object_get(reading->root, key);
    if (json_is_integer(got) && json_integer_value(got) == want)
        return STATUS_OK;
    return status_fail(STATUS_INPUT, "%s: %s is %lld, expected %lld", reading->path, key,
                       json_is_integer(got) ? (long long)json_integer_value(got) : -1, (long long)want);
}

static enum status refuse(const struct reading *reading, const char *what) {
    return status_fail(STATUS_INPUT, "%s: '%s' is missing or damaged, expected what a save writes", reading->path,
                       what);
}

static enum status read_mesh(const struct reading *reading, struct saved_index *out) {
    json_t *map = json_object_get(reading->root, "mesh"), *size;
    const char *name;
    if (!json_is_object(map) || json_object_size(map) > MESH_MAX_AXES)
        return refuse(reading, "mesh");
    json_object_foreach(map, name, size) {
        int64_t n = json_integer_value(size);
        if (strlen(name) >= MESH_NAME_MAX || n < 1 || n > 1 << 20)
            return refuse(reading, "mesh");
        strcpy(out->mesh.name[out->mesh.axes], name);
        out->mesh.size[out->mesh.axes++] = (int)n;
    }
    out->world = mesh_world(&out->mesh);
    return need_number(reading, "world", out->world);
}

static int tenant_named(const struct job *job, const char *name) {
    for (int t = 0; name && t < job->tenants; t++)
        if (strcmp(job->tenant[t].name, name) == 0)
            return t;
    return -1;
}

static enum status read_slots(const struct reading *reading, const struct subject *subject, struct saved_index *out) {
    json_t *list = json_object_get(reading->root, "tenants"), *entry;
    size_t i;
    if (!json_is_array(list))
        return refuse(reading, "tenants");
    for (int slot = 0; slot < out->slots; slot++)
        out->tenant[slot] = -1;
    json_array_foreach(list, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "tenant"));
        int64_t slot = json_integer_value(json_object_get(entry, "slot"));
        int64_t steps = json_integer_value(json_object_get(entry, "steps"));
        int tenant = tenant_named(subject->job, name);
        if (!name || slot < 0 || slot >= out->slots || out->tenant[slot] >= 0 || steps < 0 || steps > INT32_MAX)
            return refuse(reading, "tenants");
        if (tenant < 0)
            return status_fail(STATUS_INPUT, "%s: slot %d is tenant %s's, expected a tenant of this job", reading->path,
                               (int)slot, name);
        out->tenant[slot] = tenant;
        out->steps[slot] = (int)steps;
    }
    return STATUS_OK;
}

static enum status read_files(const struct reading *reading, struct saved_index *out) {
    json_t *list = json_object_get(reading->root, "files"), *entry;
    size_t i;
    if (json_array_size(list) != (size_t)out->world)
        return refuse(reading, "files");
    json_array_foreach(list, i, entry) {
        const char *checksum = json_string_value(json_object_get(entry, "checksum"));
        json_t *bytes = json_object_get(entry, "bytes");
        char *end = NULL;
        out->file[i].bytes = json_integer_value(bytes);
        out->file[i].checksum = checksum ? strtoull(checksum, &end, 16) : 0;
        if (!json_is_integer(bytes) || !checksum || *end)
            return refuse(reading, "files");
    }
    return STATUS_OK;
}

static enum status read_all(const struct reading *reading, const struct subject *subject, struct saved_index *out) {
    const struct job *job = subject->job;
    TRY(need_text(reading, "schema", CHECKPOINT_SCHEMA));
    TRY(need_text(reading, "dtype", dtype_word(subject->dtype)));
    TRY(need_text(reading, "optimizer", optimizer_name(job)));
    TRY(need_number(reading, "slots", job->slots));
    TRY(need_number(reading, "max_rank", job->max_rank));
    out->slots = job->slots;
    TRY(read_mesh(reading, out));
    TRY(allocate(out));
    TRY(read_slots(reading, subject, out));
    TRY(read_files(reading, out));
    out->root = json_incref(json_object_get(reading->root, "tensors"));
    return json_is_object((json_t *)out->root) ? STATUS_OK : refuse(reading, "tensors");
}

enum status saved_index_read(struct saved_index *out, const struct subject *subject, const char *folder) {
    enum status status;
    char *text = NULL, *path = path_join(folder, CHECKPOINT_INDEX);
    size_t length;
    struct reading reading = {.path = path};
    json_error_t error;
    *out = (struct saved_index){0};
    TRY_DONE(path ? STATUS_OK : status_fail(STATUS_MEMORY, "%s: out of memory", folder));
    if (!path_exists(path))
        TRY_DONE(status_fail(STATUS_INPUT, "%s: does not exist, expected the index of a checkpoint", path));
    TRY_DONE(file_read(path, &text, &length));
    reading.root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(reading.root))
        TRY_DONE(status_fail(STATUS_INPUT, "%s:%d: is no JSON object (%s), expected the index of a checkpoint", path,
                             error.line, error.text));
    TRY_DONE(read_all(&reading, subject, out));
done:
    json_decref(reading.root);
    free(text);
    free(path);
    return status;
}

int saved_index_tensors(const struct saved_index *index) {
    return (int)json_object_size(index->root);
}

enum status saved_index_line(const struct saved_index *index, const struct saved_tensor *tensor, const char *folder,
                             struct line *out) {
    const struct shard *shard = &tensor->place->shard;
    const json_t *entry = json_object_get(index->root, tensor->name);
    const json_t *shape = json_object_get(entry, "shape");
    const char *text = json_string_value(json_object_get(entry, "layout"));
    int64_t got[LINE_MAX_DIMS];
    char want_text[128], got_text[128];
    int ndim = (int)json_array_size(shape);
    if (!text || ndim > LINE_MAX_DIMS)
        return status_fail(STATUS_INPUT,
                           "%s/" CHECKPOINT_INDEX ": has no tensor %s, expected one with layout and shape", folder,
                           tensor->name);
    for (int d = 0; d < ndim; d++)
        got[d] = json_integer_value(json_array_get(shape, (size_t)d));
    if (ndim != shard->ndim || memcmp(got, shard->global, (size_t)ndim * sizeof *got) != 0)
        return status_fail(STATUS_INPUT, "%s/" CHECKPOINT_INDEX ": %s is %s, expected %s as in this job", folder,
                           tensor->name, shape_text(got_text, sizeof got_text, ndim, got),
                           shape_text(want_text, sizeof want_text, shard->ndim, shard->global));
    const struct axis_size half = {"half", 2};
    TRY(line_parse(out, text, &index->mesh, tensor->name));
    return line_bind(out, ndim, got, &half, 1, tensor->name);
}
