/* Subset of the AMD SMI binary interface. test_abi.py compares sizes with amdsmi's Python package.
   Source: amdsmi 7.0.2 (wrapper of the package) and the reference of the AMD SMI library. */
#ifndef FAKES_AMDSMI_H
#define FAKES_AMDSMI_H

#include "node.h"

enum amd_status {
    AMD_SUCCESS = 0,
    AMD_INVALID = 1,
    AMD_NOT_SUPPORTED = 2,
    AMD_NO_PERMISSION = 10,
    AMD_NOT_FOUND = 31,
    AMD_NOT_INITIALISED = 32,
    AMD_DRIVER_NOT_LOADED = 34,
    AMD_NO_DATA = 40,
};
enum generation { MI200 = 2, MI300 = 3 };

typedef unsigned status_t;
typedef void *handle_t;
enum { STRING_SIZE = 256 };

struct amd_asic_info {
    char market_name[STRING_SIZE];
    uint32_t vendor_id;
    char vendor_name[STRING_SIZE];
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char asic_serial[STRING_SIZE];
    uint32_t oam_id, num_of_compute_units;
    uint64_t target_graphics_version;
    uint32_t subsystem_id, reserved[21];
};
struct amd_board_info {
    char model_number[STRING_SIZE], product_serial[STRING_SIZE], fru_id[STRING_SIZE], product_name[STRING_SIZE],
        manufacturer_name[STRING_SIZE];
    uint64_t reserved[64];
};
struct amd_driver_info {
    char driver_version[STRING_SIZE], driver_date[STRING_SIZE], driver_name[STRING_SIZE];
};
struct amd_enumeration_info {
    uint32_t drm_render, drm_card, hsa_id, hip_id;
    char hip_uuid[STRING_SIZE];
};
struct amd_version {
    uint32_t major, minor, release;
    const char *build;
};
struct amd_power_info {
    uint64_t socket_power;
    uint32_t current_socket_power, average_socket_power;
    uint64_t gfx_voltage, soc_voltage, mem_voltage;
    uint32_t power_limit;
    uint64_t reserved[18];
};
struct amd_power_cap_info {
    uint64_t power_cap, default_power_cap, dpm_cap, min_power_cap, max_power_cap, reserved[3];
};
struct amd_engine_usage {
    uint32_t gfx_activity, umc_activity, mm_activity, reserved[13];
};
struct amd_clk_info {
    uint32_t clk, min_clk, max_clk;
    uint8_t clk_locked, clk_deep_sleep;
    uint32_t reserved[4];
};
struct amd_vram_usage {
    uint32_t vram_total, vram_used, reserved[2];
};
struct amd_error_count {
    uint64_t correctable_count, uncorrectable_count, deferred_count, reserved[5];
};
struct amd_gpu_metrics {
    uint16_t structure_size;
    uint8_t format_revision, content_revision;
    uint16_t temperature_edge, temperature_hotspot, temperature_mem, temperature_vrgfx, temperature_vrsoc,
        temperature_vrmem, average_gfx_activity, average_umc_activity, average_mm_activity, average_socket_power;
    uint64_t energy_accumulator, system_clock_counter;
    uint16_t average_gfxclk_frequency, average_socclk_frequency, average_uclk_frequency, average_vclk0_frequency,
        average_dclk0_frequency, average_vclk1_frequency, average_dclk1_frequency, current_gfxclk, current_socclk,
        current_uclk, current_vclk0, current_dclk0, current_vclk1, current_dclk1;
    uint32_t throttle_status;
    uint16_t current_fan_speed, pcie_link_width, pcie_link_speed;
    uint32_t gfx_activity_acc, mem_activity_acc;
    uint16_t temperature_hbm[4];
    uint64_t firmware_timestamp;
    uint16_t voltage_soc, voltage_gfx, voltage_mem;
    uint64_t indep_throttle_status;
    uint16_t current_socket_power, vcn_activity[4];
    uint32_t gfxclk_lock_status;
    uint16_t xgmi_link_width, xgmi_link_speed;
    uint64_t pcie_bandwidth_acc, pcie_bandwidth_inst, pcie_l0_to_recov_count_acc, pcie_replay_count_acc,
        pcie_replay_rover_count_acc, xgmi_read_data_acc[8], xgmi_write_data_acc[8];
    uint16_t current_gfxclks[8], current_socclks[4], current_vclk0s[4], current_dclk0s[4], jpeg_activity[32];
    uint32_t pcie_nak_sent_count_acc, pcie_nak_rcvd_count_acc;
    uint64_t accumulation_counter, prochot_residency_acc, ppt_residency_acc, socket_thm_residency_acc,
        vr_thm_residency_acc, hbm_thm_residency_acc;
    uint16_t num_partition;
    struct {
        uint32_t gfx_busy_inst[8];
        uint16_t jpeg_busy[40], vcn_busy[4];
        uint64_t accumulators[6][8];
    } xcp_stats[8];
    uint32_t pcie_lc_perf_other_end_recovery;
    uint64_t vram_max_bandwidth;
    uint16_t xgmi_link_status[8];
};

/* test_abi.py reads these lines and compares the sizes with the structures of the bindings. */
#define SAME_SIZE(name, size, binding) _Static_assert(sizeof(struct name) == size, #binding)
SAME_SIZE(amd_asic_info, 896, amdsmi_asic_info_t);
SAME_SIZE(amd_board_info, 1792, amdsmi_board_info_t);
SAME_SIZE(amd_driver_info, 768, amdsmi_driver_info_t);
SAME_SIZE(amd_enumeration_info, 272, amdsmi_enumeration_info_t);
SAME_SIZE(amd_version, 24, amdsmi_version_t);
SAME_SIZE(amd_power_info, 192, amdsmi_power_info_t);
SAME_SIZE(amd_power_cap_info, 64, amdsmi_power_cap_info_t);
SAME_SIZE(amd_engine_usage, 64, amdsmi_engine_usage_t);
SAME_SIZE(amd_clk_info, 32, amdsmi_clk_info_t);
SAME_SIZE(amd_vram_usage, 16, amdsmi_vram_usage_t);
SAME_SIZE(amd_error_count, 64, amdsmi_error_count_t);
SAME_SIZE(amd_gpu_metrics, 4544, amdsmi_gpu_metrics_t);

/* The die that a call is for, and the scenario time of the call. */
struct target {
    const struct gpu *gpu;
    int index;
    double t_s;
};

status_t amd_enter(struct site *site, handle_t handle, struct target *target);
status_t amd_enter_library(struct site *site);
double package_power_w(const struct target *target, const struct sensor *sensor);
double package_energy_j(const struct target *target);

/* First line of every call for a die: the call is counted, delayed and failed as in the scenario. */
#define ENTER(handle, target)                               \
    static struct site site = {.name = __func__};           \
    struct target target;                                   \
    status_t entered = amd_enter(&site, handle, &target);   \
    if (entered)                                            \
    return entered
#define ENTER_LIBRARY()                            \
    static struct site site = {.name = __func__};  \
    status_t entered = amd_enter_library(&site);   \
    if (entered)                                   \
    return entered
#define REQUIRE(pointer)  \
    if (!(pointer))    \
    return AMD_INVALID

#endif
