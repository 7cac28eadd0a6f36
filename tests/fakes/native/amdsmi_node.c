/* Initialisation, handles and identity of dies. */
#include <stdio.h>
#include <string.h>

#include "amdsmi.h"

enum { VENDOR_AMD = 0x1002, DEVICE_MI250 = 0x740c, DEVICE_MI300 = 0x74a1, PROCESSOR_AMD_GPU = 1 };

static int is_initialised;
static char handles[MAX_GPUS]; /* Handles of sockets and of processors: each die has a PCI address and a socket. */

status_t amdsmi_init(uint64_t flags) {
    static struct site site = {.name = __func__};
    (void)flags;
    if (node_open(AMD) == NO_NODE)
        return AMD_DRIVER_NOT_LOADED;
    double t_s;
    status_t status = (status_t)enter_call(&site, ALL_GPUS, &t_s);
    is_initialised = !status;
    return status;
}

status_t amdsmi_shut_down(void) {
    ENTER_LIBRARY();
    is_initialised = 0;
    return AMD_SUCCESS;
}

status_t amd_enter_library(struct site *site) {
    double t_s;
    return !is_initialised || !node_now() ? AMD_NOT_INITIALISED : (status_t)enter_call(site, ALL_GPUS, &t_s);
}

status_t amd_enter(struct site *site, handle_t handle, struct target *target) {
    const struct node *node = node_now();
    if (!is_initialised || !node)
        return AMD_NOT_INITIALISED;
    size_t index = (size_t)((char *)handle - handles);
    if (!handle || index >= (size_t)node->num_gpus)
        return AMD_INVALID;
    target->index = (int)index;
    target->gpu = &node->gpu[index];
    status_t status = (status_t)enter_call(site, target->index, &target->t_s);
    if (status)
        return status;
    return target->t_s >= target->gpu->unplug_s ? AMD_NOT_FOUND : AMD_SUCCESS;
}

status_t amdsmi_get_socket_handles(uint32_t *count, handle_t *sockets) {
    ENTER_LIBRARY();
    REQUIRE(count);
    const struct node *node = node_now();
    uint32_t num_sockets = 0;
    for (int i = 0; i < node->num_gpus; i++) {
        if (node_time_s(node) >= node->gpu[i].unplug_s)
            continue;
        if (sockets && num_sockets < *count)
            sockets[num_sockets] = &handles[i];
        num_sockets++;
    }
    *count = num_sockets;
    return AMD_SUCCESS;
}

status_t amdsmi_get_processor_handles(handle_t socket, uint32_t *count, handle_t *processors) {
    ENTER(socket, target);
    REQUIRE(count);
    *count = 1;
    if (processors)
        processors[0] = socket;
    return AMD_SUCCESS;
}

status_t amdsmi_get_processor_type(handle_t handle, int *type) {
    ENTER(handle, target);
    REQUIRE(type);
    *type = PROCESSOR_AMD_GPU;
    return AMD_SUCCESS;
}

/* Return the PCI address: domain in the top 48 bits, then bus, device and function. */
static uint64_t bdf_of(const struct gpu *gpu) { return (uint64_t)gpu->pci_bus << 8; }

status_t amdsmi_get_gpu_device_bdf(handle_t handle, uint64_t *bdf) {
    ENTER(handle, target);
    REQUIRE(bdf);
    *bdf = bdf_of(target.gpu);
    return AMD_SUCCESS;
}

status_t amdsmi_get_gpu_bdf_id(handle_t handle, uint64_t *bdf) { return amdsmi_get_gpu_device_bdf(handle, bdf); }

status_t amdsmi_get_socket_info(handle_t socket, size_t size, char *name) {
    ENTER(socket, target);
    snprintf(name, size, "0000:%02x:00", (unsigned)target.gpu->pci_bus);
    return AMD_SUCCESS;
}

status_t amdsmi_get_processor_handle_from_bdf(uint64_t bdf, handle_t *handle) {
    ENTER_LIBRARY();
    REQUIRE(handle);
    for (int i = 0; i < node_now()->num_gpus; i++)
        if (bdf_of(&node_now()->gpu[i]) == bdf) {
            *handle = &handles[i];
            return AMD_SUCCESS;
        }
    return AMD_NOT_FOUND;
}

status_t amdsmi_get_gpu_device_uuid(handle_t handle, uint32_t *size, char *uuid) {
    ENTER(handle, target);
    REQUIRE(size && uuid);
    snprintf(uuid, *size, "%s", target.gpu->uuid);
    return AMD_SUCCESS;
}

