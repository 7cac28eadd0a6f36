/* Read numbers from text: microseconds as integer nanoseconds, and integers. */
#ifndef TRIPLEPOINT_DECIMAL_H
#define TRIPLEPOINT_DECIMAL_H

#include <math.h>

#include "json.h"

#define NS_PER_US 1000
#define MAX_DIGITS 19 /* decimal digits that fit in 64 bits */

/* The decimal number digits * 10^exponent. */
typedef struct {
    uint64_t digits;
    int exponent, is_negative;
} Decimal;

/* Read a decimal number; return 0 for other text. Digits beyond MAX_DIGITS are dropped. */
static inline int read_decimal(Span span, Decimal *decimal) {
    const uint8_t *at = span.start, *end = span.start + span.size;
    *decimal = (Decimal){0, 0, 0};
    if (at < end && (*at == '-' || *at == '+')) decimal->is_negative = *at++ == '-';
    int num_digits = 0, num_seen = 0, in_fraction = 0;
    for (; at < end && ((*at >= '0' && *at <= '9') || (*at == '.' && !in_fraction)); at++) {
        if (*at == '.') {
            in_fraction = 1;
            continue;
        }
        num_seen++;
        if (num_digits < MAX_DIGITS) {
            decimal->digits = 10 * decimal->digits + (*at - '0');
            num_digits += decimal->digits != 0;
            decimal->exponent -= in_fraction;
        } else if (!in_fraction)
            decimal->exponent++;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        int sign = 1, exponent = 0, has_digits = 0;
        if (++at < end && (*at == '-' || *at == '+')) sign = *at++ == '-' ? -1 : 1;
        for (; at < end && *at >= '0' && *at <= '9'; at++, has_digits = 1)
            if (exponent < 10000) exponent = 10 * exponent + (*at - '0');
        if (!has_digits) return 0;
        decimal->exponent += sign * exponent;
    }
    return num_seen > 0 && at == end;
}

/* Read digits, a point and three more digits, the form of nearly all times; return 0 for other text. */
static inline int read_plain_us(Span span, int64_t *ns) {
    const uint8_t *at = span.start, *point = span.start + span.size - 4;
    int64_t value = 0;
    if (span.size < 5 || span.size > MAX_DIGITS || *point != '.') return 0;
    for (; at < point; at++) {
        unsigned digit = *at - '0';
        if (digit > 9) return 0;
        value = 10 * value + digit;
    }
    unsigned tenths = at[1] - '0', hundredths = at[2] - '0', thousandths = at[3] - '0';
    if (tenths > 9 || hundredths > 9 || thousandths > 9) return 0;
    *ns = NS_PER_US * value + 100 * tenths + 10 * hundredths + thousandths;
    return 1;
}

/* Read a time in microseconds as nanoseconds; return 0 if it is no number, or out of range.

   Whole microseconds, and three decimals, are exact nanoseconds. Any other text was printed from a float. Then the
   nearest float is what the writer had: an absolute time as float microseconds has fewer significant decimals than it
   shows. */
static inline int read_us(Span span, int64_t *ns) {
    static const long double powers[] = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,
                                         1e10L, 1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L};
    const int max_exponent = sizeof powers / sizeof *powers - 1;
    if (span.start && read_plain_us(span, ns)) return 1;
    Decimal decimal;
    if (!span.start || !read_decimal(span, &decimal)) return 0;
    if (decimal.exponent == -3 && decimal.digits <= INT64_MAX)
        *ns = (int64_t)decimal.digits;
    else if (decimal.exponent == 0 && decimal.digits <= INT64_MAX / NS_PER_US)
        *ns = (int64_t)decimal.digits * NS_PER_US;
    else {
        if (decimal.exponent > max_exponent) return decimal.digits == 0 ? (*ns = 0, 1) : 0;
        long double exact = decimal.digits;
        for (; decimal.exponent < -max_exponent; decimal.exponent += max_exponent) {
            exact /= powers[max_exponent];
            if (exact == 0) decimal.exponent = -max_exponent;
        }
        exact = decimal.exponent < 0 ? exact / powers[-decimal.exponent] : exact * powers[decimal.exponent];
        double us = (double)exact, whole = floor(us);
        if (!(whole < (double)(INT64_MAX / NS_PER_US))) return 0;
        *ns = (int64_t)whole * NS_PER_US + (int64_t)rint((us - whole) * NS_PER_US);
    }
    if (decimal.is_negative) *ns = -*ns;
    return 1;
}

/* Read an integer; return `fallback` for other text. */
static inline int64_t read_integer(Span span, int64_t fallback) {
    Decimal decimal;
    if (!read_decimal(span, &decimal) || decimal.exponent || decimal.digits > INT64_MAX) return fallback;
    return decimal.is_negative ? -(int64_t)decimal.digits : (int64_t)decimal.digits;
}

#endif
