/* What a script has saved under a name: the trained base weights and every slot with all that its tenant owns. */
#ifndef REFERENCE_SAVED_H
#define REFERENCE_SAVED_H

#include "reference/state.h"

struct saved {
    bool present;
    struct value *weight;    /* [parameters] those that train */
    struct holding *holding; /* [slots] without windows */
};

void saved_free(struct saved *saved, int params, int slots); /* accepts {0} */

/* A copy of the whole state under number `save` of the job; no window is open. */
enum status reference_save(struct reference *reference, int save);
/* The state as it was there. */
enum status reference_load(struct reference *reference, int save);

#endif
