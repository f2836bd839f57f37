#include "core/yaml_null.h"

#include <string.h>
#include <strings.h>

bool yaml_is_null(const struct yaml_node *node) {
    if (node->kind != YAML_SCALAR || node->quoted)
        return false;
    return node->text[0] == '\0' || strcmp(node->text, "~") == 0 || strcasecmp(node->text, "null") == 0;
}

const struct yaml_node *yaml_present(const struct yaml_node *map, const char *key) {
    const struct yaml_node *node = yaml_get(map, key);
    return node && !yaml_is_null(node) ? node : NULL;
}
