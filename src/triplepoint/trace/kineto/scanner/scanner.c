#include "target.h"

#define _GNU_SOURCE /* memmem */
#include "scanner.h"

#include <stddef.h>

static int add_piece(Pieces *pieces, const uint8_t *bytes, size_t size) {
    if (!make_room((void **)&pieces->bytes, &pieces->room_bytes, pieces->num_bytes, size, 1)) return 0;
    if (!make_room((void **)&pieces->ends, &pieces->room, pieces->count, 1, sizeof(size_t))) return 0;
    if (size) memcpy(pieces->bytes + pieces->num_bytes, bytes, size);
    pieces->ends[pieces->count++] = pieces->num_bytes += size;
    return 1;
}

/* Keep the row after the last one, as a launch if it is a runtime call; return 0 if out of memory. */
static int keep_row(Scanner *scanner) {
    const Row *row = &scanner->rows[scanner->num_rows];
    if (row->category != RUNTIME || scanner->reader.wants_streams || row->flags & (IS_BEGIN | IS_END)) {
        scanner->num_rows++;
        return 1;
    }
    if (row->correlation <= 0) return 1; /* no work refers to it */
    if (!make_room((void **)&scanner->launches, &scanner->launches_room, scanner->num_launches, 1, sizeof(Launch)))
        return 0;
    scanner->launches[scanner->num_launches++] = (Launch){row->correlation, row->start, row->thread, row->geometry};
    return 1;
}

/* Count an event and keep its row; return 0 if out of memory. */
static int take_event(Scanner *scanner, const Event *event) {
    if (!make_room((void **)&scanner->rows, &scanner->rows_room, scanner->num_rows, 1, sizeof(Row))) return 0;
    Verdict verdict = make_row(&scanner->reader, event, &scanner->rows[scanner->num_rows]);
    scanner->num_events++;
    scanner->num_damaged += verdict == DAMAGED || verdict == DAMAGED_ROW;
    if (verdict == ROW || verdict == DAMAGED_ROW) return keep_row(scanner);
    return verdict != NO_MEMORY;
}

/* Return the number of events in a damaged text, by their phases. */
static size_t count_phases(const uint8_t *at, size_t size) {
    size_t count = 0;
    const uint8_t *end = at + size;
    while ((at = memmem(at, (size_t)(end - at), "\"ph\"", 4))) {
        count++;
        at += 4;
    }
    return count;
}

/* Keep a damaged text and count its events, at least one if it starts with an event. Return 0 if out of memory. */
static int keep_damage(Scanner *scanner, const uint8_t *start, const uint8_t *end) {
    size_t size = (size_t)(end - start), count = count_phases(start, size);
    scanner->num_damaged += count ? (int64_t)count : scanner->has_lost_event;
    scanner->has_lost_event = 0;
    scanner->num_searched = 0;
    return add_piece(&scanner->damaged, start, size < LARGEST_DAMAGE ? size : LARGEST_DAMAGE);
}

/* Each step reads one item and advances `text->at` after it. Steps return OK, MORE if the text ended inside the item,
   BAD if it is damaged (in both cases `text->at` is its start), or -1 if out of memory. */

static int step_before(Scanner *scanner, Text *text) {
    static const uint8_t byte_order_mark[] = {0xef, 0xbb, 0xbf};
    if (text->end - text->at < 3 && *text->at == byte_order_mark[0]) return MORE;
    if (!memcmp(text->at, byte_order_mark, 3)) text->at += 3;
    skip_space(text);
    if (text->at >= text->end) return MORE;
    scanner->is_list = scanner->has_events = *text->at == '[';
    if (*text->at != '{' && *text->at != '[') return BAD;
    text->at++;
    scanner->state = scanner->is_list ? EVENTS : MEMBERS;
    return OK;
}

static int step_members(Scanner *scanner, Text *text) {
    while (is_space(*text->at) || *text->at == ',') text->at++;
    if (text->at >= text->end) return MORE;
    if (*text->at == '}') {
        text->at++;
        scanner->is_closed = 1;
        scanner->state = AFTER;
        return OK;
    }
    Text ahead = *text;
    Span key, value;
    Outcome outcome = read_key(&ahead, &key);
    if (outcome == OK && ahead.at >= ahead.end) return MORE;
    if (outcome == OK && IS(key, "traceEvents") && *ahead.at == '[') {
        text->at = ahead.at + 1;
        scanner->has_events = 1;
        scanner->state = EVENTS;
        return OK;
    }
    if (outcome == OK) outcome = read_value(&ahead, &value, 1);
    if (outcome != OK) return outcome;
    *text = ahead;
    if (value.size > LARGEST_METADATA) return OK;
    Pieces *metadata = &scanner->metadata;
    return add_piece(metadata, key.start, key.size) && add_piece(metadata, value.start, value.size) ? OK : -1;
}

