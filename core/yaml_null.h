/* What JSON adds to core/yaml.h: a key may stand there with the value null. */
#ifndef CORE_YAML_NULL_H
#define CORE_YAML_NULL_H

#include "core/yaml.h"

bool yaml_is_null(const struct yaml_node *node);
/* The value of a key; NULL where it is absent or null. */
const struct yaml_node *yaml_present(const struct yaml_node *map, const char *key);

#endif
