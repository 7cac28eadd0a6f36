/* Power and energy of the package; temperatures, clocks, activity and memory of the die. */
#include <math.h>
#include <string.h>

#include "amdsmi.h"

enum {
    TEMPERATURE_EDGE = 0,
    TEMPERATURE_HOTSPOT = 1,
    TEMPERATURE_VRAM = 2,
    TEMPERATURE_HBM_3 = 6,
    TEMPERATURE_CURRENT = 0,
    TEMPERATURE_CRITICAL = 5,
    CLOCK_GFX = 0,
    CLOCK_SOC = 3,
    CLOCK_MEMORY = 4,
    NOT_AVAILABLE = 0xffff,
};
static const double ACTIVITY_WINDOW_S = 0.02;

/* Return the sum over all dies of the package, 0 for a secondary die. */
double package_power_w(const struct target *target, const struct sensor *sensor) {
    const struct node *node = node_now();
    double t_s = frozen_time_s(target->index, "power", target->t_s), power_w = 0;
    for (int i = 0; i < node->num_gpus && target->gpu->is_secondary_die <= 0; i++)
        if (node->gpu[i].package == target->gpu->package)
            power_w += sensor_power_w(&node->gpu[i], sensor, t_s);
    return power_w;
}

double package_energy_j(const struct target *target) {
    const struct node *node = node_now();
    double t_s = frozen_time_s(target->index, "energy", target->t_s), energy_j = 0;
    for (int i = 0; i < node->num_gpus && target->gpu->is_secondary_die <= 0; i++)
        if (node->gpu[i].package == target->gpu->package)
            energy_j += energy_counter_j(&node->gpu[i], t_s);
    return energy_j;
}

/* MI200 has the mean power only, MI300 the current power only. */
status_t amdsmi_get_power_info(handle_t handle, struct amd_power_info *info) {
    ENTER(handle, target);
    REQUIRE(info);
    memset(info, 0, sizeof *info);
    int is_mi300 = target.gpu->architecture >= MI300;
    const struct sensor *sensor = is_mi300 ? &target.gpu->instant : &target.gpu->average;
    uint32_t power_w = (uint32_t)package_power_w(&target, sensor);
    info->socket_power = power_w;
    info->current_socket_power = is_mi300 ? power_w : NOT_AVAILABLE;
    info->average_socket_power = is_mi300 ? NOT_AVAILABLE : power_w;
    info->gfx_voltage = 850;
    info->soc_voltage = info->mem_voltage = NOT_AVAILABLE;
    info->power_limit = (uint32_t)(target.gpu->limit_w * 1e6);
    return AMD_SUCCESS;
}

static int dies_of(const struct gpu *gpu) {
    const struct node *node = node_now();
    int dies = 0;
    for (int i = 0; i < node->num_gpus; i++)
        dies += node->gpu[i].package == gpu->package;
    return dies;
}

/* Power caps of the package. Unit: uW. */
status_t amdsmi_get_power_cap_info(handle_t handle, uint32_t sensor, struct amd_power_cap_info *info) {
    ENTER(handle, target);
    REQUIRE(info && sensor == 0);
    if (target.gpu->is_secondary_die > 0)
        return AMD_NOT_SUPPORTED;
    double microwatts = 1e6 * dies_of(target.gpu);
    memset(info, 0, sizeof *info);
    info->power_cap = info->dpm_cap = (uint64_t)(target.gpu->limit_w * microwatts);
    info->default_power_cap = (uint64_t)(target.gpu->default_limit_w * microwatts);
    info->min_power_cap = (uint64_t)(target.gpu->min_limit_w * microwatts);
    info->max_power_cap = (uint64_t)(target.gpu->max_limit_w * microwatts);
    return AMD_SUCCESS;
}

/* Settings cannot be changed. */
status_t amdsmi_set_power_cap(handle_t handle, uint32_t sensor, uint64_t cap_uw) {
    ENTER(handle, target);
    (void)sensor;
    (void)cap_uw;
    return AMD_NO_PERMISSION;
}

status_t amdsmi_get_energy_count(handle_t handle, uint64_t *count, float *resolution_uj, uint64_t *t_ns) {
    ENTER(handle, target);
    REQUIRE(count && resolution_uj && t_ns);
    *count = (uint64_t)(package_energy_j(&target) / target.gpu->energy_unit_j);
    *resolution_uj = (float)(target.gpu->energy_unit_j * 1e6);
    *t_ns = (uint64_t)(target.t_s * 1e9 + node_now()->start_ns);
    return AMD_SUCCESS;
}

