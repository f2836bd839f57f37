#include "cases/unit/layout/enumerate.h"

#include <stdio.h>
#include <string.h>

int roll(struct dice *dice, int sides) {
    uint64_t z = dice->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (int)((z ^ z >> 31) % (uint64_t)sides);
}

const char *const mesh_names[4] = {"ep", "fsdp", "dp", "tp"};

static void write_cuts(char *text, const struct cuts *cuts) {
    for (int i = 0; i < cuts->items; i++) {
        strcat(text, i ? "," : "[");
        for (int k = 0; k < cuts->item[i].axes; k++) {
            strcat(text, k ? "*" : "");
            strcat(text, mesh_names[cuts->item[i].axis[k]]);
        }
        strcat(text, cuts->item[i].balanced ? ":balanced" : "");
    }
    strcat(text, cuts->items ? "]" : "");
}

static void write_spec(struct spec *spec) {
    spec->text[0] = '\0';
    for (int d = 0; d < spec->dims; d++) {
        strcat(spec->text, d ? " " : "");
        strcat(spec->text, spec->dim[d].parenthesis ? "(" : "");
        for (int a = 0; a < spec->dim[d].axes; a++) {
            char name[16];
            snprintf(name, sizeof name, "%sx%d%c", a ? " " : "", d, 'a' + a);
            strcat(spec->text, name);
            write_cuts(spec->text, &spec->dim[d].inside[a]);
        }
        strcat(spec->text, spec->dim[d].parenthesis ? ")" : "");
        write_cuts(spec->text, &spec->dim[d].behind);
    }
    if (spec->owed.items) {
        strcat(spec->text, spec->dims ? " +" : "+");
        write_cuts(spec->text, &spec->owed);
    }
}

/* A mesh axis joins the last item of a cut or opens one. */
static void put_axis(struct dice *dice, struct cuts *cuts, int axis) {
    if (cuts->items == 0 || roll(dice, 2) == 0)
        cuts->items++;
    struct item *item = &cuts->item[cuts->items - 1];
    item->axis[item->axes++] = axis;
    item->balanced = item->balanced || roll(dice, 4) == 0;
}

/* At most MAX_WORLD ranks. */
static void make_mesh(struct dice *dice, struct spec *spec) {
    int world;
    do {
        world = 1;
        for (int axis = 0; axis < spec->axes; axis++)
            world *= spec->size[axis] = 1 + roll(dice, 5);
    } while (world > MAX_WORLD);
}

/* At most MAX_WHOLE elements; axes outside a larger parenthesis may be empty. */
static void make_sizes(struct dice *dice, struct spec *spec) {
    int whole;
    do {
        whole = 1;
        for (int d = 0; d < spec->dims; d++) {
            spec->dim[d].parenthesis = roll(dice, 2);
            spec->dim[d].axes = spec->dim[d].parenthesis ? 1 + roll(dice, 3) : 1;
            for (int a = 0; a < spec->dim[d].axes; a++)
                whole *= spec->dim[d].size[a] = spec->dim[d].axes > 1 ? 1 + roll(dice, 6) : roll(dice, 12);
        }
    } while (whole > MAX_WHOLE);
}

static void shuffle(struct dice *dice, int *order, int count) {
    for (int last = count - 1; last > 0; last--) {
        int other = roll(dice, last + 1), kept = order[last];
        order[last] = order[other];
        order[other] = kept;
    }
}

void make_spec(struct dice *dice, struct spec *spec) {
    int order[4] = {0, 1, 2, 3};
    *spec = (struct spec){.axes = roll(dice, 5), .dims = roll(dice, 4)};
    make_mesh(dice, spec);
    make_sizes(dice, spec);
    shuffle(dice, order, spec->axes);
    for (int i = 0; i < spec->axes; i++) { /* of ten: one sum owed, two replicas, seven cuts */
        int kind = roll(dice, 10), d = spec->dims ? roll(dice, spec->dims) : 0;
        if (kind == 0)
            put_axis(dice, &spec->owed, order[i]);
        else if (kind > 2 && spec->dims && spec->dim[d].parenthesis && roll(dice, 2))
            put_axis(dice, &spec->dim[d].behind, order[i]);
        else if (kind > 2 && spec->dims)
            put_axis(dice, &spec->dim[d].inside[roll(dice, spec->dim[d].axes)], order[i]);
    }
    write_spec(spec);
}

