/* The dump of a judged run: relay's values before they were replaced, and the layout of every record. */
#include "harness/judge_inner.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void judge_keep(struct judge *judge, bool keep) {
    judge->keep = keep;
}

char *judge_mesh_json(char *out, size_t size, const struct mesh *mesh) {
    size_t used = (size_t)snprintf(out, size, "{");
    for (int axis = 0; axis < mesh->axes && used < size; axis++)
        used += (size_t)snprintf(out + used, size - used, "%s\"%s\": %d", axis ? ", " : "", mesh->name[axis],
                                 mesh->size[axis]);
    if (used < size)
        snprintf(out + used, size - used, "}");
    return out;
}

enum status judge_layout_json(struct judge *judge, char **out) {
    return judge_segment_layout_json(judge, -1, out);
}

enum status judge_segment_layout_json(struct judge *judge, int segment, char **out) {
    char line[PLACE_TEXT];
    *out = NULL;
    TRY(judge_count_once(judge));
    json_t *object = json_object();
    enum status status = object ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < judge->owed_count && status == STATUS_OK; i++) {
        if (segment >= 0 && judge->owed[i].segment != segment)
            continue;
        judge_enter(judge, judge->owed[i].segment);
        status = judge_line(judge, &judge->owed[i].point, line, sizeof line);
        if (status == STATUS_OK && json_object_set_new(object, judge->owed[i].name, json_string(line)) != 0)
            status = status_fail(STATUS_MEMORY, "out of memory");
    }
    if (status == STATUS_OK)
        *out = json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(object);
    if (status == STATUS_OK && !*out)
        status = status_fail(STATUS_MEMORY, "out of memory");
    return status;
}

static bool is_whole_number(const struct judge *judge, const struct point *point) {
    return owed_dtype(judge->job, point) == DTYPE_I64;
}

/* float64; ids, choices and counts int64. */
static enum status kept_tensor(const struct judge *judge, const struct owed_point *owed, struct tensor *out) {
    bool whole = is_whole_number(judge, &owed->point);
    TRY(tensor_make(out, whole ? DTYPE_I64 : DTYPE_F64, owed->ndim, owed->shape));
    for (int64_t i = 0; i < tensor_elements(out); i++)
        tensor_set(out, i, owed->kept[i]);
    return STATUS_OK;
}

enum status judge_write_reference(struct judge *judge, const char *path) {
    enum status status;
    char world[16], mesh[160];
    char *layout = NULL;
    int count = 0;
    struct tensor *tensor = calloc((size_t)judge->owed_count + 1, sizeof *tensor);
    struct safetensors_item *item = calloc((size_t)judge->owed_count + 1, sizeof *item);
    TRY_DONE(tensor && item ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory"));
    for (int i = 0; i < judge->owed_count; i++) {
        if (!judge->owed[i].kept)
            continue;
        TRY_DONE(kept_tensor(judge, &judge->owed[i], &tensor[count]));
        item[count] = (struct safetensors_item){judge->owed[i].name, &tensor[count]};
        count++;
    }
    TRY_DONE(judge_layout_json(judge, &layout));
    judge_enter(judge, 0);
    snprintf(world, sizeof world, "%d", judge->world);
    judge_mesh_json(mesh, sizeof mesh, judge->places.mesh);
    struct safetensors_pair metadata[] = {
        {"schema", "shardproof.trace/1"}, {"mode", "relay"}, {"world", world}, {"mesh", mesh}, {"layout", layout}};
    TRY_DONE(safetensors_write(path, item, count, metadata, 5));
done:
    for (int i = 0; i < count; i++)
        tensor_free(&tensor[i]);
    free(tensor);
    free(item);
    free(layout);
    return status;
}
