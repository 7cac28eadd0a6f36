/* Number byte strings, equal ones alike: names, threads and arguments are in a trace many times. */
#ifndef TRIPLEPOINT_INTERN_H
#define TRIPLEPOINT_INTERN_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    size_t offset, size;
    uint64_t hash;
} Entry;

typedef struct {
    uint8_t *bytes; /* all strings, one after another */
    size_t num_bytes, room_bytes;
    Entry *entries;
    size_t count, room;
    int32_t *slots; /* open addressing; -1 is free; `num_slots` is a power of two */
    size_t num_slots;
} Interned;

static inline uint64_t hash_bytes(const uint8_t *bytes, size_t size) {
    uint64_t hash = size * 0x9e3779b97f4a7c15u, word;
    for (; size >= 8; bytes += 8, size -= 8) {
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, bytes, size);
    hash = (hash ^ word) * 0xc4ceb9fe1a85ec53u;
    return hash ^ (hash >> 29);
}

/* Grow an array of `count` elements of `size` bytes, so that `more` fit in; return 0 if out of memory. */
static inline int make_room(void **array, size_t *room, size_t count, size_t more, size_t size) {
    if (count + more <= *room) return 1;
    size_t new_room = *room ? *room : 1024;
    while (new_room < count + more) new_room *= 2;
    void *grown = realloc(*array, new_room * size);
    if (!grown) return 0;
    *array = grown;
    *room = new_room;
    return 1;
}

static inline int rehash(Interned *table) {
    size_t num_slots = table->num_slots ? 2 * table->num_slots : 4096;
    int32_t *slots = malloc(num_slots * sizeof *slots);
    if (!slots) return 0;
    memset(slots, 0xff, num_slots * sizeof *slots);
    for (size_t index = 0; index < table->count; index++) {
        size_t slot = table->entries[index].hash & (num_slots - 1);
        while (slots[slot] >= 0) slot = (slot + 1) & (num_slots - 1);
        slots[slot] = (int32_t)index;
    }
    free(table->slots);
    table->slots = slots;
    table->num_slots = num_slots;
    return 1;
}

/* Return the number of a string, -1 if out of memory. */
static inline int32_t intern(Interned *table, const uint8_t *bytes, size_t size) {
    if (2 * table->count >= table->num_slots && !rehash(table)) return -1;
    uint64_t hash = hash_bytes(bytes, size);
    size_t slot = hash & (table->num_slots - 1);
    for (; table->slots[slot] >= 0; slot = (slot + 1) & (table->num_slots - 1)) {
        const Entry *entry = &table->entries[table->slots[slot]];
        if (entry->hash == hash && entry->size == size &&
            (!size || !memcmp(table->bytes + entry->offset, bytes, size)))
            return table->slots[slot];
    }
    if (table->count == INT32_MAX) return -1;
    if (!make_room((void **)&table->bytes, &table->room_bytes, table->num_bytes, size, 1)) return -1;
    if (!make_room((void **)&table->entries, &table->room, table->count, 1, sizeof(Entry))) return -1;
    if (size) memcpy(table->bytes + table->num_bytes, bytes, size);
    table->entries[table->count] = (Entry){table->num_bytes, size, hash};
    table->num_bytes += size;
    table->slots[slot] = (int32_t)table->count;
    return (int32_t)table->count++;
}

static inline void free_interned(Interned *table) {
    free(table->bytes);
    free(table->entries);
    free(table->slots);
}

#endif
