/* index.json of a sharded checkpoint: what it holds and how it was cut. */
#ifndef SHARDED_CHECKPOINT_INDEX_H
#define SHARDED_CHECKPOINT_INDEX_H

#include "sharded/checkpoint_list.h"

#define CHECKPOINT_SCHEMA "shardproof.checkpoint/1"
#define CHECKPOINT_INDEX "index.json"

struct saved_file { /* of one rank */
    int64_t bytes;
    uint64_t checksum;
};

struct saved_index {
    struct mesh mesh;
    int world;
    int slots;
    int *tenant, *steps;     /* [slots] who holds it (-1: free), optimizer steps since the acquire */
    struct saved_file *file; /* [world] */
    void *root;              /* private: the tensors' part of the document */
};

char *saved_file_name(char *out, size_t size, int rank); /* "rank00003.safetensors" */
/* FNV-1a, 64 bits. */
uint64_t saved_checksum(const void *data, size_t bytes);

/* The index of what this subject holds; the files are filled in by the caller. Freed by saved_index_free. */
enum status saved_index_of(struct saved_index *out, const struct subject *subject);
enum status saved_index_write(const struct saved_index *index, const struct subject *subject,
                              const struct saved_list *list, const char *folder);
/* STATUS_INPUT that names the file and what is wrong, also where it is of another job: type, slots, rank, optimizer,
 * tenants. */
enum status saved_index_read(struct saved_index *out, const struct subject *subject, const char *folder);
/* The layout line of one tensor of the list under the index's mesh, bound; its shape must be the list's. */
enum status saved_index_line(const struct saved_index *index, const struct saved_tensor *tensor, const char *folder,
                             struct line *out);
int saved_index_tensors(const struct saved_index *index);
void saved_index_free(struct saved_index *index); /* accepts {0} */

#endif
