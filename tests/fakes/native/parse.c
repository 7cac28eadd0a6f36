/* Reader of a scenario, which has one fact per line. scenario.py writes it. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node.h"

#define NUMBER(name) {#name, offsetof(struct gpu, name)}
#define SENSOR(name) \
    NUMBER(name.period_s), NUMBER(name.window_s), NUMBER(name.lag_s), NUMBER(name.phase_s), NUMBER(name.quantum_w), \
        NUMBER(name.gain), NUMBER(name.noise_w)

struct member {
    const char *name;
    size_t offset;
};

static const struct member numbers[] = {
    NUMBER(idle_w), NUMBER(max_w), NUMBER(limit_w), NUMBER(default_limit_w), NUMBER(min_limit_w), NUMBER(max_limit_w),
    NUMBER(memory_power_share), NUMBER(inlet_c), NUMBER(resistance_c_per_w), NUMBER(tau_s),
    NUMBER(memory_resistance_c_per_w), NUMBER(memory_tau_s), NUMBER(hotspot_c_per_w), NUMBER(slowdown_c),
    NUMBER(shutdown_c), NUMBER(max_c), NUMBER(memory_max_c), NUMBER(max_sm_mhz), NUMBER(idle_sm_mhz),
    NUMBER(throttled_sm_mhz), NUMBER(memory_mhz), NUMBER(memory_bytes), NUMBER(idle_memory_bytes),
    NUMBER(used_memory_bytes), NUMBER(nvlinks), NUMBER(nvlink_tx_bytes_per_s), NUMBER(nvlink_rx_bytes_per_s),
    NUMBER(nvlink_offset_bytes), NUMBER(pcie_tx_bytes_per_s), NUMBER(pcie_rx_bytes_per_s), NUMBER(pcie_offset_bytes),
    NUMBER(pcie_counter_bits), NUMBER(energy_period_s), NUMBER(energy_phase_s), NUMBER(energy_offset_j),
    NUMBER(energy_unit_j), NUMBER(violation_offset_ns), NUMBER(usage_is_average), NUMBER(architecture),
    NUMBER(mig_instances), NUMBER(unplug_s), NUMBER(ecc_corrected), NUMBER(ecc_uncorrected), NUMBER(remapped_rows),
    NUMBER(pci_bus), NUMBER(module_id), NUMBER(slot), NUMBER(numa_node), NUMBER(is_secondary_die), NUMBER(package),
    NUMBER(hip_id), SENSOR(instant), SENSOR(average),
};
static const struct member texts[] = {NUMBER(name), NUMBER(uuid), NUMBER(serial), NUMBER(part_number)};
static const struct member waves[] = {
    NUMBER(load), NUMBER(busy),
    {"power_cap", offsetof(struct gpu, cause[POWER_CAP])},
    {"sw_thermal", offsetof(struct gpu, cause[SW_THERMAL])},
    {"hw_thermal", offsetof(struct gpu, cause[HW_THERMAL])},
    {"power_brake", offsetof(struct gpu, cause[POWER_BRAKE])},
    {"sync_boost", offsetof(struct gpu, cause[SYNC_BOOST])},
};

static _Noreturn void fail(const char *line) {
    fprintf(stderr, "fake node: cannot read this line of the scenario: %s\n", line);
    abort();
}

static void *find_member(struct gpu *gpu, const struct member *members, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(members[i].name, name))
            return (char *)gpu + members[i].offset;
    fail(name);
}
#define FIND(gpu, members, name) find_member(gpu, members, sizeof members / sizeof *members, name)

static char *word(char **rest) {
    char *next = strtok_r(NULL, " \n", rest);
    if (!next)
        fail("too short");
    return next;
}

static double number(char **rest) { return strtod(word(rest), NULL); }

static void parse_text(struct node *node, int gpu, char **rest) {
    char *name = word(rest), *text = strtok_r(NULL, "\n", rest);
    char *member = gpu < 0 ? node->driver_version : FIND(&node->gpu[gpu], texts, name);
    snprintf(member, TEXT_SIZE, "%s", text ? text : "");
}

static void parse_wave(struct node *node, int gpu, char **rest) {
    struct wave *wave = FIND(&node->gpu[gpu], waves, word(rest));
    double period_s = number(rest);
    int count = (int)number(rest);
    double *start_s = calloc((size_t)count, sizeof *start_s), *value = calloc((size_t)count, sizeof *value);
    for (int i = 0; i < count; i++) {
        start_s[i] = number(rest);
        value[i] = number(rest);
    }
    wave_set(wave, count, period_s, start_s, value);
    free(start_s);
    free(value);
}

/* Return the key of a name, `field:ID`, `field:ID:SCOPE`, or `*` for every call. */
static uint64_t parse_key(const char *what) {
    unsigned field, scope = ANY_SCOPE;
    if (!strcmp(what, "*"))
        return EVERY_CALL;
    if (sscanf(what, "field:%u:%u", &field, &scope) >= 1)
        return FIELD_KEY(field, scope);
    return name_key(what);
}

