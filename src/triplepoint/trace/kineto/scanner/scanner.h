/* Find the events of a trace in a stream of text, and skip damaged text. */
#ifndef TRIPLEPOINT_SCANNER_H
#define TRIPLEPOINT_SCANNER_H

#include "event.h"

#define LARGEST_ITEM (64u << 20)  /* bytes of one event or metadata value; a longer one is damaged */
#define LARGEST_METADATA (4u << 20) /* bytes of a metadata value; longer ones (stacks) are left out */
#define LARGEST_DAMAGE (1u << 20) /* bytes of damaged text that are returned in one piece */

/* Position in the document. */
typedef enum {
    BEFORE,    /* before the document: only space so far */
    MEMBERS,   /* between members of the top-level object */
    EVENTS,    /* between events */
    SEARCHING, /* in damaged text, searching for the next event */
    AFTER      /* after the document */
} State;

/* A list of byte strings: metadata (key, value, key, value, ...) or damaged texts. */
typedef struct {
    uint8_t *bytes;
    size_t num_bytes, room_bytes;
    size_t *ends;
    size_t count, room;
} Pieces;

typedef struct {
    Reader reader;
    State state;
    uint8_t *buffer;
    size_t start, size, room; /* text that is not consumed yet: buffer[start:size] */
    int is_list;              /* the document is a list of events, not an object with one */
    int has_events;           /* the list of events was found */
    int has_lost_event;       /* the damaged text starts with an event */
    int is_cut;               /* the text ended inside an event or a member */
    size_t num_searched;      /* bytes of the damaged text without the start of an event */
    int is_closed;            /* the document was closed */
    Row *rows;
    size_t num_rows, rows_room;
    Launch *launches;
    size_t num_launches, launches_room;
    int64_t num_events, num_damaged;
    Pieces metadata, damaged;
} Scanner;

/* Scan the next piece of text, or the end of it. Both return 0 if out of memory. */
int feed(Scanner *scanner, const uint8_t *bytes, size_t size);
int finish(Scanner *scanner);

/* Scan the text of one event; return -1 if out of memory, else whether it gave a row. */
int feed_event(Scanner *scanner, const uint8_t *bytes, size_t size);
void free_scanner(Scanner *scanner);

#endif
