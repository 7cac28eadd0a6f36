/* GPM, on Hopper and newer: activity and traffic between two samples. */
#include <math.h>
#include <stdlib.h>

#include "nvml.h"

enum {
    HOPPER = 9,
    GRAPHICS_UTIL = 1,
    SM_UTIL = 2,
    SM_OCCUPANCY = 3,
    TENSOR_UTIL = 5,
    HMMA_UTIL = 7,
    DRAM_UTIL = 10,
    PCIE_TX = 20,
    PCIE_RX = 21,
    NVLINK_RX = 60,
    NVLINK_TX = 61,
};
static const double MIB = 1048576;

status_t nvmlGpmQueryDeviceSupport(device_t device, struct gpm_support *support) {
    ENTER_WHOLE(device, target);
    REQUIRE(support);
    support->isSupportedDevice = target.gpu->architecture >= HOPPER;
    return NVML_SUCCESS;
}

status_t nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    ENTER_LIBRARY();
    REQUIRE(sample);
    *sample = calloc(1, sizeof **sample);
    return NVML_SUCCESS;
}

status_t nvmlGpmSampleFree(struct gpm_sample *sample) {
    ENTER_LIBRARY();
    free(sample);
    return NVML_SUCCESS;
}

status_t nvmlGpmSampleGet(device_t device, struct gpm_sample *sample) {
    ENTER_WHOLE(device, target);
    REQUIRE(sample);
    if (target.gpu->architecture < HOPPER || target.gpu->mig_instances > 0)
        return NVML_NOT_SUPPORTED;
    sample->gpu = target.index;
    sample->t_s = target.t_s;
    return NVML_SUCCESS;
}

static double share_of_load(unsigned metric) {
    switch (metric) {
    case GRAPHICS_UTIL: return 1;
    case SM_UTIL: return 0.9;
    case SM_OCCUPANCY: return 0.3;
    case TENSOR_UTIL: return 0.6;
    case HMMA_UTIL: return 0.6;
    case DRAM_UTIL: return 0.4;
    default: return 0;
    }
}

static double bytes_per_s(const struct gpu *gpu, unsigned metric) {
    switch (metric) {
    case PCIE_TX: return gpu->pcie_tx_bytes_per_s;
    case PCIE_RX: return gpu->pcie_rx_bytes_per_s;
    case NVLINK_RX: return gpu->nvlink_rx_bytes_per_s;
    case NVLINK_TX: return gpu->nvlink_tx_bytes_per_s;
    default: return 0;
    }
}

/* Units: % for activity, MiB/s for traffic. */
static status_t compute(const struct gpu *gpu, const struct gpm_metrics *metrics, struct gpm_metric *metric) {
    double from_s = metrics->sample1->t_s, to_s = metrics->sample2->t_s;
    double mean_load = (wave_integral(&gpu->load, to_s) - wave_integral(&gpu->load, from_s)) / (to_s - from_s);
    double share = share_of_load(metric->metricId), rate = bytes_per_s(gpu, metric->metricId);
    metric->value = share > 0 ? 100 * share * mean_load : rate / MIB * mean_load;
    return share > 0 || rate > 0 ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

status_t nvmlGpmMetricsGet(struct gpm_metrics *metrics) {
    ENTER_LIBRARY();
    REQUIRE(metrics && metrics->sample1 && metrics->sample2);
    if (metrics->sample1->gpu != metrics->sample2->gpu || metrics->sample2->t_s <= metrics->sample1->t_s)
        return NVML_INVALID_ARGUMENT;
    const struct gpu *gpu = &node_now()->gpu[metrics->sample1->gpu];
    for (unsigned i = 0; i < metrics->numMetrics; i++)
        metrics->metrics[i].nvmlReturn = compute(gpu, metrics, &metrics->metrics[i]);
    return NVML_SUCCESS;
}
