/* Text from outside, such as a file's name, may be no UTF-8; reports must be. Private to reports. */
#ifndef REPORTS_UTF8_H
#define REPORTS_UTF8_H

/* Bytes of the well-formed character at `s` (1 to 4; RFC 3629), 0 if there is none. */
int utf8_length(const unsigned char *s);

#define UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

#endif
