/* What a GPU does in truth, and what its sensors and counters make of it. */
#include <math.h>

#include "node.h"

double gpu_power_w(const struct gpu *gpu, double t_s) {
    return gpu->idle_w + (gpu->max_w - gpu->idle_w) * wave_value(&gpu->load, t_s);
}

/* Energy since scenario time 0; negative before. */
double gpu_energy_j(const struct gpu *gpu, double t_s) {
    return gpu->idle_w * t_s + (gpu->max_w - gpu->idle_w) * wave_integral(&gpu->load, t_s);
}

static double heat_w(const struct gpu *gpu, const struct response *response, double t_s) {
    return gpu->idle_w + (gpu->max_w - gpu->idle_w) * response_value(response, t_s);
}

double gpu_die_c(const struct gpu *gpu, double t_s) {
    return gpu->inlet_c + gpu->resistance_c_per_w * heat_w(gpu, &gpu->die, t_s);
}

double gpu_memory_c(const struct gpu *gpu, double t_s) {
    return gpu->inlet_c + gpu->memory_resistance_c_per_w * heat_w(gpu, &gpu->memory, t_s);
}

/* The hottest spot follows the power at once, on top of the die. */
double gpu_hotspot_c(const struct gpu *gpu, double t_s) {
    return gpu_die_c(gpu, t_s) + gpu->hotspot_c_per_w * gpu_power_w(gpu, t_s);
}

double gpu_sm_mhz(const struct gpu *gpu, double t_s) {
    if (wave_value(&gpu->busy, t_s) <= 0)
        return gpu->idle_sm_mhz;
    for (int cause = 0; cause < NUM_CAUSES; cause++)
        if (wave_value(&gpu->cause[cause], t_s) > 0)
            return gpu->throttled_sm_mhz;
    return gpu->max_sm_mhz;
}

/* Share of a window in which a kernel ran, 0-1. */
double gpu_busy(const struct gpu *gpu, double from_s, double to_s) {
    return (wave_integral(&gpu->busy, to_s) - wave_integral(&gpu->busy, from_s)) / (to_s - from_s);
}

/* Uniform in -1..1, the same for the same refresh of the same sensor. */
static double noise_at(double refresh, double seed) {
    double x = sin(refresh * 12.9898 + seed * 78.233) * 43758.5453;
    return 2 * (x - floor(x)) - 1;
}

/* Down to a whole quantum, a thousandth short of the next one counted as it: sums are not exact. */
static double quantised(double value, double quantum) {
    return quantum > 0 ? quantum * floor(value / quantum + 1e-3) : value;
}

double sensor_power_w(const struct gpu *gpu, const struct sensor *sensor, double t_s) {
    double refresh = floor((t_s - sensor->phase_s) / sensor->period_s);
    double end_s = refresh * sensor->period_s + sensor->phase_s - sensor->lag_s;
    double mean_w = (gpu_energy_j(gpu, end_s) - gpu_energy_j(gpu, end_s - sensor->window_s)) / sensor->window_s;
    return quantised(sensor->gain * mean_w + sensor->noise_w * noise_at(refresh, gpu->pci_bus), sensor->quantum_w);
}

double energy_counter_j(const struct gpu *gpu, double t_s) {
    double refresh_s = floor((t_s - gpu->energy_phase_s) / gpu->energy_period_s) * gpu->energy_period_s;
    return quantised(gpu->energy_offset_j + gpu_energy_j(gpu, refresh_s + gpu->energy_phase_s), gpu->energy_unit_j);
}

/* Traffic goes with the load. */
double traffic_bytes(const struct gpu *gpu, double offset_bytes, double bytes_per_s, double t_s) {
    return floor(offset_bytes + bytes_per_s * wave_integral(&gpu->load, t_s));
}

double violation_ns(const struct gpu *gpu, enum cause cause, double t_s) {
    return gpu->violation_offset_ns + floor(1e9 * wave_integral(&gpu->cause[cause], t_s));
}
