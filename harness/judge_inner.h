/* What the judge's files share: what is owed, scratch for one tensor, and how a failure is reported. */
#ifndef HARNESS_JUDGE_INNER_H
#define HARNESS_JUDGE_INNER_H

#include "harness/judge.h"
#include "harness/judge_place.h"
#include "harness/judge_route.h"

#include "reference/reference.h"

/* A set of names, borrowed. */
struct name_set {
    int count, slots;
    const char **slot;
};
enum status name_set_add(struct name_set *set, const char *name, bool *new_name);
bool name_set_has(const struct name_set *set, const char *name);
void name_set_free(struct name_set *set);

struct owed_point { /* one storage point, as the dry run announced it */
    struct point point;
    char *name;
    int ndim;
    int64_t shape[VALUE_MAX_DIMS];
    const struct place *place; /* NULL: exchanged rows, whose place depends on the choices */
    int segment;               /* whose world owes it */
    double *kept;              /* relay's value before it was replaced, for --keep; else NULL */
};

/* One world of the case. The one at hand has its places, world and trace in struct judge. */
struct judge_segment {
    int first, end; /* actions */
    int world;
    struct places places;  /* while it is not at hand */
    struct name_set names; /* owed in this world */
    const struct trace *trace;
};

struct judge {
    const struct test_case *one;
    const struct job *job;
    struct report_case *report;
    int world;
    struct places places;
    int segments, segment; /* the one at hand */
    struct judge_segment *part;
    const char *saves; /* where the twin's checkpoints may stand; NULL: nowhere */
    bool counted;      /* judge_owed has run */
    int owed_count, owed_room;
    struct owed_point *owed;
    struct name_set names;    /* of `owed` */
    struct name_set failures; /* reported so far */
    int failed_count, failed_room;
    char **failed; /* the strings behind `failures` */
    int layers;
    struct route *route; /* [layers] of the micro-batch at hand */
    bool keep;
    /* of the run at hand */
    const struct trace *trace;
    int at;                             /* next owed point */
    const struct trace_record **record; /* [world] of the point at hand */
    int *rank_scratch;                  /* [world] */
    double *x;                          /* the assembled tensor */
    void *raw;                          /* the same in the records' type */
    int64_t room;                       /* elements that x and raw hold */
};

/* Worlds of a case (judge_segment.c): made with the judge; `trace` has one trace per segment; entering one puts its
 * mesh, places and trace at hand. */
enum status judge_segments_make(struct judge *judge);
void judge_segments_free(struct judge *judge);
void judge_segments_trace(struct judge *judge, const struct trace *trace);
void judge_enter(struct judge *judge, int segment);
/* The segment of action `index`; job->actions belongs to the last. */
int judge_segment_of(const struct judge *judge, int index);
/* Hook of the reference. */
enum status judge_at_action(void *context, int index);

/* judge_owed if it has not run yet. */
enum status judge_count_once(struct judge *judge);
enum status judge_room(struct judge *judge, int64_t elements);

/* The next owed point; it must be this one. */
enum status judge_next(struct judge *judge, const struct point *point, struct owed_point **out);

/* Who acts in step S: the action that closes it (train, step or evaluate), NULL after the last; and the tenant that
 * acts, -1: none. */
const struct action *step_action(const struct job *job, int step);
int step_tenant(const struct job *job, int step);
/* Updates that have acted on what step S computes: the acting tenant's since its acquire; where base tensors train,
 * everybody's. */
int64_t step_updates(const struct job *job, int step);
/* Who holds a slot, and which slot a tenant holds, when step S is opened (after the last: at the end); -1: none. */
int slot_tenant(const struct job *job, int step, int slot);
int tenant_slot(const struct job *job, int step, int tenant);
/* The rank r of the tenant in whose slot a lora tensor lies, for that target; -1: not such a tensor, or nobody's. */
int64_t point_rank(const struct job *job, const struct point *point);
/* Whether rows beyond r are recorded here as they are held, NaN too (elsewhere they are 0). */
bool point_holds_beyond(const struct point *point);
/* Whether another tenant's update of base tensors falls between the opening of the point's window and the point: the
 * twin was put right at the opening and has gone on by its own update since. */
bool window_drifted(const struct job *job, const struct point *point);
const struct micro_batch *micro_numbered(const struct job *job, int number); /* NULL if there is none */
/* The type in which the subject owes a record. */
enum dtype owed_dtype(const struct job *job, const struct point *point);

/* What went wrong at one record. */
struct failure {
    const struct point *point; /* NULL: a name nobody owes, or not about a record */
    const char *name;          /* trace name, or what it is about */
    bool no_tensor;            /* not about a record: a missing rank, a dead twin */
    enum finding_kind kind;
    const struct place *place; /* NULL: no coordinates */
    int ranks;
    const int *rank; /* that differ, ascending */
    bool located;    /* `at` is meant */
    int64_t at;      /* row-major global offset */
    bool numbers;
    double want, got, error, bar;
    int64_t expert;                         /* where the axes do not say it; -1 */
    const double *window_want, *window_got; /* whole tensors, or NULL */
    int64_t differ;                         /* elements, 0: not counted */
    const char *what;   /* the sentence's heart: "is wrong", "differs from the same program at world 1" */
    const char *detail; /* one more sentence, or NULL */
};
#define FAILURE_NONE ((struct failure){.expert = -1})

/* Whether the next failure becomes the finding (so that it pays to look closely). */
bool judge_first(const struct judge *judge);
/* The finding if there is none yet, else a consequence; a name counts once. */
enum status judge_fail(struct judge *judge, const struct failure *failure);

#endif
