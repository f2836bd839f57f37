/* PEFT's matching rules: from the settings of an adapter and the model's parameters to its targets. Private to
 * core/adapter. */
#ifndef CORE_ADAPTER_MATCH_H
#define CORE_ADAPTER_MATCH_H

#include "core/adapter.h"
#include "core/pattern.h"

struct adapter_entry { /* of target_parameters, target_modules */
    const char *text;
    int line; /* 0: none */
};

struct adapter_pattern { /* of rank_pattern, alpha_pattern */
    struct pattern pattern;
    double value;
};

struct adapter_settings { /* strings are borrowed */
    const char *place;    /* FILE, or FILE:LINE, before a message */
    int64_t rank;
    double alpha;
    bool rslora;
    int parameters;
    struct adapter_entry *parameter; /* name equal to the entry, or ending in "." + entry */
    int modules;
    struct adapter_entry *module; /* the same rule on module names */
    struct pattern modules_regex; /* instead of the list, if compiled */
    bool all_linear;              /* instead of the list: every linear module but lm_head */
    int modules_line;
    int ranks; /* in file order, the first that matches wins */
    struct adapter_pattern *rank_pattern;
    int alphas;
    struct adapter_pattern *alpha_pattern;
    bool every_entry; /* an entry that matches nothing is refused */
};

void adapter_settings_free(struct adapter_settings *settings); /* accepts {0} */

/* Fills out->count and out->targets but for their tensors, in inventory order. */
enum status adapter_match(struct adapter *out, const struct adapter_settings *settings,
                          const struct inventory *inventory);

/* Room for a hint in a message: PEFT 0.21 moves target_modules entries such as down_proj to the experts' parameters; ""
 * if no entry is of that kind. Returns `out`. */
#define ADAPTER_HINT_MAX 320
char *adapter_rewrite_hint(char out[ADAPTER_HINT_MAX], const struct adapter_settings *settings,
                           const struct inventory *inventory);

#endif
