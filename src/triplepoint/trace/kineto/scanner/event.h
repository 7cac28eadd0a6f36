/* One trace event: from its text to a row of integers. */
#ifndef TRIPLEPOINT_EVENT_H
#define TRIPLEPOINT_EVENT_H

#include "intern.h"
#include "json.h"

/* Categories of rows, in the order of `Category` in kineto/__init__.py. */
enum { KERNEL, MEMCPY, MEMSET, CPU_OP, RUNTIME, ANNOTATION, GPU_ANNOTATION, OTHER };

enum { IS_BEGIN = 1, IS_END = 2, HAS_STREAM = 4 };

/* The layout of ROW in kineto/__init__.py. Unknown values are -1. */
typedef struct {
    int64_t start, duration; /* ns; `start` as the file counts, before its base time is added */
    int64_t correlation;
    int32_t name, thread, message, geometry; /* numbers of interned strings */
    uint8_t category, flags, unused[6];
} Row;

/* The layout of LAUNCH in kineto/__init__.py: a runtime call. */
typedef struct {
    int64_t correlation, start;
    int32_t thread, geometry;
} Launch;

/* What a member of an event, or of its arguments, is for. */
typedef enum {
    UNUSED, PHASE, CATEGORY, NAME, TIME, DURATION, PROCESS, THREAD, ARGUMENTS, /* of an event */
    CORRELATION, STREAM, MESSAGE, GEOMETRY /* of its arguments */
} Role;

#define KEY_ROOM 32 /* bytes of a text; longer ones are read anew each time */
#define MAX_KEYS 24 /* values of an object; the texts before further ones are read anew too */

/* The text before a value, from the value before it or the opening brace: `, "cat": `. */
typedef struct {
    uint8_t text[KEY_ROOM];
    uint8_t size, quote; /* size 0: unknown; `quote`: where the key begins */
    uint8_t role;
} Key;

/* The texts before the values of an object, as the last object of its kind had them. A profiler writes all objects of a
   kind with the same members in the same order and with the same spaces, so whole texts can be compared. */
typedef struct {
    Key keys[MAX_KEYS];
} Layout;

/* The layouts of events, and of arguments by the category of their event. */
typedef struct {
    Layout event, arguments[OTHER + 1];
} Layouts;

#define MAX_ARGUMENTS 32 /* used ones of an event: profilers write 21 different keys; further ones are ignored */

/* An argument that is used: its value, and the text from its key to the end of its value, quotes included. */
typedef struct {
    Span value, member;
    Role role;
} Argument;

/* The members of an event that are used; a missing one starts at NULL. */
typedef struct {
    Span members[ARGUMENTS]; /* by role */
    Argument arguments[MAX_ARGUMENTS];
    int num_arguments, has_arguments;
    int category;
} Event;

/* A buffer in which a byte string is built. */
typedef struct {
    uint8_t *bytes;
    size_t size, room;
} Scratch;

typedef struct {
    int wants_host;    /* return all operators on the CPU */
    int wants_streams; /* return every event that has a stream or a correlation */
    Interned names, threads;
    Interned messages;   /* communication arguments, each a JSON object */
    Interned geometries; /* launch geometries, each a JSON object */
    Scratch message, geometry, thread;
    Layouts layouts;
} Reader;

/* DAMAGED_ROW: the name is missing, but the row has a time. */
typedef enum { IGNORED, ROW, DAMAGED_ROW, DAMAGED, NO_MEMORY } Verdict;

Outcome read_event(Text *text, Layouts *layouts, Event *event);
Verdict make_row(Reader *reader, const Event *event, Row *row);
void free_reader(Reader *reader);

#endif
