/* adapter_config.json: what PEFT wrote about an adapter, as far as it decides targets and scale. Private to
 * core/adapter. */
#ifndef CORE_ADAPTER_CONFIG_H
#define CORE_ADAPTER_CONFIG_H

#include "core/adapter_match.h"
#include "core/yaml.h"

struct adapter_config {
    struct yaml yaml;
    char *text;                       /* the file's bytes */
    struct adapter_settings settings; /* borrows from yaml */
};

/* Settings that change what is stored or computed and are not supported are STATUS_INPUT. */
enum status adapter_config_open(struct adapter_config *out, const char *path);
void adapter_config_free(struct adapter_config *config); /* accepts {0} */

#endif
