/* Finds the events of a trace in a stream of text, and steps over what is damaged. */
#ifndef TRIPLEPOINT_SCANNER_H
#define TRIPLEPOINT_SCANNER_H

#include "event.h"

#define LARGEST_ITEM (64u << 20)  /* bytes of one event or metadata value; longer ones are damage */
#define LARGEST_METADATA (4u << 20) /* bytes of a metadata value; longer ones (stacks) are stepped over */
#define LARGEST_DAMAGE (1u << 20) /* bytes of damaged text handed over in one piece */

/* Where in the document the text stands. */
typedef enum {
    BEFORE,   /* nothing but space was seen */
    MEMBERS,  /* between the members of the top-level object */
    EVENTS,   /* between the events */
    LOST,     /* behind damage, looking for the next event */
    AFTER     /* behind the end of the document */
} State;

/* Bytes in pieces: metadata (key, value, key, value, ...) and damaged texts. */
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
    size_t start, size, room; /* text not yet consumed: buffer[start:size] */
    int is_list;              /* the document is a list of events, not an object that holds one */
    int has_events;           /* the list of events was found */
    int lost_event;           /* an event was to stand where the damage starts */
    int is_cut;               /* the text ended inside an event or a member */
    size_t num_searched;      /* bytes of damage known to hold no start of an event */
    int is_closed;            /* the document was closed as it was opened */
    Row *rows;
    size_t num_rows, rows_room;
    Launch *launches;
    size_t num_launches, launches_room;
    int64_t num_events, num_damaged;
    Pieces metadata, damaged;
} Scanner;

/* Both return 0 if there is no memory. */
int feed(Scanner *scanner, const uint8_t *bytes, size_t size);
int finish(Scanner *scanner);

/* Read the text of one event; -1 if there is no memory, else whether it gave a row. */
int feed_event(Scanner *scanner, const uint8_t *bytes, size_t size);
void free_scanner(Scanner *scanner);

#endif
