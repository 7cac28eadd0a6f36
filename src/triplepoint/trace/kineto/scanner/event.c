#include "target.h"

#include "event.h"

#include "decimal.h"

#define LONGEST_NS INT64_C(32000000000000000)  /* a year: a longer duration is damaged */
#define LATEST_NS INT64_C(4100000000000000000) /* the year 2100: sums of earlier times fit in 64 bits */

Outcome read_event(Text *text, Event *event) {
    memset(event, 0, sizeof *event);
    if (*text->at != '{') return stopped(text);
    text->at++;
    skip_space(text);
    int closed = *text->at == '}';
    if (closed) text->at++;
    while (!closed) {
        Span key, value;
        Outcome outcome = read_key(text, &key);
        if (outcome == OK) outcome = read_value(text, &value, 1);
        if (outcome == OK) outcome = read_separator(text, '}', &closed);
        if (outcome != OK) return outcome;
        if (IS(key, "ph")) event->phase = value;
        else if (IS(key, "cat")) event->category = value;
        else if (IS(key, "name")) event->name = value;
        else if (IS(key, "ts")) event->time = value;
        else if (IS(key, "dur")) event->duration = value;
        else if (IS(key, "pid")) event->process = value;
        else if (IS(key, "tid")) event->thread = value;
        else if (IS(key, "args")) event->arguments = value;
    }
    return OK;
}

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

/* Whether an argument is about communication. */
static int is_about_message(Span key) {
    switch (*key.start) {
    case 'C': return IS(key, "Collective name");
    case 'D': return IS(key, "Dst Rank");
    case 'G': return IS(key, "Group size");
    case 'I': return IS(key, "In msg nelems") || IS(key, "Input Dims") || IS(key, "Input type");
    case 'O': return IS(key, "Out msg nelems");
    case 'P': return starts_with(key, "Process Group ");
    case 'S': return IS(key, "Src Rank");
    case 'd': return IS(key, "dtype");
    default: return 0;
    }
}

/* Whether an argument is part of the launch geometry. */
static int is_about_geometry(Span key) {
    switch (*key.start) {
    case 'b': return IS(key, "block") || IS(key, "blocks per SM");
    case 'e': return IS(key, "est. achieved occupancy %");
    case 'g': return IS(key, "grid");
    case 'r': return IS(key, "registers per thread");
    case 's': return IS(key, "shared memory");
    case 'w': return IS(key, "warps per SM");
    default: return 0;
    }
}

static int append(Scratch *scratch, const void *bytes, size_t size) {
    if (!make_room((void **)&scratch->bytes, &scratch->room, scratch->size, size, 1)) return 0;
    memcpy(scratch->bytes + scratch->size, bytes, size);
    scratch->size += size;
    return 1;
}

/* Append `"key": value` as in the text, quotes included, where `end` is the end of the value. */
static int append_member(Scratch *scratch, Span key, const uint8_t *end) {
    const char *separator = scratch->size ? "," : "{";
    return append(scratch, separator, 1) && append(scratch, key.start - 1, (size_t)(end - (key.start - 1)));
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

/* Read the arguments of an event, whose text `read_event` has checked already. Return 0 if out of memory. */
static int read_arguments(Reader *reader, Span arguments, Row *row) {
    reader->message.size = reader->geometry.size = 0;
    if (!arguments.start || *arguments.start != '{') return 1;
    Text text = {arguments.start + 1, arguments.start + arguments.size};
    skip_space(&text);
    int closed = *text.at == '}';
    while (!closed) {
        Span key, value;
        if (read_key(&text, &key) != OK || read_value(&text, &value, 1) != OK) return 1;
        if (!key.size) ;
        else if (IS(key, "correlation")) row->correlation = read_integer(value, -1);
        else if (IS(key, "stream")) row->flags |= read_integer(value, -1) != -1 ? HAS_STREAM : 0;
        else if (is_about_message(key) && !append_member(&reader->message, key, text.at)) return 0;
        else if (is_about_geometry(key) && !append_member(&reader->geometry, key, text.at)) return 0;
        if (read_separator(&text, '}', &closed) != OK) return 1;
    }
    return intern_object(&reader->message, &reader->messages, &row->message) &&
           intern_object(&reader->geometry, &reader->geometries, &row->geometry);
}

static int is_wanted(const Reader *reader, int category, const Event *event) {
    if (category != CPU_OP || reader->wants_host) return category != OTHER;
    /* Communicating operators, and steps as profilers marked them in 2021. */
    return event->name.start && (starts_with(event->name, "c10d::") || starts_with(event->name, "ProfilerStep"));
}

/* Set the numbers of name and thread; return 0 if out of memory. */
static int set_name_and_thread(Reader *reader, const Event *event, Row *row) {
    static const uint8_t separator = '\t';
    Scratch *thread = &reader->thread;
    row->name = intern(&reader->names, event->name.start ? event->name.start : &separator, event->name.size);
    thread->size = 0;
    if (event->process.start && !append(thread, event->process.start, event->process.size)) return 0;
    if (!append(thread, &separator, 1)) return 0;
    if (event->thread.start && !append(thread, event->thread.start, event->thread.size)) return 0;
    row->thread = intern(&reader->threads, thread->bytes, thread->size);
    return row->name >= 0 && row->thread >= 0;
}

static int is_in_range(const Row *row) {
    return row->duration >= 0 && row->duration < LONGEST_NS && row->start > -LATEST_NS && row->start < LATEST_NS;
}

Verdict make_row(Reader *reader, const Event *event, Row *row) {
    if (!event->phase.start) return DAMAGED;
    uint8_t phase = event->phase.size == 1 ? *event->phase.start : 0;
    if (phase != 'X' && phase != 'B' && phase != 'E') return IGNORED;
    *row = (Row){.correlation = -1, .name = -1, .thread = -1, .message = -1, .geometry = -1};
    row->flags = phase == 'B' ? IS_BEGIN : phase == 'E' ? IS_END : 0;
    if (!read_us(event->time, &row->start)) return DAMAGED;
    if (phase == 'X' && (!event->category.start || !read_us(event->duration, &row->duration))) return DAMAGED;
    if (!is_in_range(row)) return DAMAGED;
    row->category = (uint8_t)category_of(event->category);
    /* All begins and ends are kept: without one of them the others would be paired wrongly. */
    int wanted = phase != 'X' || is_wanted(reader, row->category, event);
    if (!wanted && !(reader->wants_streams && event->arguments.start)) return IGNORED;
    if (!read_arguments(reader, event->arguments, row)) return NO_MEMORY;
    if (!wanted && !(row->flags & HAS_STREAM) && row->correlation < 0) return IGNORED;
    if (!set_name_and_thread(reader, event, row)) return NO_MEMORY;
    return event->name.start || phase == 'E' ? ROW : DAMAGED_ROW;
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
