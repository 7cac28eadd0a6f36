/* State shared with the test: the scenario file, and the page with the clock and the counts of calls. */
#include "node.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Same layout as in node.py. */
enum { NUM_COUNTS = 1023 };
struct page {
    uint64_t generation;
    int64_t clock_ns;
    uint64_t unused[6];
    struct {
        uint64_t key, count;
        char name[48];
    } counts[NUM_COUNTS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[512];
static struct page *page;
static struct node *current;
enum { NUM_KEPT = 8 };
static struct node *kept[NUM_KEPT]; /* Other threads can still read the nodes before the current one. */
static int next_kept;
static uint64_t loaded_generation;

static void load(void) {
    char path[600];
    snprintf(path, sizeof path, "%s/scenario", folder);
    loaded_generation = __atomic_load_n(&page->generation, __ATOMIC_ACQUIRE);
    struct node *node = parse_scenario(path);
    if (!node)
        return;
    __atomic_store_n(&current, node, __ATOMIC_RELEASE);
    free_scenario(kept[next_kept]);
    kept[next_kept] = node;
    next_kept = (next_kept + 1) % NUM_KEPT;
}

/* Tests check that this function exists, to see that the loader has not given them the library of the machine. */
int is_fake_node_library(void) { return 1; }

/* Open the node in the folder TRIPLEPOINT_FAKE_NODE, if its GPUs are of this vendor. */
enum open_result node_open(enum vendor vendor) {
    enum open_result result = SAME_NODE;
    const char *wanted = getenv("TRIPLEPOINT_FAKE_NODE");
    pthread_mutex_lock(&lock);
    if (!wanted) {
        current = NULL;
        folder[0] = 0;
    } else if (strcmp(wanted, folder)) {
        char path[600];
        snprintf(folder, sizeof folder, "%s", wanted);
        snprintf(path, sizeof path, "%s/page", folder);
        current = NULL;
        result = NEW_NODE;
        int file = open(path, O_RDWR | O_CLOEXEC);
        void *map = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (file >= 0)
            close(file);
        page = map == MAP_FAILED ? NULL : map;
        if (page)
            load();
        else
            folder[0] = 0;
    }
    pthread_mutex_unlock(&lock);
    const struct node *node = node_now();
    return node && node->vendor == (int)vendor ? result : NO_NODE;
}

/* Return the node of the present scenario, NULL if there is none. */
const struct node *node_now(void) {
    struct node *node = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    if (!node || __atomic_load_n(&page->generation, __ATOMIC_ACQUIRE) == loaded_generation)
        return node;
    pthread_mutex_lock(&lock);
    if (page->generation != loaded_generation)
        load();
    pthread_mutex_unlock(&lock);
    return current;
}

/* Return CLOCK_MONOTONIC, or the virtual clock in place of it. In tests the sampler's C code calls this function. */
int64_t fake_node_now_ns(void) {
    if (node_now()->is_virtual)
        return __atomic_load_n(&page->clock_ns, __ATOMIC_ACQUIRE);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double node_time_s(const struct node *node) {
    if (node->is_virtual)
        return ((double)__atomic_load_n(&page->clock_ns, __ATOMIC_ACQUIRE) - node->start_ns) * 1e-9;
    return (double)(fake_node_now_ns() - (int64_t)node->start_ns) * 1e-9 * node->scale;
}

/* Wait for the latency of a call. A virtual clock is advanced instead. */
void node_wait(double seconds) {
    if (node_now()->is_virtual) {
        __atomic_fetch_add(&page->clock_ns, (int64_t)(seconds * 1e9), __ATOMIC_ACQ_REL);
        return;
    }
    struct timespec wait = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&wait, NULL);
}

/* Return the wall clock at a scenario time, which is NVML's time stamp of values. */
uint64_t node_wall_us(const struct node *node, double t_s) {
    return (uint64_t)(node->start_wall_ns * 1e-3 + t_s / node->scale * 1e6);
}

/* Return the FNV-1a hash of a name without its top bit, which marks keys of field values. */
uint64_t name_key(const char *name) {
    uint64_t key = 0xcbf29ce484222325ull;
    for (; *name; name++)
        key = (key ^ (uint8_t)*name) * 0x100000001b3ull;
    return key & ~(1ull << 63);
}

void count_call(uint64_t key, const char *name) {
    for (unsigned probe = 0; probe < NUM_COUNTS; probe++) {
        unsigned i = (unsigned)((key ^ key >> 32) % NUM_COUNTS + probe) % NUM_COUNTS;
        uint64_t present = 0;
        if (__atomic_compare_exchange_n(&page->counts[i].key, &present, key, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            snprintf(page->counts[i].name, sizeof page->counts[i].name, "%s", name);
        else if (present != key)
            continue;
        __atomic_fetch_add(&page->counts[i].count, 1, __ATOMIC_RELAXED);
        return;
    }
}

/* Return whether the key of a rule matches that of a call. A field without a scope matches all its scopes. */
static int matches(uint64_t rule, uint64_t key) {
    int any_scope = rule >> 63 && (uint32_t)rule == ANY_SCOPE;
    return any_scope ? rule >> 32 == key >> 32 : rule == key;
}

const struct rule *find_rule(const struct rules *rules, int gpu, uint64_t key, double t_s) {
    for (int i = 0; i < rules->count; i++) {
        const struct rule *rule = &rules->rule[i];
        int is_for_gpu = rule->gpu == ALL_GPUS || rule->gpu == gpu;
        int is_active = t_s >= rule->from_s && t_s < rule->until_s;
        if (is_for_gpu && is_active && (matches(rule->key, key) || rule->key == EVERY_CALL))
            return rule;
    }
    return NULL;
}

/* Count a call and wait for its latency. Return the status of the error that the scenario has for it, otherwise 0. */
int enter_call(struct site *site, int gpu, double *t_s) {
    const struct node *node = node_now();
    if (!site->key)
        site->key = name_key(site->name);
    count_call(site->key, site->name);
    *t_s = node_time_s(node);
    const struct rule *latency = node->latencies_us.count ? find_rule(&node->latencies_us, gpu, site->key, *t_s) : NULL;
    if (latency)
        node_wait(latency->value * 1e-6);
    const struct rule *error = node->errors.count ? find_rule(&node->errors, gpu, site->key, *t_s) : NULL;
    return error ? (int)error->value : 0;
}

/* Return the time whose value a counter shows: the start of a freeze if the counter stands still, otherwise now. */
double frozen_time_s(int gpu, const char *what, double t_s) {
    const struct node *node = node_now();
    if (!node->freezes.count)
        return t_s;
    const struct rule *freeze = find_rule(&node->freezes, gpu, name_key(what), t_s);
    return freeze ? freeze->from_s : t_s;
}
