/* Identity and topology of GPUs; versions of the driver. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

enum { CUDA_VERSION = 13000, PCI_DEVICE_H200 = 0x233510de, BRAND_NVIDIA = 14, AMPERE = 7, TOPOLOGY_NODE = 40, TOPOLOGY_SYSTEM = 50 };

static status_t put(char *to, unsigned size, const char *text) {
    REQUIRE(to);
    if (strlen(text) >= size)
        return NVML_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

status_t nvmlSystemGetDriverVersion(char *version, unsigned size) {
    ENTER_LIBRARY();
    return put(version, size, node_now()->driver_version);
}

status_t nvmlSystemGetNVMLVersion(char *version, unsigned size) {
    ENTER_LIBRARY();
    return put(version, size, "13.0");
}

status_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER_LIBRARY();
    REQUIRE(version);
    *version = CUDA_VERSION;
    return NVML_SUCCESS;
}

status_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

status_t nvmlDeviceGetName(device_t device, char *name, unsigned size) {
    ENTER(device, target);
    char full[TEXT_SIZE + 16];
    snprintf(full, sizeof full, target.mig < 0 ? "%s" : "%s MIG 1g.18gb", target.gpu->name);
    return put(name, size, full);
}

status_t nvmlDeviceGetUUID(device_t device, char *uuid, unsigned size) {
    ENTER(device, target);
    char full[TEXT_SIZE + 16];
    if (target.mig < 0)
        return put(uuid, size, target.gpu->uuid);
    snprintf(full, sizeof full, "MIG-%d-%s", target.mig, target.gpu->uuid + strlen("GPU-"));
    return put(uuid, size, full);
}

status_t nvmlDeviceGetSerial(device_t device, char *serial, unsigned size) {
    ENTER_WHOLE(device, target);
    return put(serial, size, target.gpu->serial);
}

status_t nvmlDeviceGetBoardPartNumber(device_t device, char *number, unsigned size) {
    ENTER_WHOLE(device, target);
    return put(number, size, target.gpu->part_number);
}

status_t nvmlDeviceGetVbiosVersion(device_t device, char *version, unsigned size) {
    ENTER(device, target);
    return put(version, size, "96.00.99.00.01");
}

status_t nvmlDeviceGetPciInfo_v3(device_t device, struct pci_info *info) {
    ENTER(device, target);
    REQUIRE(info);
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)target.gpu->pci_bus;
    info->pciDeviceId = PCI_DEVICE_H200;
    snprintf(info->busId, sizeof info->busId, "00000000:%02X:00.0", info->bus);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "0000:%02X:00.0", info->bus);
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetPciInfo_v2(device_t device, struct pci_info *info) { return nvmlDeviceGetPciInfo_v3(device, info); }

status_t nvmlDeviceGetPciInfo(device_t device, struct pci_info *info) { return nvmlDeviceGetPciInfo_v3(device, info); }

/* A negative number in the scenario is not supported by the GPU. */
static status_t unsigned_fact(double fact, unsigned *to) {
    REQUIRE(to);
    if (fact < 0)
        return NVML_NOT_SUPPORTED;
    *to = (unsigned)fact;
    return NVML_SUCCESS;
}

#define UNSIGNED_FACT(call, fact)                         \
    status_t call(device_t device, unsigned *value) {     \
        ENTER_WHOLE(device, target);                      \
        return unsigned_fact(fact, value);                \
    }

UNSIGNED_FACT(nvmlDeviceGetMinorNumber, target.index)
UNSIGNED_FACT(nvmlDeviceGetModuleId, target.gpu->module_id)
UNSIGNED_FACT(nvmlDeviceGetBoardId, target.gpu->pci_bus * 256)
UNSIGNED_FACT(nvmlDeviceGetBrand, BRAND_NVIDIA)
UNSIGNED_FACT(nvmlDeviceGetArchitecture, target.gpu->architecture)
UNSIGNED_FACT(nvmlDeviceGetNumaNodeId, target.gpu->numa_node)
UNSIGNED_FACT(nvmlDeviceGetMemoryBusWidth, 6144)
UNSIGNED_FACT(nvmlDeviceGetNumGpuCores, 16896)
UNSIGNED_FACT(nvmlDeviceGetPersistenceMode, 1)
UNSIGNED_FACT(nvmlDeviceGetComputeMode, 0)
UNSIGNED_FACT(nvmlDeviceGetNumFans, 0)
UNSIGNED_FACT(nvmlDeviceGetFanSpeed, -1)
UNSIGNED_FACT(nvmlDeviceGetDisplayActive, 0)
UNSIGNED_FACT(nvmlDeviceGetDisplayMode, 0)
UNSIGNED_FACT(nvmlDeviceGetMultiGpuBoard, 0)

status_t nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor) {
    ENTER(device, target);
    REQUIRE(major && minor);
    *major = target.gpu->architecture == AMPERE ? 8 : (int)target.gpu->architecture;
    *minor = 0;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetPlatformInfo(device_t device, struct platform_info_v2 *info) {
    ENTER_WHOLE(device, target);
    REQUIRE(info);
    if (info->version != VERSION(struct platform_info_v2, 2))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    if (target.gpu->slot < 0)
        return NVML_NOT_SUPPORTED;
    info->slotNumber = (char)target.gpu->slot;
    info->moduleId = (char)target.gpu->module_id;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetC2cModeInfoV(device_t device, void *info) {
    ENTER(device, target);
    (void)info;
    return NVML_NOT_SUPPORTED; /* These nodes have no Grace CPU behind a chip-to-chip link. */
}

/* Paths over PCIe: GPUs of one socket share its NUMA node, others are connected by the socket link. */
status_t nvmlDeviceGetTopologyCommonAncestor(device_t one, device_t other, int *level) {
    ENTER(one, target);
    int index = nvml_gpu_of(other);
    if (!level || index < 0 || index >= node_now()->num_gpus)
        return NVML_INVALID_ARGUMENT;
    *level = node_now()->gpu[index].numa_node == target.gpu->numa_node ? TOPOLOGY_NODE : TOPOLOGY_SYSTEM;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetTopologyNearestGpus(device_t device, int level, unsigned *count, device_t *nearest) {
    ENTER(device, target);
    REQUIRE(count);
    unsigned num_nearest = 0;
    for (unsigned i = 0; i < nvml_num_visible(); i++) {
        const struct gpu *other = &node_now()->gpu[nvml_visible(i)];
        int other_level = other->numa_node == target.gpu->numa_node ? TOPOLOGY_NODE : TOPOLOGY_SYSTEM;
        if (other == target.gpu || other_level != level)
            continue;
        if (nearest && num_nearest < *count)
            nearest[num_nearest] = nvml_handle(nvml_visible(i), -1);
        num_nearest++;
    }
    *count = num_nearest;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetCpuAffinity(device_t device, unsigned size, unsigned long *set) {
    ENTER(device, target);
    REQUIRE(set && size);
    memset(set, 0, size * sizeof *set);
    set[0] = target.gpu->numa_node > 0 ? 0xffff0000ul : 0xfffful;
    return NVML_SUCCESS;
}
