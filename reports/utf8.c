#include "reports/utf8.h"

int utf8_length(const unsigned char *s) {
    if (s[0] < 0x80)
        return 1;
    int more = s[0] >= 0xf0 && s[0] <= 0xf4 ? 3 : s[0] >= 0xe0 && s[0] < 0xf0 ? 2 : s[0] >= 0xc2 && s[0] < 0xe0 ? 1 : 0;
    if (!more)
        return 0;
    for (int i = 1; i <= more; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    /* longer than needed, a surrogate, above U+10FFFF */
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] >= 0x90))
        return 0;
    return more + 1;
}