status_t amdsmi_get_gpu_enumeration_info(handle_t handle, struct amd_enumeration_info *info) {
    ENTER(handle, target);
    REQUIRE(info);
    memset(info, 0, sizeof *info);
    info->drm_card = (uint32_t)target.index;
    info->drm_render = 128 + (uint32_t)target.index;
    info->hsa_id = (uint32_t)target.gpu->hip_id + 2;
    info->hip_id = (uint32_t)target.gpu->hip_id;
    snprintf(info->hip_uuid, sizeof info->hip_uuid, "GPU-%.16s", target.gpu->serial);
    return AMD_SUCCESS;
}

status_t amdsmi_get_gpu_id(handle_t handle, uint16_t *id) {
    ENTER(handle, target);
    REQUIRE(id);
    *id = target.gpu->architecture >= MI300 ? DEVICE_MI300 : DEVICE_MI250;
    return AMD_SUCCESS;
}

status_t amdsmi_get_gpu_asic_info(handle_t handle, struct amd_asic_info *info) {
    ENTER(handle, target);
    REQUIRE(info);
    memset(info, 0, sizeof *info);
    int is_mi300 = target.gpu->architecture >= MI300;
    snprintf(info->market_name, sizeof info->market_name, "%s", target.gpu->name);
    snprintf(info->vendor_name, sizeof info->vendor_name, "Advanced Micro Devices Inc. [AMD/ATI]");
    snprintf(info->asic_serial, sizeof info->asic_serial, "0x%s", target.gpu->serial);
    info->vendor_id = info->subvendor_id = VENDOR_AMD;
    info->device_id = is_mi300 ? DEVICE_MI300 : DEVICE_MI250;
    info->oam_id = (uint32_t)target.gpu->module_id;
    info->num_of_compute_units = is_mi300 ? 304 : 104;
    info->target_graphics_version = is_mi300 ? 0x942 : 0x90a;
    return AMD_SUCCESS;
}

status_t amdsmi_get_gpu_board_info(handle_t handle, struct amd_board_info *info) {
    ENTER(handle, target);
    REQUIRE(info);
    memset(info, 0, sizeof *info);
    snprintf(info->product_name, sizeof info->product_name, "%s", target.gpu->name);
    snprintf(info->product_serial, sizeof info->product_serial, "%s", target.gpu->serial);
    snprintf(info->manufacturer_name, sizeof info->manufacturer_name, "AMD");
    return AMD_SUCCESS;
}

status_t amdsmi_get_gpu_driver_info(handle_t handle, struct amd_driver_info *info) {
    ENTER(handle, target);
    REQUIRE(info);
    memset(info, 0, sizeof *info);
    snprintf(info->driver_version, sizeof info->driver_version, "%s", node_now()->driver_version);
    snprintf(info->driver_name, sizeof info->driver_name, "amdgpu");
    return AMD_SUCCESS;
}

status_t amdsmi_get_lib_version(struct amd_version *version) {
    REQUIRE(version);
    *version = (struct amd_version){26, 0, 2, "26.0.2"}; /* As in ROCm 7.0.2. Works before amdsmi_init too. */
    return AMD_SUCCESS;
}

status_t amdsmi_topo_get_numa_node_number(handle_t handle, uint32_t *numa_node) {
    ENTER(handle, target);
    REQUIRE(numa_node);
    *numa_node = (uint32_t)target.gpu->numa_node;
    return AMD_SUCCESS;
}

status_t amdsmi_get_gpu_topo_numa_affinity(handle_t handle, int32_t *numa_node) {
    return amdsmi_topo_get_numa_node_number(handle, (uint32_t *)numa_node);
}

status_t amdsmi_status_code_to_string(status_t status, const char **text) {
    REQUIRE(text);
    *text = status == AMD_SUCCESS             ? "SUCCESS - Call succeeded"
            : status == AMD_NOT_SUPPORTED     ? "NOT_SUPPORTED - Feature not supported"
            : status == AMD_NO_PERMISSION     ? "NO_PERM - Permission denied"
            : status == AMD_NOT_INITIALISED   ? "NOT_INIT - Device not initialized"
            : status == AMD_DRIVER_NOT_LOADED ? "DRIVER_NOT_LOADED - Driver not loaded"
                                              : "UNKNOWN_ERROR - An unknown error occurred";
    return AMD_SUCCESS;
}
