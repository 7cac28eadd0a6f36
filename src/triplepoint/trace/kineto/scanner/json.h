/* Read JSON text without building a document.

   Every function reads from `text->at` and advances it. The text is followed by at least PADDING zero bytes, and a zero
   stops every loop, so that loops need not check `end`. */
#ifndef TRIPLEPOINT_JSON_H
#define TRIPLEPOINT_JSON_H

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#define PADDING 64
#define MAX_DEPTH 64

typedef enum { OK, MORE, BAD } Outcome; /* MORE: the text ended inside the item; BAD: invalid JSON */

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Text;

typedef struct {
    const uint8_t *start; /* NULL if missing; of a string, after the quote */
    size_t size;
} Span;

static inline Outcome stopped(const Text *text) { return text->at >= text->end ? MORE : BAD; }

static inline int is_space(uint8_t c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static inline void skip_space(Text *text) {
    while (is_space(*text->at)) text->at++;
}

/* Return the first quote, backslash or control character at or after `at`. */
static inline const uint8_t *find_special(const uint8_t *at) {
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1f);
    for (;; at += 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)at);
        __m128i is_control = _mm_cmpeq_epi8(_mm_min_epu8(block, control), block);
        __m128i is_mark = _mm_or_si128(_mm_cmpeq_epi8(block, quote), _mm_cmpeq_epi8(block, backslash));
        int mask = _mm_movemask_epi8(_mm_or_si128(is_control, is_mark));
        if (mask) return at + __builtin_ctz((unsigned)mask);
    }
#else
    while (*at != '"' && *at != '\\' && *at > 0x1f) at++;
    return at;
#endif
}

/* Read a string; `span` is the text between the quotes, with escapes. */
static inline Outcome read_string(Text *text, Span *span) {
    if (*text->at != '"') return stopped(text);
    const uint8_t *at = span->start = text->at + 1;
    for (;;) {
        at = find_special(at);
        text->at = at;
        if (at >= text->end) return MORE;
        if (*at == '"') break;
        if (*at != '\\') return BAD;
        if (at + 1 >= text->end) return MORE;
        if (!memchr("\"\\/bfnrtu", at[1], 9)) return BAD;
        at += 2;
    }
    span->size = (size_t)(at - span->start);
    text->at = at + 1;
    return OK;
}

/* Characters of numbers, and of the words that profilers write instead. */
static const uint8_t IS_WORD[256] = {
    ['+'] = 1, ['-'] = 1, ['.'] = 1, ['0' ... '9'] = 1, ['A' ... 'Z'] = 1, ['a' ... 'z'] = 1,
};

static inline int is_word(uint8_t c) { return IS_WORD[c]; }

/* Return the first character at or after `at` that is no digit, point or minus. */
static inline const uint8_t *skip_digits(const uint8_t *at) {
#ifdef __SSE2__
    const __m128i zero = _mm_set1_epi8('0'), nine = _mm_set1_epi8(9), point = _mm_set1_epi8('.'), minus = _mm_set1_epi8('-');
    for (;; at += 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)at), digit = _mm_sub_epi8(block, zero);
        __m128i is_digit = _mm_cmpeq_epi8(_mm_min_epu8(digit, nine), digit);
        __m128i is_sign = _mm_or_si128(_mm_cmpeq_epi8(block, point), _mm_cmpeq_epi8(block, minus));
        int mask = _mm_movemask_epi8(_mm_or_si128(is_digit, is_sign));
        if (mask != 0xffff) return at + __builtin_ctz(~(unsigned)mask);
    }
#else
    return at;
#endif
}

/* Read a number, true, false, null, or what some profilers write: NaN, inf, -Infinity. */
static inline Outcome read_word(Text *text, Span *span) {
    span->start = text->at;
    text->at = skip_digits(text->at);
    while (is_word(*text->at)) text->at++;
    span->size = (size_t)(text->at - span->start);
    if (text->at >= text->end) return MORE;
    return span->size ? OK : BAD;
}

/* Read `"key":` and the following space. */
static inline Outcome read_key(Text *text, Span *key) {
    Outcome outcome = read_string(text, key);
    if (outcome != OK) return outcome;
    skip_space(text);
    if (*text->at != ':') return stopped(text);
    text->at++;
    skip_space(text);
    return OK;
}

/* Read the comma between two members of an object or array, or `close` at its end, and set `*closed` accordingly. */
static inline Outcome read_separator(Text *text, uint8_t close, int *closed) {
    skip_space(text);
    *closed = *text->at == close;
    if (!*closed && *text->at != ',') return stopped(text);
    text->at++;
    if (!*closed) skip_space(text);
    return OK;
}

static Outcome read_nested(Text *text, Span *span, int depth);

/* Read any value; `span` is its text, of a string without the quotes. */
static inline Outcome read_value(Text *text, Span *span, int depth) {
    uint8_t open = *text->at;
    if (open == '"') return read_string(text, span);
    return open == '{' || open == '[' ? read_nested(text, span, depth) : read_word(text, span);
}

/* Read an object or an array. */
static __attribute__((unused)) Outcome read_nested(Text *text, Span *span, int depth) {
    if (depth == MAX_DEPTH) return BAD;
    int is_object = *text->at == '{';
    uint8_t close = is_object ? '}' : ']';
    span->start = text->at++;
    skip_space(text);
    int closed = *text->at == close;
    if (closed) text->at++;
    while (!closed) {
        Span part;
        Outcome outcome = is_object ? read_key(text, &part) : OK;
        if (outcome == OK) outcome = read_value(text, &part, depth + 1);
        if (outcome == OK) outcome = read_separator(text, close, &closed);
        if (outcome != OK) return outcome;
    }
    span->size = (size_t)(text->at - span->start);
    return OK;
}

static inline int is_text(Span span, const char *literal, size_t size) {
    return span.size == size && memcmp(span.start, literal, size) == 0;
}

#define IS(span, literal) is_text(span, "" literal, sizeof(literal) - 1)

static inline int starts_with(Span span, const char *prefix) {
    size_t size = strlen(prefix);
    return span.size >= size && memcmp(span.start, prefix, size) == 0;
}

#endif
