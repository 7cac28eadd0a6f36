/* One trace event: its text, and the row of integers made of it. */
#ifndef TRIPLEPOINT_EVENT_H
#define TRIPLEPOINT_EVENT_H

#include "intern.h"
#include "json.h"

/* Categories of rows, in the order of `Category` in rows.py. */
enum { KERNEL, MEMCPY, MEMSET, CPU_OP, RUNTIME, ANNOTATION, GPU_ANNOTATION, OTHER };

enum { IS_BEGIN = 1, IS_END = 2, HAS_STREAM = 4 };

/* The same layout as ROW in rows.py. Unknown is -1. */
typedef struct {
    int64_t start, duration; /* ns; `start` as the file counts, before its base time is added */
    int64_t correlation;
    int32_t name, thread, message, geometry; /* numbers of interned strings */
    uint8_t category, flags, unused[6];
} Row;

/* The same layout as LAUNCH in rows.py: what is kept of a call of the runtime. */
typedef struct {
    int64_t correlation, start;
    int32_t thread, geometry;
} Launch;

/* The members of an event that are read; a missing one starts at NULL. */
typedef struct {
    Span phase, category, name, time, duration, process, thread, arguments;
} Event;

/* Bytes being put together. */
typedef struct {
    uint8_t *bytes;
    size_t size, room;
} Scratch;

typedef struct {
    int wants_host;    /* operators on the CPU too */
    int wants_streams; /* every event that carries a stream or a correlation, whatever its category */
    Interned names, threads;
    Interned messages;   /* what events say about communication, each a JSON object */
    Interned geometries; /* how kernels were launched, each a JSON object */
    Scratch message, geometry, thread;
} Reader;

/* DAMAGED_ROW: something is missing, but its time can be counted. */
typedef enum { IGNORED, ROW, DAMAGED_ROW, DAMAGED, NO_MEMORY } Verdict;

Outcome read_event(Text *text, Event *event);
Verdict make_row(Reader *reader, const Event *event, Row *row);
void free_reader(Reader *reader);

#endif
