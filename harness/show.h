/* `shardproof show`: tables a person can read. */
#ifndef HARNESS_SHOW_H
#define HARNESS_SHOW_H

#include "core/status.h"

#include <stdbool.h>

enum status show_trace(const char *path);            /* the tensors of a safetensors file */
enum status show_layout(const char *path, int rank); /* who owns what; -1: every rank */
enum status show_case(const char *path);             /* what a case file becomes */
enum status show_model(const char *folder);          /* parameters of a Hugging Face folder */
enum status show_faults(void);                       /* the faults that a case can plant */

/* `shardproof agree A.json B.json`: two reports of the same cases, bit for bit. *same false: what differs was printed.
 */
enum status show_agreement(const char *a, const char *b, bool *same);

#endif
