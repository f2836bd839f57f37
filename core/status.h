/* Status: how a function says that it could not do its work.
 *
 * A status is an enum that is returned and relayed; the one message is written where the fault is seen, into a note
 * that belongs to the calling thread (a rank may be a thread), and printed once by `main` or by the rank's world.
 * A verdict ("these tensors differ") is never a status: it is data and flows to the report. */
#ifndef CORE_STATUS_H
#define CORE_STATUS_H

enum status {
    STATUS_OK = 0,
    STATUS_INPUT,   /* a file or an option that the user can mend: exit 2 */
    STATUS_MEMORY,  /* out of memory */
    STATUS_IO,      /* the system refused a read or a write */
    STATUS_RANK,    /* a rank or its world failed: exit 3 */
    STATUS_INTERNAL /* a promise inside the program was broken */
};

/* Writes the note and returns `code`. Form of a note: `FILE:LINE: what, what was expected` (LINE where there is one).
 * A second failure before status_clear keeps the first note: the origin wins. */
enum status status_fail(enum status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The calling thread's note; "" if none. Valid until the next status_fail or status_clear of this thread. */
const char *status_note(void);
void status_clear(void);

/* Relays a failure to the caller. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        enum status try_status = (call);                                                                               \
        if (try_status != STATUS_OK)                                                                                   \
            return try_status;                                                                                         \
    } while (0)

/* The same where something must be freed first: needs `enum status status` and a label `done`. */
#define TRY_DONE(call)                                                                                                 \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != STATUS_OK)                                                                                       \
            goto done;                                                                                                 \
    } while (0)

#endif
