#include "event.h"

#include "decimal.h"

#define LONGEST_NS INT64_C(32000000000000000)  /* a year: no event lasts longer, whatever a damaged one says */
#define LATEST_NS INT64_C(4100000000000000000) /* the year 2100: no sum of times leaves 64 bits */

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

/* Return the product of a list of integers, as [8, 1, 1]; -1 if it is none. */
static int64_t read_product(Span list) {
    if (list.size < 2 || *list.start != '[') return -1;
    Text text = {list.start + 1, list.start + list.size - 1};
    int64_t product = 1;
    while (text.at < text.end) {
        Span word;
        while (text.at < text.end && !is_word(*text.at)) text.at++;
        word.start = text.at;
        while (text.at < text.end && is_word(*text.at)) text.at++;
        word.size = (size_t)(text.at - word.start);
        int64_t factor = word.size ? read_integer(word, -1) : 1;
        if (factor < 0 || __builtin_mul_overflow(product, factor, &product)) return -1;
    }
    return product;
}

static int32_t clip(int64_t value) { return value < -1 || value > INT32_MAX ? -1 : (int32_t)value; }

/* What tells which collective an event is, and among whom. */
static int is_about_communication(Span key) {
    switch (*key.start) {
    case 'C': return IS(key, "Collective name");
    case 'G': return IS(key, "Group size");
    case 'I': return IS(key, "In msg nelems") || IS(key, "Input Dims") || IS(key, "Input type");
    case 'O': return IS(key, "Out msg nelems");
    case 'P': return starts_with(key, "Process Group ");
    case 'd': return IS(key, "dtype");
    default: return 0;
    }
}

static int append(Reader *reader, const void *bytes, size_t size) {
    if (!make_room((void **)&reader->scratch, &reader->scratch_room, reader->scratch_size, size, 1)) return 0;
    memcpy(reader->scratch + reader->scratch_size, bytes, size);
    reader->scratch_size += size;
    return 1;
}

/* Append `"key": value` as it stands in the text, quotes included. */
static int append_member(Reader *reader, Span key, const uint8_t *end) {
    const char *before = reader->scratch_size ? "," : "{";
    return append(reader, before, 1) && append(reader, key.start - 1, (size_t)(end - (key.start - 1)));
}

static void read_number(Row *row, Span key, Span value) {
    switch (*key.start) {
    case 'b':
        if (IS(key, "bytes")) row->bytes = read_integer(value, -1);
        else if (IS(key, "block")) row->threads_per_block = clip(read_product(value));
        else if (IS(key, "blocks per SM")) row->blocks_per_sm = read_ratio(value);
        break;
    case 'c':
        if (IS(key, "correlation")) row->correlation = read_integer(value, -1);
        break;
    case 'e':
        if (IS(key, "est. achieved occupancy %")) row->occupancy = read_ratio(value) / 100;
        break;
    case 'g':
        if (IS(key, "grid")) row->num_blocks = read_product(value);
        break;
    case 'r':
        if (IS(key, "registers per thread")) row->registers_per_thread = clip(read_integer(value, -1));
        break;
    case 's':
        if (IS(key, "stream") && read_integer(value, -1) != -1) row->flags |= HAS_STREAM;
        else if (IS(key, "shared memory")) row->shared_memory_bytes = clip(read_integer(value, -1));
        break;
    case 'w':
        if (IS(key, "warps per SM")) row->warps_per_sm = read_ratio(value);
        break;
    }
}

/* Read the arguments of an event that is kept; they were stepped over once, so they are whole. */
static int read_arguments(Reader *reader, Span arguments, Row *row) {
    reader->scratch_size = 0;
    if (!arguments.start || *arguments.start != '{') return 1;
    Text text = {arguments.start + 1, arguments.start + arguments.size};
    skip_space(&text);
    int closed = *text.at == '}';
    while (!closed) {
        Span key, value;
        if (read_key(&text, &key) != OK || read_value(&text, &value, 1) != OK) return 1;
        if (key.size && is_about_communication(key)) {
            if (!append_member(reader, key, text.at)) return 0;
        } else if (key.size)
            read_number(row, key, value);
        if (read_separator(&text, '}', &closed) != OK) return 1;
    }
    if (!reader->scratch_size) return 1;
    if (!append(reader, "}", 1)) return 0;
    row->arguments = intern(&reader->arguments, reader->scratch, reader->scratch_size);
    return row->arguments >= 0;
}

static int is_wanted(const Reader *reader, int category, const Event *event) {
    if (category != CPU_OP || reader->wants_host) return category != OTHER;
    /* Of operators only those that communicate, and the steps as they were marked in 2021. */
    return event->name.start && (starts_with(event->name, "c10d::") || starts_with(event->name, "ProfilerStep"));
}

static int identify(Reader *reader, const Event *event, Row *row) {
    static const uint8_t between = '\t';
    row->name = intern(&reader->names, event->name.start ? event->name.start : &between, event->name.size);
    reader->scratch_size = 0;
    if (event->process.start && !append(reader, event->process.start, event->process.size)) return 0;
    if (!append(reader, &between, 1)) return 0;
    if (event->thread.start && !append(reader, event->thread.start, event->thread.size)) return 0;
    row->thread = intern(&reader->threads, reader->scratch, reader->scratch_size);
    return row->name >= 0 && row->thread >= 0;
}

static int is_in_range(const Row *row) {
    return row->duration >= 0 && row->duration < LONGEST_NS && row->start > -LATEST_NS && row->start < LATEST_NS;
}

Verdict make_row(Reader *reader, const Event *event, Row *row) {
    if (!event->phase.start) return DAMAGED;
    uint8_t phase = event->phase.size == 1 ? *event->phase.start : 0;
    if (phase != 'X' && phase != 'B' && phase != 'E') return IGNORED;
    *row = (Row){.correlation = -1, .bytes = -1, .num_blocks = -1, .arguments = -1, .threads_per_block = -1,
                 .registers_per_thread = -1, .shared_memory_bytes = -1, .occupancy = NAN, .blocks_per_sm = NAN,
                 .warps_per_sm = NAN};
    row->flags = phase == 'B' ? IS_BEGIN : phase == 'E' ? IS_END : 0;
    if (!read_us(event->time, &row->start)) return DAMAGED;
    if (phase == 'X' && (!event->category.start || !read_us(event->duration, &row->duration))) return DAMAGED;
    if (!is_in_range(row)) return DAMAGED;
    row->category = (uint8_t)category_of(event->category);
    /* Begins and ends are kept whatever they are: one left out would pair the others wrongly. */
    int wanted = phase != 'X' || is_wanted(reader, row->category, event);
    if (!wanted && !(reader->wants_streams && event->arguments.start)) return IGNORED;
    if (!read_arguments(reader, event->arguments, row)) return NO_MEMORY;
    if (!wanted && !(row->flags & HAS_STREAM) && row->correlation < 0) return IGNORED;
    if (!identify(reader, event, row)) return NO_MEMORY;
    return event->name.start || phase == 'E' ? ROW : DAMAGED_ROW;
}

void free_reader(Reader *reader) {
    free_interned(&reader->names);
    free_interned(&reader->threads);
    free_interned(&reader->arguments);
    free(reader->scratch);
}
