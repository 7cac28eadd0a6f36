/* Metrics table of the firmware: version 1.3 on MI200, version 1.5 with xGMI counters on MI300. */
#include <string.h>

#include "amdsmi.h"

/* Bits of the throttle status that does not depend on the ASIC.
   Source: amdgpu_smu.h of the Linux kernel (from memory). */
static const uint64_t BIT_PPT0 = 1ull << 0, BIT_TEMP_HOTSPOT = 1ull << 36, BIT_PROCHOT_GFX = 1ull << 47;
enum { HBM_STACKS = 4, XGMI_LINKS = 7, KIBIBYTE = 1024 };
static const double TICKS_PER_S = 1e8; /* The firmware counts in units of 10 ns. */
static const double BEFORE_S = 1e4;    /* Age of the counters at the start of the scenario. */

static void put_temperatures(struct amd_gpu_metrics *metrics, const struct target *target) {
    double t_s = frozen_time_s(target->index, "temperature", target->t_s);
    metrics->temperature_edge = (uint16_t)gpu_die_c(target->gpu, t_s);
    metrics->temperature_hotspot = (uint16_t)gpu_hotspot_c(target->gpu, t_s);
    metrics->temperature_mem = (uint16_t)gpu_memory_c(target->gpu, t_s);
    for (int stack = 0; stack < HBM_STACKS; stack++)
        metrics->temperature_hbm[stack] = metrics->temperature_mem;
}

static void put_throttling(struct amd_gpu_metrics *metrics, const struct target *target) {
    metrics->indep_throttle_status =
        (gpu_is_throttled(target->gpu, POWER_CAP, target->t_s) ? BIT_PPT0 : 0) |
        (gpu_is_throttled(target->gpu, SW_THERMAL, target->t_s) ? BIT_TEMP_HOTSPOT : 0) |
        (gpu_is_throttled(target->gpu, HW_THERMAL, target->t_s) ? BIT_PROCHOT_GFX : 0);
    metrics->throttle_status = metrics->indep_throttle_status != 0;
}

static void put_mi300(struct amd_gpu_metrics *metrics, const struct target *target) {
    const struct gpu *gpu = target->gpu;
    double t_s = frozen_time_s(target->index, "nvlink", target->t_s);
    double read = traffic_bytes(gpu, gpu->nvlink_offset_bytes, gpu->nvlink_rx_bytes_per_s, t_s);
    double written = traffic_bytes(gpu, gpu->nvlink_offset_bytes, gpu->nvlink_tx_bytes_per_s, t_s);
    for (int link = 0; link < XGMI_LINKS; link++) {
        metrics->xgmi_read_data_acc[link] = (uint64_t)(read / XGMI_LINKS / KIBIBYTE);
        metrics->xgmi_write_data_acc[link] = (uint64_t)(written / XGMI_LINKS / KIBIBYTE);
    }
    metrics->current_socket_power = (uint16_t)package_power_w(target, &gpu->instant);
    metrics->accumulation_counter = (uint64_t)((target->t_s + BEFORE_S) * 1e3);
    metrics->ppt_residency_acc = (uint64_t)(violation_ns(gpu, POWER_CAP, target->t_s) * 1e-6);
    metrics->socket_thm_residency_acc = (uint64_t)(violation_ns(gpu, SW_THERMAL, target->t_s) * 1e-6);
    metrics->prochot_residency_acc = (uint64_t)(violation_ns(gpu, HW_THERMAL, target->t_s) * 1e-6);
}

status_t amdsmi_get_gpu_metrics_info(handle_t handle, struct amd_gpu_metrics *metrics) {
    ENTER(handle, target);
    REQUIRE(metrics);
    const struct gpu *gpu = target.gpu;
    memset(metrics, 0xff, sizeof *metrics); /* All bits set marks members that this version does not have. */
    metrics->structure_size = sizeof *metrics;
    metrics->format_revision = 1;
    metrics->content_revision = gpu->architecture >= MI300 ? 5 : 3;
    put_temperatures(metrics, &target);
    put_throttling(metrics, &target);
    metrics->energy_accumulator = (uint64_t)(package_energy_j(&target) / gpu->energy_unit_j);
    metrics->firmware_timestamp = (uint64_t)((target.t_s + BEFORE_S) * TICKS_PER_S);
    metrics->system_clock_counter = (uint64_t)(target.t_s * 1e9 + node_now()->start_ns);
    metrics->average_gfx_activity = (uint16_t)(100 * gpu_busy(gpu, target.t_s - 0.02, target.t_s) + 0.5);
    metrics->average_umc_activity = metrics->average_gfx_activity / 2;
    metrics->current_gfxclk = (uint16_t)gpu_sm_mhz(gpu, target.t_s);
    metrics->current_uclk = (uint16_t)gpu->memory_mhz;
    metrics->pcie_link_width = 16;
    metrics->pcie_link_speed = 160;
    if (gpu->architecture >= MI300)
        put_mi300(metrics, &target);
    else
        metrics->average_socket_power = (uint16_t)package_power_w(&target, &gpu->average);
    return AMD_SUCCESS;
}
