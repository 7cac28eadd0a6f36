/* The node of a scenario: its GPUs, its clock, and the calls to the library. */
#ifndef FAKES_NODE_H
#define FAKES_NODE_H

#include <stdint.h>

#include "wave.h"

enum { MAX_GPUS = 16, MAX_RULES = 256, MAX_XIDS = 64, TEXT_SIZE = 80, ALL_GPUS = -1 };
enum cause { POWER_CAP, SW_THERMAL, HW_THERMAL, POWER_BRAKE, SYNC_BOOST, NUM_CAUSES };

/* A power sensor: mean of a window of `window_s` that ended `lag_s` before the refresh, every `period_s`. */
struct sensor {
    double period_s, window_s, lag_s, phase_s, quantum_w, gain, noise_w;
};

struct gpu {
    /* Numbers of the scenario; parse.c lists their names. */
    double idle_w, max_w, limit_w, default_limit_w, min_limit_w, max_limit_w, memory_power_share;
    double inlet_c, resistance_c_per_w, tau_s, memory_resistance_c_per_w, memory_tau_s, hotspot_c_per_w;
    double slowdown_c, shutdown_c, max_c, memory_max_c;
    double max_sm_mhz, idle_sm_mhz, throttled_sm_mhz, memory_mhz;
    double memory_bytes, idle_memory_bytes, used_memory_bytes;
    double nvlinks, nvlink_tx_bytes_per_s, nvlink_rx_bytes_per_s, nvlink_offset_bytes;
    double pcie_tx_bytes_per_s, pcie_rx_bytes_per_s, pcie_offset_bytes, pcie_counter_bits;
    double energy_period_s, energy_phase_s, energy_offset_j, energy_unit_j, violation_offset_ns;
    double usage_is_average, architecture, mig_instances, unplug_s, ecc_corrected, ecc_uncorrected, remapped_rows;
    double pci_bus, module_id, slot, numa_node, is_secondary_die, package, hip_id;
    struct sensor instant, average;
    char name[TEXT_SIZE], uuid[TEXT_SIZE], serial[TEXT_SIZE], part_number[TEXT_SIZE];
    struct wave load, busy, cause[NUM_CAUSES];
    struct response die, memory;
};

/* A fault of a call, a field or a counter, for some time. `value` is a status, or a latency in us. */
struct rule {
    int gpu;
    uint64_t key;
    double value, from_s, until_s;
};

struct rules {
    int count;
    struct rule rule[MAX_RULES];
};

struct node {
    double start_ns, start_wall_ns, scale;
    int is_virtual, vendor, num_gpus, num_xids;
    char driver_version[TEXT_SIZE];
    struct gpu gpu[MAX_GPUS];
    struct rules errors, freezes, latencies_us;
    struct {
        int gpu, code;
        double at_s;
    } xid[MAX_XIDS];
};

enum vendor { NVIDIA = 1, AMD = 2 };
enum open_result { NO_NODE, SAME_NODE, NEW_NODE };

/* A function of the fake library. Its first call sets `key`. */
struct site {
    const char *name;
    uint64_t key;
};

#define EVERY_CALL 1ull
#define ANY_SCOPE 0xfffffffeu
#define FIELD_KEY(field, scope) ((1ull << 63) | ((uint64_t)(field) << 32) | (uint32_t)(scope))

int is_fake_node_library(void);
const struct node *node_now(void);
enum open_result node_open(enum vendor vendor);
int64_t fake_node_now_ns(void);
double node_time_s(const struct node *node);
void node_wait(double seconds);
uint64_t node_wall_us(const struct node *node, double t_s);
uint64_t name_key(const char *name);
void count_call(uint64_t key, const char *name);
const struct rule *find_rule(const struct rules *rules, int gpu, uint64_t key, double t_s);
int enter_call(struct site *site, int gpu, double *t_s);
struct node *parse_scenario(const char *path);
void free_scenario(struct node *node);

double gpu_energy_j(const struct gpu *gpu, double t_s);
double gpu_power_w(const struct gpu *gpu, double t_s);
double gpu_die_c(const struct gpu *gpu, double t_s);
double gpu_memory_c(const struct gpu *gpu, double t_s);
double gpu_hotspot_c(const struct gpu *gpu, double t_s);
double gpu_sm_mhz(const struct gpu *gpu, double t_s);
double gpu_busy(const struct gpu *gpu, double from_s, double to_s);
double gpu_used_memory_bytes(const struct gpu *gpu, double t_s);
int gpu_is_throttled(const struct gpu *gpu, enum cause cause, double t_s);
double sensor_power_w(const struct gpu *gpu, const struct sensor *sensor, double t_s);
double energy_counter_j(const struct gpu *gpu, double t_s);
double traffic_bytes(const struct gpu *gpu, double offset_bytes, double bytes_per_s, double t_s);
double violation_ns(const struct gpu *gpu, enum cause cause, double t_s);
double frozen_time_s(int gpu, const char *what, double t_s);

#endif
