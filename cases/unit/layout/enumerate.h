/* The test's own picture of a layout line, made at random, and the plain enumeration of what a rank holds: the
 * definition walked by slicing explicit lists. Shares no code and no struct with layout/. */
#ifndef CASES_UNIT_LAYOUT_ENUMERATE_H
#define CASES_UNIT_LAYOUT_ENUMERATE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MAX_WORLD = 25,
    MAX_LIST = 400,
    MAX_WHOLE = 4096
};

struct dice { /* splitmix64; the seed of a trial stands in every message */
    uint64_t seed, state;
};

struct item {
    int axes, axis[4]; /* mesh axes */
    bool balanced;
};

struct cuts {
    int items;
    struct item item[4];
};

struct spec {
    int axes, size[4]; /* mesh */
    int dims;
    struct {
        int axes, size[3];
        bool parenthesis;
        struct cuts inside[3], behind;
    } dim[3];
    struct cuts owed;
    char text[256];
};

struct list {
    int count, at[MAX_LIST];
};

extern const char *const mesh_names[4];

int roll(struct dice *dice, int sides);
/* A line of up to three dims over a mesh of up to four axes; axes are called x0a, x0b, x1a, ... */
void make_spec(struct dice *dice, struct spec *spec);
/* Counts up, last axis fastest; false behind the last tuple. */
bool next_tuple(int axes, const int *size, int *tuple);
/* The global indices of dim d that the rank at `here` holds, in the order of its memory; cuts that use a mesh axis of
 * the mask `undone` do not count. */
void enumerate_dim(struct list *out, const struct spec *spec, int d, unsigned undone, const int *here);
bool holds(const struct list *list, int element);

#endif
