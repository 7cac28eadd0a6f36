#include "target.h"

#include "event.h"

#include "decimal.h"

#define LONGEST_NS INT64_C(32000000000000000)  /* a year: a longer duration is damaged */
#define LATEST_NS INT64_C(4100000000000000000) /* the year 2100: sums of earlier times fit in 64 bits */

static int category_of(Span span) {
    if (!span.start) return OTHER;
    if (IS(span, "cpu_op") || IS(span, "Operator")) return CPU_OP;
    if (IS(span, "cuda_runtime") || IS(span, "cuda_driver") || IS(span, "Runtime")) return RUNTIME;
    if (IS(span, "kernel") || IS(span, "Kernel")) return KERNEL;
    if (IS(span, "gpu_memcpy") || IS(span, "Memcpy")) return MEMCPY;
    if (IS(span, "gpu_memset") || IS(span, "Memset")) return MEMSET;
    if (IS(span, "user_annotation")) return ANNOTATION;
    if (IS(span, "gpu_user_annotation")) return GPU_ANNOTATION;
    return OTHER;
}

/* Return what a member of an event is for. */
static Role role_in_event(Span key) {
    if (IS(key, "ph")) return PHASE;
    if (IS(key, "cat")) return CATEGORY;
    if (IS(key, "name")) return NAME;
    if (IS(key, "ts")) return TIME;
    if (IS(key, "dur")) return DURATION;
    if (IS(key, "pid")) return PROCESS;
    if (IS(key, "tid")) return THREAD;
    return IS(key, "args") ? ARGUMENTS : UNUSED;
}

/* Return what an argument is for: the message of a collective, or the geometry of a launch, among others. */
static Role role_in_arguments(Span key) {
    switch (*key.start) {
    case 'C': return IS(key, "Collective name") ? MESSAGE : UNUSED;
    case 'D': return IS(key, "Dst Rank") ? MESSAGE : UNUSED;
    case 'G': return IS(key, "Group size") ? MESSAGE : UNUSED;
    case 'I': return IS(key, "In msg nelems") || IS(key, "Input Dims") || IS(key, "Input type") ? MESSAGE : UNUSED;
    case 'O': return IS(key, "Out msg nelems") ? MESSAGE : UNUSED;
    case 'P': return starts_with(key, "Process Group ") ? MESSAGE : UNUSED;
    case 'S': return IS(key, "Src Rank") ? MESSAGE : UNUSED;
    case 'b': return IS(key, "block") || IS(key, "blocks per SM") ? GEOMETRY : UNUSED;
    case 'c': return IS(key, "correlation") ? CORRELATION : UNUSED;
    case 'd': return IS(key, "dtype") ? MESSAGE : UNUSED;
    case 'e': return IS(key, "est. achieved occupancy %") ? GEOMETRY : UNUSED;
    case 'g': return IS(key, "grid") ? GEOMETRY : UNUSED;
    case 'r': return IS(key, "registers per thread") ? GEOMETRY : UNUSED;
    case 's': return IS(key, "stream") ? STREAM : IS(key, "shared memory") ? GEOMETRY : UNUSED;
    case 'w': return IS(key, "warps per SM") ? GEOMETRY : UNUSED;
    default: return UNUSED;
    }
}

/* Whether the text at `at`, which is followed by PADDING bytes, begins with that of a key. */
static inline int is_known(const Key *key, const uint8_t *at) {
#ifdef __AVX2__
    __m256i known = _mm256_loadu_si256((const __m256i *)key->text), found = _mm256_loadu_si256((const __m256i *)at);
    uint64_t equal = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(known, found)), used = (UINT64_C(1) << key->size) - 1;
    return key->size && (equal & used) == used;
#else
    return key->size && !memcmp(key->text, at, key->size);
#endif
}

/* A member of an object: what it is for, and where its key begins. */
typedef struct {
    Role role;
    const uint8_t *start;
} Member;

/* Read the text before value `number` of an object: brace or comma, key and colon. Set `*closed` if the object has no
   such value, after the brace that closes it. */
static inline Outcome read_to_value(
    Text *text, Layout *layout, int number, Role (*role_of)(Span), Member *member, int *closed) {
    const uint8_t *start = text->at;
    Key *known = number < MAX_KEYS ? &layout->keys[number] : NULL;
    if (known && is_known(known, start)) {
        *member = (Member){known->role, start + known->quote};
        text->at += known->size;
        skip_space(text);
        return OK;
    }
    Span key;
    if (number == 0) {
        text->at++;
        skip_space(text);
        *closed = *text->at == '}';
        if (*closed) text->at++;
    } else {
        Outcome outcome = read_separator(text, '}', closed);
        if (outcome != OK) return outcome;
    }
    if (*closed) return OK;
    Outcome outcome = read_key(text, &key);
    if (outcome != OK) return outcome;
    *member = (Member){role_of(key), key.start - 1};
    size_t size = (size_t)(text->at - start);
    if (known && size <= KEY_ROOM) {
        memcpy(known->text, start, KEY_ROOM);
        known->size = (uint8_t)size;
        known->quote = (uint8_t)(member->start - start);
        known->role = (uint8_t)member->role;
    }
    return OK;
}

/* Read the arguments of an event, and keep those that are used. */
static Outcome read_arguments(Text *text, Layout *layout, Event *event) {
    event->has_arguments = 1;
    event->num_arguments = 0;
    if (*text->at != '{') {
        Span unused;
        return read_value(text, &unused, 1);
    }
    int closed = 0;
    for (int number = 0;; number++) {
        Member member;
        Span value;
        Outcome outcome = read_to_value(text, layout, number, role_in_arguments, &member, &closed);
        if (outcome != OK || closed) return outcome;
        outcome = read_value(text, &value, 2);
        if (outcome != OK) return outcome;
        if (member.role != UNUSED && event->num_arguments < MAX_ARGUMENTS)
            event->arguments[event->num_arguments++] =
                (Argument){value, {member.start, (size_t)(text->at - member.start)}, member.role};
    }
}

