/* Every decision that someone has got wrong in public is one field of one table. The right table is the product; a
 * planted fault changes one field, or leaves one collective out on one rank. The subject has no fault branches. */
#ifndef SHARDED_RULES_H
#define SHARDED_RULES_H

#include "sharded/board.h"

enum delta_scale {
    DELTA_SCALE,             /* the adapter's: alpha/r, or alpha/sqrt(r) */
    DELTA_SCALE_BY_MAX_RANK, /* alpha/R, of the physical slot */
    DELTA_SCALE_NONE
};

struct rules {
    /* where tensors lie */
    const char *import_b; /* how PEFT's flat lora_B is read: "out (rank expert[ep])": rank slow, expert FAST */
    const char *export_b; /* how flat lora_B lies while it is gathered for export: the same; EP's plain concat on dim
                             1 is "out (rank expert)[ep]" */
    int ep_shift;         /* EP rank p holds block (p + ep_shift) mod ep of the packed expert weights: 0 */
    bool ep_as_last_axis; /* a rank's block is its number mod ep, not its coordinate: false */
    bool balanced_shards; /* tensors other than experts are cut by the balanced rule, not torch.chunk's: false */

    /* units between their gathers */
    bool experts_stay;    /* packed experts stay gathered, whoever acts or moves next: false */
    bool kept_as_strided; /* a rank of a group of N keeps the piece of its place in a strided group: false */

    /* slots */
    int b_slot_shift; /* lora_B is gathered from the slot that many behind the acting one: 0 */
    bool (*slot_named)(const char *name, const char *wanted); /* whether a release of `wanted` resets slot `name` */
    bool reset_first_rows; /* a released slot gets the first rows of the whole initial tensor: false */
    struct {               /* what a release leaves as it is: nothing */
        bool state, counter;
    } release_keeps;

    /* forward and backward */
    enum delta_scale delta_scale;
    bool delta_all_rows;       /* the delta is made of all R rows, not of the tenant's r: false */
    bool delta_turned;         /* the delta is laid down as [in,out]: false */
    bool combine_unweighted;   /* experts' results are added without the router's weights: false */
    bool up_before_gate;       /* packed experts hold up in the first half: false */
    int recompute_slot_shift;  /* recomputation gathers the slot that many behind the acting one: 0 */
    int label_lag;             /* logits t meet label t + 1 - label_lag: 0 */
    bool backward_counts_kept; /* rows go back to their sources in backward by the counts they came with: false */

    /* sums over ranks */
    struct { /* tensors that match this glob are summed along this mesh axis alone: NULL, none do */
        const char *tensors, *axis; /* axis "": not summed at all */
    } narrow_sum;
    const char *unsummed_axis; /* a mesh axis along which gradients are not summed: NULL */
    bool reduce_means;         /* a reduction divides by its group's size: false */
    bool reduce_in_bfloat;     /* partial gradients are rounded to bfloat16 before they are summed: false */
    int reduce_times;          /* how often a reduced gradient is added to the running sum: 1 */

    /* the step */
    bool expert_divisor_world; /* expert gradients are divided once more by the world size: false */
    bool loss_mean_of_means;   /* each rank divides by (its own count * ranks with labels) instead of the global count:
                                  false */
    bool divide_per_micro;     /* each micro-batch's gradient is divided by its own count, their sum by their number:
                                  false */
    struct {
        bool all_tenants; /* the norm runs over all tenants' sums: false */
        bool per_rank;    /* over this rank's shards alone: false */
        bool replicas;    /* over every replica: false */
        bool one_ep_rank; /* over the experts of EP rank 0 alone: false */
    } norm;
    bool move_before_state; /* parameters move by the state of before this step: false */
    bool one_counter;       /* all tenants count their steps in slot 0's counter: false */
    bool update_all_rows;   /* an update acts on all R rows, not on the tenant's r: false */
    bool master_lost;       /* updates start from the rounded parameter although a master copy is kept: false */
    bool decay_frozen;      /* weight decay reaches base weights that do not train: false */

    /* checkpoints */
    struct {
        bool state_of_ep_rank_0; /* experts' optimizer state is EP rank 0's on every rank: false */
        bool counter_lost;       /* step counters are 0 after a load: false */
        bool slots_reversed;     /* slots come back in falling order: false */
        bool keys_by_depth;      /* PEFT's keys of packed experts by nesting depth, down_proj first: false */
    } load;

    struct { /* one collective that one rank leaves out: COLLECTIVE_NONE */
        enum collective operation;
        int rank;
        int nth; /* of that operation on that rank in a case, from 0 */
    } skip;
};

struct rule_fault {    /* a planted fault: one field of the table set wrong */
    const char *name;  /* the case file's `fault:` */
    const char *about; /* one sentence: what goes wrong */
    void (*plant)(struct rules *rules);
};

extern const struct rules rules_right;
extern const struct rule_fault rule_faults[];                /* ends with name NULL */
const struct rule_fault *rule_fault_named(const char *name); /* NULL if unknown */

#endif