bool next_tuple(int axes, const int *size, int *tuple) {
    int axis = axes - 1;
    while (axis >= 0 && ++tuple[axis] == size[axis])
        tuple[axis--] = 0;
    return axis >= 0;
}

/* How many elements each of `pieces` gets: torch.chunk fills pieces of the smallest length that suffices, one after
 * the other; balanced deals one to each in turn. */
static void deal(int n, int pieces, bool balanced, int *length) {
    int full = 0, dealt = 0;
    memset(length, 0, (size_t)pieces * sizeof *length);
    while (full * pieces < n)
        full++;
    for (int piece = 0; dealt < n; dealt++) {
        if (!balanced && length[piece] == full)
            piece++;
        length[piece]++;
        if (balanced)
            piece = (piece + 1) % pieces;
    }
}

/* The slice of `list` that the rank at `here` keeps of one item. */
static void slice(struct list *list, const struct spec *spec, const struct item *item, const int *here) {
    int size[4], tuple[4] = {0}, length[MAX_WORLD * 8], pieces = 1, mine = -1, piece = 0, skip = 0;
    for (int k = 0; k < item->axes; k++) {
        size[k] = spec->size[item->axis[k]];
        pieces *= size[k];
    }
    do { /* pieces are numbered in the order in which the tuples of coordinates count up */
        bool match = true;
        for (int k = 0; k < item->axes; k++)
            match = match && tuple[k] == here[item->axis[k]];
        if (match)
            mine = piece;
        piece++;
    } while (next_tuple(item->axes, size, tuple));
    deal(list->count, pieces, item->balanced, length);
    for (int p = 0; p < mine; p++)
        skip += length[p];
    struct list kept = {0};
    for (int i = skip; i < skip + length[mine]; i++)
        kept.at[kept.count++] = list->at[i];
    *list = kept;
}

/* Every item of a cut in turn: the outermost first, each on what the one before left. */
static void slice_all(struct list *list, const struct spec *spec, const struct cuts *cuts, unsigned undone,
                      const int *here) {
    for (int i = 0; i < cuts->items; i++) {
        bool gathered = false;
        for (int k = 0; k < cuts->item[i].axes; k++)
            gathered = gathered || (undone >> cuts->item[i].axis[k] & 1);
        if (!gathered)
            slice(list, spec, &cuts->item[i], here);
    }
}

bool holds(const struct list *list, int element) {
    for (int i = 0; i < list->count; i++)
        if (list->at[i] == element)
            return true;
    return false;
}

void enumerate_dim(struct list *out, const struct spec *spec, int d, unsigned undone, const int *here) {
    static struct list kept[3];
    int tuple[3] = {0}, flat = 0;
    *out = (struct list){0};
    bool empty = false;
    for (int a = 0; a < spec->dim[d].axes; a++) {
        kept[a].count = 0;
        for (int i = 0; i < spec->dim[d].size[a]; i++)
            kept[a].at[kept[a].count++] = i;
        slice_all(&kept[a], spec, &spec->dim[d].inside[a], undone, here);
        empty = empty || spec->dim[d].size[a] == 0;
    }
    if (!empty)
        do { /* all elements of the dim as they lie in memory */
            bool mine = true;
            for (int a = 0; a < spec->dim[d].axes; a++)
                mine = mine && holds(&kept[a], tuple[a]);
            if (mine)
                out->at[out->count++] = flat;
            flat++;
        } while (next_tuple(spec->dim[d].axes, spec->dim[d].size, tuple));
    slice_all(out, spec, &spec->dim[d].behind, undone, here);
}
