/* Every decision that someone has got wrong in public is one field of one table. The right table is the product; a
 * planted fault changes one field, or leaves one collective out on one rank. The subject has no fault branches. */
#ifndef SHARDED_RULES_H
#define SHARDED_RULES_H

#include "sharded/board.h"

struct rules {
    const char *import_b; /* how PEFT's flat lora_B is read: "out (rank expert[ep])": rank slow, expert FAST */
    const char *export_b; /* how flat lora_B lies while it is gathered for export: the same; EP's plain concat on dim 1
                             is "out (rank expert)[ep]" */
    int ep_shift;         /* EP rank p holds block (p + ep_shift) mod ep of the packed expert weights: 0 */
    bool expert_divisor_world; /* expert gradients are divided once more by the world size: false */
    bool loss_mean_of_means;   /* each rank divides by (its own count * ranks with labels) instead of the global count:
                                  false */
    struct {                   /* one collective that one rank leaves out: COLLECTIVE_NONE */
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