static void parse_rule(struct rules *rules, int gpu, char **rest) {
    if (rules->count == MAX_RULES)
        fail("too many rules");
    struct rule *rule = &rules->rule[rules->count++];
    rule->gpu = gpu;
    rule->key = parse_key(word(rest));
    rule->value = number(rest);
    rule->from_s = number(rest);
    rule->until_s = number(rest);
}

static void parse_xid(struct node *node, int gpu, char **rest) {
    if (node->num_xids == MAX_XIDS)
        fail("too many XIDs");
    node->xid[node->num_xids].gpu = gpu;
    node->xid[node->num_xids].code = (int)number(rest);
    node->xid[node->num_xids++].at_s = number(rest);
}

static void parse_node(struct node *node, char **rest) {
    node->start_ns = number(rest);
    node->start_wall_ns = number(rest);
    node->scale = number(rest);
    node->is_virtual = (int)number(rest);
    node->vendor = (int)number(rest);
    node->num_gpus = (int)number(rest);
    if (node->num_gpus > MAX_GPUS)
        fail("too many GPUs");
}

static void parse_line(struct node *node, char *line) {
    char *rest, *kind = strtok_r(line, " \n", &rest);
    if (!kind)
        return;
    int gpu = (int)number(&rest);
    if (gpu < ALL_GPUS || gpu >= MAX_GPUS)
        fail(kind);
    if (!strcmp(kind, "node"))
        parse_node(node, &rest);
    else if (!strcmp(kind, "number")) {
        double *member = FIND(&node->gpu[gpu], numbers, word(&rest));
        *member = number(&rest);
    } else if (!strcmp(kind, "text"))
        parse_text(node, gpu, &rest);
    else if (!strcmp(kind, "wave"))
        parse_wave(node, gpu, &rest);
    else if (!strcmp(kind, "error"))
        parse_rule(&node->errors, gpu, &rest);
    else if (!strcmp(kind, "freeze"))
        parse_rule(&node->freezes, gpu, &rest);
    else if (!strcmp(kind, "latency"))
        parse_rule(&node->latencies_us, gpu, &rest);
    else if (!strcmp(kind, "xid"))
        parse_xid(node, gpu, &rest);
    else
        fail(kind);
}

struct node *parse_scenario(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file)
        return NULL;
    struct node *node = calloc(1, sizeof *node);
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, file) > 0)
        parse_line(node, line);
    free(line);
    fclose(file);
    for (int i = 0; i < node->num_gpus; i++) {
        struct gpu *gpu = &node->gpu[i];
        response_set(&gpu->die, &gpu->load, gpu->tau_s);
        response_set(&gpu->memory, &gpu->load, gpu->memory_tau_s);
    }
    return node;
}

void free_scenario(struct node *node) {
    if (!node)
        return;
    for (int i = 0; i < node->num_gpus; i++) {
        struct gpu *gpu = &node->gpu[i];
        free(gpu->die.at_start);
        free(gpu->memory.at_start);
        wave_free(&gpu->load);
        wave_free(&gpu->busy);
        for (int cause = 0; cause < NUM_CAUSES; cause++)
            wave_free(&gpu->cause[cause]);
    }
    free(node);
}