Outcome read_event(Text *text, Layouts *layouts, Event *event) {
    memset(event->members, 0, sizeof event->members);
    event->num_arguments = event->has_arguments = 0;
    event->category = OTHER;
    if (*text->at != '{') return stopped(text);
    int closed = 0;
    for (int number = 0;; number++) {
        Member member;
        Outcome outcome = read_to_value(text, &layouts->event, number, role_in_event, &member, &closed);
        if (outcome != OK || closed) return outcome;
        if (member.role == ARGUMENTS)
            outcome = read_arguments(text, &layouts->arguments[event->category], event);
        else
            outcome = read_value(text, &event->members[member.role], 1);
        if (outcome != OK) return outcome;
        if (member.role == CATEGORY) event->category = category_of(event->members[CATEGORY]);
    }
}

static int append(Scratch *scratch, const void *bytes, size_t size) {
    if (!make_room((void **)&scratch->bytes, &scratch->room, scratch->size, size, 1)) return 0;
    memcpy(scratch->bytes + scratch->size, bytes, size);
    scratch->size += size;
    return 1;
}

/* Append `"key": value` as in the text. */
static int append_member(Scratch *scratch, Span member) {
    return append(scratch, scratch->size ? "," : "{", 1) && append(scratch, member.start, member.size);
}

/* Close and intern an object built by `append_member`, and set `*number`, to -1 if it has no members. Return 0 if out
   of memory. */
static int intern_object(Scratch *scratch, Interned *table, int32_t *number) {
    *number = -1;
    if (!scratch->size) return 1;
    if (!append(scratch, "}", 1)) return 0;
    *number = intern(table, scratch->bytes, scratch->size);
    return *number >= 0;
}

/* Set what the arguments of an event say; return 0 if out of memory. */
static int set_arguments(Reader *reader, const Event *event, Row *row) {
    reader->message.size = reader->geometry.size = 0;
    for (const Argument *it = event->arguments; it < event->arguments + event->num_arguments; it++) {
        if (it->role == CORRELATION) row->correlation = read_integer(it->value, -1);
        else if (it->role == STREAM) row->flags |= read_integer(it->value, -1) != -1 ? HAS_STREAM : 0;
        else if (!append_member(it->role == MESSAGE ? &reader->message : &reader->geometry, it->member)) return 0;
    }
    return intern_object(&reader->message, &reader->messages, &row->message) &&
           intern_object(&reader->geometry, &reader->geometries, &row->geometry);
}

static int is_wanted(const Reader *reader, const Event *event) {
    if (event->category != CPU_OP || reader->wants_host) return event->category != OTHER;
    /* Communicating operators, and steps as profilers marked them in 2021. */
    Span name = event->members[NAME];
    return name.start && (starts_with(name, "c10d::") || starts_with(name, "ProfilerStep"));
}

/* Set the numbers of name and thread; return 0 if out of memory. */
static int set_name_and_thread(Reader *reader, const Event *event, Row *row) {
    static const uint8_t separator = '\t';
    Span name = event->members[NAME], process = event->members[PROCESS], number = event->members[THREAD];
    Scratch *thread = &reader->thread;
    row->name = intern(&reader->names, name.start ? name.start : &separator, name.size);
    thread->size = 0;
    if (process.start && !append(thread, process.start, process.size)) return 0;
    if (!append(thread, &separator, 1)) return 0;
    if (number.start && !append(thread, number.start, number.size)) return 0;
    row->thread = intern(&reader->threads, thread->bytes, thread->size);
    return row->name >= 0 && row->thread >= 0;
}

static int is_in_range(const Row *row) {
    return row->duration >= 0 && row->duration < LONGEST_NS && row->start > -LATEST_NS && row->start < LATEST_NS;
}

Verdict make_row(Reader *reader, const Event *event, Row *row) {
    Span phase = event->members[PHASE];
    if (!phase.start) return DAMAGED;
    uint8_t letter = phase.size == 1 ? *phase.start : 0;
    if (letter != 'X' && letter != 'B' && letter != 'E') return IGNORED;
    *row = (Row){.correlation = -1, .name = -1, .thread = -1, .message = -1, .geometry = -1};
    row->flags = letter == 'B' ? IS_BEGIN : letter == 'E' ? IS_END : 0;
    if (!read_us(event->members[TIME], &row->start)) return DAMAGED;
    int has_duration = letter != 'X' || read_us(event->members[DURATION], &row->duration);
    if (!has_duration || (letter == 'X' && !event->members[CATEGORY].start) || !is_in_range(row)) return DAMAGED;
    row->category = (uint8_t)event->category;
    /* All begins and ends are kept: without one of them the others would be paired wrongly. */
    int wanted = letter != 'X' || is_wanted(reader, event);
    if (!wanted && !(reader->wants_streams && event->has_arguments)) return IGNORED;
    if (!set_arguments(reader, event, row)) return NO_MEMORY;
    if (!wanted && !(row->flags & HAS_STREAM) && row->correlation < 0) return IGNORED;
    if (!set_name_and_thread(reader, event, row)) return NO_MEMORY;
    return event->members[NAME].start || letter == 'E' ? ROW : DAMAGED_ROW;
}

void free_reader(Reader *reader) {
    free_interned(&reader->names);
    free_interned(&reader->threads);
    free_interned(&reader->messages);
    free_interned(&reader->geometries);
    free(reader->message.bytes);
    free(reader->geometry.bytes);
    free(reader->thread.bytes);
}