/* Temperature in whole degC. */
status_t amdsmi_get_temp_metric(handle_t handle, int sensor, int metric, int64_t *temperature) {
    ENTER(handle, target);
    REQUIRE(temperature);
    double t_s = frozen_time_s(target.index, "temperature", target.t_s);
    if ((metric != TEMPERATURE_CURRENT && metric != TEMPERATURE_CRITICAL) || sensor > TEMPERATURE_HBM_3)
        return AMD_NOT_SUPPORTED;
    if (metric == TEMPERATURE_CRITICAL)
        *temperature = (int64_t)(sensor >= TEMPERATURE_VRAM ? target.gpu->memory_max_c : target.gpu->shutdown_c);
    else if (sensor == TEMPERATURE_EDGE)
        *temperature = (int64_t)gpu_die_c(target.gpu, t_s);
    else if (sensor == TEMPERATURE_HOTSPOT)
        *temperature = (int64_t)gpu_hotspot_c(target.gpu, t_s);
    else
        *temperature = (int64_t)gpu_memory_c(target.gpu, t_s);
    return AMD_SUCCESS;
}

status_t amdsmi_get_clock_info(handle_t handle, int kind, struct amd_clk_info *info) {
    ENTER(handle, target);
    REQUIRE(info);
    if (kind != CLOCK_GFX && kind != CLOCK_SOC && kind != CLOCK_MEMORY)
        return AMD_NOT_SUPPORTED;
    int is_memory = kind == CLOCK_MEMORY;
    memset(info, 0, sizeof *info);
    info->clk = (uint32_t)(is_memory ? target.gpu->memory_mhz : gpu_sm_mhz(target.gpu, target.t_s));
    info->min_clk = (uint32_t)(is_memory ? 400 : 500);
    info->max_clk = (uint32_t)(is_memory ? target.gpu->memory_mhz : target.gpu->max_sm_mhz);
    return AMD_SUCCESS;
}

status_t amdsmi_get_gpu_activity(handle_t handle, struct amd_engine_usage *usage) {
    ENTER(handle, target);
    REQUIRE(usage);
    memset(usage, 0, sizeof *usage);
    usage->gfx_activity = (uint32_t)(100 * gpu_busy(target.gpu, target.t_s - ACTIVITY_WINDOW_S, target.t_s) + 0.5);
    usage->umc_activity = usage->gfx_activity / 2;
    usage->mm_activity = NOT_AVAILABLE;
    return AMD_SUCCESS;
}

/* Memory in units of 2^20 bytes, which AMD calls MB. */
status_t amdsmi_get_gpu_vram_usage(handle_t handle, struct amd_vram_usage *usage) {
    ENTER(handle, target);
    REQUIRE(usage);
    usage->vram_total = (uint32_t)(target.gpu->memory_bytes / 1048576);
    usage->vram_used = (uint32_t)(gpu_used_memory_bytes(target.gpu, target.t_s) / 1048576);
    return AMD_SUCCESS;
}

status_t amdsmi_get_gpu_memory_total(handle_t handle, int kind, uint64_t *bytes) {
    ENTER(handle, target);
    REQUIRE(bytes && kind == 0);
    *bytes = (uint64_t)target.gpu->memory_bytes;
    return AMD_SUCCESS;
}

status_t amdsmi_get_gpu_memory_usage(handle_t handle, int kind, uint64_t *bytes) {
    ENTER(handle, target);
    REQUIRE(bytes && kind == 0);
    *bytes = (uint64_t)gpu_used_memory_bytes(target.gpu, target.t_s);
    return AMD_SUCCESS;
}

status_t amdsmi_get_gpu_total_ecc_count(handle_t handle, struct amd_error_count *count) {
    ENTER(handle, target);
    REQUIRE(count);
    memset(count, 0, sizeof *count);
    count->correctable_count = (uint64_t)target.gpu->ecc_corrected;
    count->uncorrectable_count = (uint64_t)target.gpu->ecc_uncorrected;
    return AMD_SUCCESS;
}

/* Traffic of one second, for which the call waits. */
status_t amdsmi_get_gpu_pci_throughput(handle_t handle, uint64_t *sent, uint64_t *received, uint64_t *packet_bytes) {
    ENTER(handle, target);
    REQUIRE(sent && received && packet_bytes);
    node_wait(1);
    *packet_bytes = 256;
    *sent = (uint64_t)(traffic_bytes(target.gpu, 0, target.gpu->pcie_tx_bytes_per_s, 1) / (double)*packet_bytes);
    *received = (uint64_t)(traffic_bytes(target.gpu, 0, target.gpu->pcie_rx_bytes_per_s, 1) / (double)*packet_bytes);
    return AMD_SUCCESS;
}
