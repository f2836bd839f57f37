#include "sharded/checkpoint_agree.h"

#include "sharded/state.h"

#include <stdlib.h>
#include <string.h>

enum {
    NOTE_WORDS = 128 /* of 8 bytes: what travels of a note */
};

static enum status count_failures(struct subject *subject, struct comm_group *world, bool failed, const char *what,
                                  int64_t *out) {
    const struct comm_call call = {COMM_SITE, what, DTYPE_I64};
    const int64_t one = 1;
    int64_t flag = failed;
    struct tensor host = tensor_view(DTYPE_I64, 1, &one, &flag), device = {0};
    TRY(device_upload(subject->ops, &device, &host));
    enum status status = comm_all_reduce(subject->comm, world, &call, device.data, 1);
    subject->ops->to_host(out, device.data, sizeof *out);
    device_free(subject->ops, &device);
    return status;
}

/* words [world][1 + NOTE_WORDS]: every rank's status and note. */
static enum status gather_notes(struct subject *subject, struct comm_group *world, enum status mine, const char *what,
                                struct tensor *out) {
    enum status status = STATUS_OK;
    const struct comm_call call = {COMM_SITE, what, DTYPE_I64};
    const int64_t count = 1 + NOTE_WORDS, all = count * subject->world;
    int64_t words[1 + NOTE_WORDS] = {(int64_t)mine};
    struct tensor host = tensor_view(DTYPE_I64, 1, &count, words), send = {0}, receive = {0};
    strncpy((char *)&words[1], mine == STATUS_OK ? "" : status_note(), NOTE_WORDS * sizeof *words - 1);
    TRY_DONE(device_upload(subject->ops, &send, &host));
    TRY_DONE(device_make(subject->ops, &receive, DTYPE_I64, 1, &all));
    TRY_DONE(comm_all_gather(subject->comm, world, &call, send.data, receive.data, count));
    TRY_DONE(device_download(subject->ops, out, &receive));
done:
    device_free(subject->ops, &receive);
    device_free(subject->ops, &send);
    return status;
}

enum status checkpoint_agree(struct subject *subject, enum status mine, const char *what) {
    struct comm_group *world;
    struct tensor notes = {0};
    int64_t failures;
    TRY(groups_get(subject, (1u << subject->mesh.axes) - 1, &world));
    TRY(count_failures(subject, world, mine != STATUS_OK, what, &failures));
    if (failures == 0)
        return STATUS_OK;
    TRY(gather_notes(subject, world, mine, what, &notes));
    const int64_t *words = notes.data;
    while (*words == STATUS_OK)
        words += 1 + NOTE_WORDS;
    status_clear();
    enum status status = status_fail((enum status) * words, "%s", (const char *)(words + 1));
    tensor_free(&notes);
    return status;
}
