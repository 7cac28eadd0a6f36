/* Subset of the NVML binary interface. test_abi.py compares sizes with nvidia-ml-py.
   Source: nvml.h as described by nvidia-ml-py 13.615.71, and NVIDIA's NVML API reference. */
#ifndef FAKES_NVML_H
#define FAKES_NVML_H

#include "node.h"

enum nvml_status {
    NVML_SUCCESS = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_GPU_IS_LOST = 15,
    NVML_ARGUMENT_VERSION_MISMATCH = 25,
};

typedef int status_t;
typedef void *device_t;

union value {
    double dVal;
    unsigned uiVal;
    unsigned long long ullVal;
    long long sllVal;
    int siVal;
};
enum value_type { TYPE_DOUBLE = 0, TYPE_UINT = 1, TYPE_ULL = 3, TYPE_INT = 5 };

struct field_value {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType, nvmlReturn;
    union value value;
};
struct sample {
    unsigned long long timeStamp;
    union value value;
};
struct utilization {
    unsigned gpu, memory;
};
struct memory_v1 {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct violation_time {
    unsigned long long referenceTime, violationTime;
};
struct temperature_v1 {
    unsigned version;
    int sensorType, temperature;
};
struct margin_v1 {
    unsigned version;
    int marginTemperature;
};
struct pci_info {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
};
struct platform_info_v2 {
    unsigned version;
    char ibGuid[16], chassisSerialNumber[16], slotNumber, trayIndex, hostId, peerType, moduleId;
};
struct event_data {
    device_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
};
struct gpm_metric {
    unsigned metricId;
    int nvmlReturn;
    double value;
    struct {
        const char *shortName, *longName, *unit;
    } info;
};
struct gpm_sample {
    int gpu;
    double t_s;
};
struct gpm_metrics {
    unsigned version, numMetrics;
    struct gpm_sample *sample1, *sample2;
    struct gpm_metric metrics[];
};
struct gpm_support {
    unsigned version, isSupportedDevice;
};

/* test_abi.py reads these lines and compares the sizes with the structures of the bindings. */
#define SAME_SIZE(name, size, binding) _Static_assert(sizeof(struct name) == size, #binding)
SAME_SIZE(field_value, 40, c_nvmlFieldValue_t);
SAME_SIZE(sample, 16, c_nvmlSample_t);
SAME_SIZE(utilization, 8, c_nvmlUtilization_t);
SAME_SIZE(memory_v1, 24, c_nvmlMemory_t);
SAME_SIZE(memory_v2, 40, c_nvmlMemory_v2_t);
SAME_SIZE(violation_time, 16, c_nvmlViolationTime_t);
SAME_SIZE(temperature_v1, 12, c_nvmlTemperature_v1_t);
SAME_SIZE(margin_v1, 8, c_nvmlMarginTemperature_v1_t);
SAME_SIZE(pci_info, 68, nvmlPciInfo_t);
SAME_SIZE(platform_info_v2, 44, c_nvmlPlatformInfo_v2_t);
SAME_SIZE(event_data, 32, c_nvmlEventData_t);
SAME_SIZE(gpm_metric, 40, c_nvmlGpmMetric_t);
SAME_SIZE(gpm_support, 8, c_nvmlGpmSupport_t);

#define VERSION(type, number) (unsigned)(sizeof(type) | (number) << 24)

/* The GPU that a call is for, its MIG instance (-1 for the whole GPU), and the scenario time of the call. */
struct target {
    const struct gpu *gpu;
    int index, mig;
    double t_s;
};

status_t nvml_enter(struct site *site, device_t device, struct target *target);
status_t nvml_enter_library(struct site *site);
device_t nvml_handle(int gpu, int mig);
int nvml_gpu_of(device_t device);
int nvml_visible(unsigned index);
unsigned nvml_num_visible(void);

/* First line of every call for a device: the call is counted, delayed and failed as in the scenario. */
#define ENTER(device, target)                      \
    static struct site site = {.name = __func__};  \
    struct target target;                          \
    status_t entered = nvml_enter(&site, device, &target); \
    if (entered)                                   \
    return entered
#define ENTER_LIBRARY()                            \
    static struct site site = {.name = __func__};  \
    status_t entered = nvml_enter_library(&site);  \
    if (entered)                                   \
    return entered
/* First line of calls that a MIG instance does not support. */
#define ENTER_WHOLE(device, target) \
    ENTER(device, target);          \
    if (target.mig >= 0)            \
    return NVML_NOT_SUPPORTED
#define REQUIRE(pointer)  \
    if (!(pointer))    \
    return NVML_INVALID_ARGUMENT

#endif