static int step_events(Scanner *scanner, Text *text) {
    while (is_space(*text->at) || *text->at == ',') text->at++;
    if (text->at >= text->end) return MORE;
    if (*text->at == ']') {
        text->at++;
        scanner->is_closed = scanner->is_list;
        scanner->state = scanner->is_list ? AFTER : MEMBERS;
        return OK;
    }
    Text ahead = *text;
    Event event;
    Outcome outcome = read_event(&ahead, &scanner->reader.layouts, &event);
    if (outcome != OK) return outcome;
    int is_empty = ahead.at - text->at == 2; /* some writers end the list with `{}`, to avoid a trailing comma */
    *text = ahead;
    return is_empty || take_event(scanner, &event) ? OK : -1;
}

/* Search for the next event, an object with a phase. The damaged text starts at `text->at`. */
static int step_searching(Scanner *scanner, Text *text, int is_last) {
    const uint8_t *at = text->at + scanner->num_searched;
    while ((at = memchr(at, '{', (size_t)(text->end - at)))) {
        Text ahead = {at, text->end};
        Event event;
        Outcome outcome = read_event(&ahead, &scanner->reader.layouts, &event);
        if (outcome == MORE && !is_last && text->end - at < (ptrdiff_t)LARGEST_DAMAGE) {
            scanner->num_searched = (size_t)(at - text->at);
            return MORE;
        }
        if (outcome == OK && event.members[PHASE].start) {
            if (!keep_damage(scanner, text->at, at)) return -1;
            text->at = at;
            scanner->has_events = 1;
            scanner->state = EVENTS;
            return OK;
        }
        at++;
    }
    scanner->num_searched = (size_t)(text->end - text->at);
    if (!is_last && text->end - text->at < (ptrdiff_t)LARGEST_DAMAGE) return MORE;
    if (!keep_damage(scanner, text->at, text->end)) return -1;
    const uint8_t *last = text->end;
    while (last > text->at && (is_space(last[-1]) || !last[-1])) last--;
    scanner->is_closed |= !scanner->is_cut && last > text->at && last[-1] == (scanner->is_list ? ']' : '}');
    text->at = text->end;
    return OK;
}

static int step_after(Text *text) {
    while (text->at < text->end && (is_space(*text->at) || !*text->at)) text->at++;
    return text->at >= text->end ? MORE : BAD;
}

static int step(Scanner *scanner, Text *text, int is_last) {
    switch (scanner->state) {
    case BEFORE: return step_before(scanner, text);
    case MEMBERS: return step_members(scanner, text);
    case EVENTS: return step_events(scanner, text);
    case SEARCHING: return step_searching(scanner, text, is_last);
    default: return step_after(text);
    }
}

/* Scan the buffer as far as it has complete items, or to its end if it `is_last`; return 0 if out of memory. */
static int scan(Scanner *scanner, int is_last) {
    Text text = {scanner->buffer + scanner->start, scanner->buffer + scanner->size};
    int outcome = OK;
    while (outcome != -1 && text.at < text.end) {
        outcome = step(scanner, &text, is_last);
        size_t left = (size_t)(text.end - text.at);
        if (outcome == MORE && left < LARGEST_ITEM && !(is_last && left && scanner->state != AFTER)) break;
        if (outcome != OK && outcome != -1) {
            scanner->has_lost_event |= scanner->state == EVENTS;
            scanner->is_cut = is_last && outcome == MORE;
            scanner->state = SEARCHING;
        }
    }
    scanner->start = (size_t)(text.at - scanner->buffer);
    return outcome != -1;
}

int feed(Scanner *scanner, const uint8_t *bytes, size_t size) {
    size_t left = scanner->size - scanner->start;
    if (scanner->start) memmove(scanner->buffer, scanner->buffer + scanner->start, left);
    scanner->start = 0;
    scanner->size = left;
    if (!make_room((void **)&scanner->buffer, &scanner->room, left, size + PADDING, 1)) return 0;
    memcpy(scanner->buffer + left, bytes, size);
    scanner->size = left + size;
    memset(scanner->buffer + scanner->size, 0, PADDING);
    return scan(scanner, 0);
}

int finish(Scanner *scanner) { return scanner->size == scanner->start || scan(scanner, 1); }

int feed_event(Scanner *scanner, const uint8_t *bytes, size_t size) {
    uint8_t *copy = calloc(1, size + PADDING);
    if (!copy) return -1;
    memcpy(copy, bytes, size);
    Text text = {copy, copy + size};
    Event event;
    size_t before = scanner->num_rows + scanner->num_launches;
    int64_t num_events = scanner->num_events, num_damaged = scanner->num_damaged;
    int has_memory = read_event(&text, &scanner->reader.layouts, &event) != OK || take_event(scanner, &event);
    scanner->num_events = num_events; /* the event counts as damaged already */
    scanner->num_damaged = num_damaged;
    free(copy);
    return has_memory ? scanner->num_rows + scanner->num_launches > before : -1;
}

static void free_pieces(Pieces *pieces) {
    free(pieces->bytes);
    free(pieces->ends);
}

void free_scanner(Scanner *scanner) {
    free_reader(&scanner->reader);
    free(scanner->buffer);
    free(scanner->rows);
    free(scanner->launches);
    free_pieces(&scanner->metadata);
    free_pieces(&scanner->damaged);
}
