/* PCIe, NVLink, memory, ECC, MIG. */
#include <math.h>
#include <string.h>

#include "nvml.h"

enum { PCIE_TX = 0, NVLINK_3 = 4, NVLINK_4 = 6, HOPPER = 9 };
static const double PCIE_WINDOW_S = 0.02;

/* Traffic of 20 ms, for which the call waits. Unit: KB/s. */
status_t nvmlDeviceGetPcieThroughput(device_t device, int counter, unsigned *kb_per_s) {
    ENTER_WHOLE(device, target);
    REQUIRE(kb_per_s);
    double rate = counter == PCIE_TX ? target.gpu->pcie_tx_bytes_per_s : target.gpu->pcie_rx_bytes_per_s;
    double before = traffic_bytes(target.gpu, 0, rate, target.t_s);
    node_wait(PCIE_WINDOW_S);
    double bytes = traffic_bytes(target.gpu, 0, rate, target.t_s + PCIE_WINDOW_S) - before;
    *kb_per_s = (unsigned)(bytes / PCIE_WINDOW_S / 1000);
    return NVML_SUCCESS;
}

#define CONSTANT(call, constant)                   \
    status_t call(device_t device, unsigned *to) { \
        ENTER_WHOLE(device, target);               \
        REQUIRE(to);                                  \
        *to = (constant);                          \
        return NVML_SUCCESS;                       \
    }
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, 5)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, 5)
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, 16)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, 16)
CONSTANT(nvmlDeviceGetPcieReplayCounter, 0)
CONSTANT(nvmlDeviceGetPcieSpeed, 32000)

static status_t link(const struct target *target, unsigned number, unsigned *to, unsigned value) {
    REQUIRE(to);
    if (target->gpu->nvlinks <= 0)
        return NVML_NOT_SUPPORTED;
    REQUIRE(number < target->gpu->nvlinks);
    *to = value;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetNvLinkState(device_t device, unsigned number, unsigned *is_active) {
    ENTER_WHOLE(device, target);
    return link(&target, number, is_active, 1);
}

status_t nvmlDeviceGetNvLinkVersion(device_t device, unsigned number, unsigned *version) {
    ENTER_WHOLE(device, target);
    return link(&target, number, version, target.gpu->architecture >= HOPPER ? NVLINK_4 : NVLINK_3);
}

status_t nvmlDeviceGetNvLinkErrorCounter(device_t device, unsigned number, int kind, unsigned long long *errors) {
    ENTER_WHOLE(device, target);
    (void)kind;
    unsigned none = 0;
    status_t status = link(&target, number, &none, 0);
    if (!status)
        *errors = none;
    return status;
}


status_t nvmlDeviceGetMemoryInfo(device_t device, struct memory_v1 *memory) {
    ENTER(device, target);
    REQUIRE(memory);
    double share = target.mig < 0 ? 1 : 1.0 / 8;
    memory->total = (unsigned long long)(target.gpu->memory_bytes * share);
    memory->used = (unsigned long long)(gpu_used_memory_bytes(target.gpu, target.t_s) * share);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *memory) {
    ENTER(device, target);
    REQUIRE(memory);
    if (memory->version != VERSION(*memory, 2))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    double share = target.mig < 0 ? 1 : 1.0 / 8;
    memory->total = (unsigned long long)(target.gpu->memory_bytes * share);
    memory->used = (unsigned long long)(gpu_used_memory_bytes(target.gpu, target.t_s) * share);
    memory->reserved = (unsigned long long)(600e6 * share);
    memory->free = memory->total - memory->used - memory->reserved;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetEccMode(device_t device, unsigned *current, unsigned *pending) {
    ENTER_WHOLE(device, target);
    REQUIRE(current && pending);
    *current = *pending = 1;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetTotalEccErrors(device_t device, int kind, int counter, unsigned long long *errors) {
    ENTER_WHOLE(device, target);
    REQUIRE(errors);
    (void)counter;
    *errors = (unsigned long long)(kind == 0 ? target.gpu->ecc_corrected : target.gpu->ecc_uncorrected);
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected, unsigned *is_pending,
                                   unsigned *has_failed) {
    ENTER_WHOLE(device, target);
    REQUIRE(corrected && uncorrected && is_pending && has_failed);
    *corrected = *is_pending = *has_failed = 0;
    *uncorrected = (unsigned)target.gpu->remapped_rows;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, void *processes) {
    ENTER(device, target);
    (void)processes;
    *count = 0;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending) {
    ENTER_WHOLE(device, target);
    REQUIRE(current && pending);
    *current = *pending = target.gpu->mig_instances > 0;
    return NVML_SUCCESS;
}

status_t nvmlDeviceIsMigDeviceHandle(device_t device, unsigned *is_mig) {
    ENTER(device, target);
    REQUIRE(is_mig);
    *is_mig = target.mig >= 0;
    return NVML_SUCCESS;
}

CONSTANT(nvmlDeviceGetMaxMigDeviceCount, 7)

status_t nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *mig) {
    ENTER_WHOLE(device, target);
    REQUIRE(mig && index < 7);
    if (index >= target.gpu->mig_instances)
        return NVML_NOT_FOUND;
    *mig = nvml_handle(target.index, (int)index);
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t mig, device_t *device) {
    ENTER(mig, target);
    REQUIRE(device && target.mig >= 0);
    *device = nvml_handle(target.index, -1);
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetGpuInstanceId(device_t mig, unsigned *instance) {
    ENTER(mig, target);
    REQUIRE(instance && target.mig >= 0);
    *instance = (unsigned)target.mig + 7;
    return NVML_SUCCESS;
}
