/* Reports as a nightly job reads them. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "command.h"

#include <jansson.h>

json_t *report_load(const struct scratch *scratch, const char *name); /* fails the test if it is no report */
/* The case of that name; fails the test if the report has none. Borrowed. */
json_t *report_case_of(const json_t *report, const char *name);
const char *text_of(const json_t *object, const char *key);  /* "" if it is no string */
json_int_t number_of(const json_t *object, const char *key); /* -1 if it is no integer */
/* The value behind "finding.collective.site". */
json_t *json_at(const json_t *object, const char *path);

#endif
