/* Initialisation, texts of errors, and handles. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "nvml.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int num_users; /* Calls of nvmlInit minus calls of nvmlShutdown. */
static int visible[MAX_GPUS];
static unsigned num_visible;
static struct {
    int gpu, mig;
} handles[MAX_GPUS][8];

/* List the GPUs that are on the bus now, without those unplugged. */
static void discover(const struct node *node) {
    num_visible = 0;
    for (int i = 0; i < node->num_gpus; i++)
        if (node_time_s(node) < node->gpu[i].unplug_s)
            visible[num_visible++] = i;
}

static status_t init(struct site *site) {
    enum open_result result = node_open(NVIDIA);
    if (result == NO_NODE)
        return NVML_DRIVER_NOT_LOADED;
    double t_s;
    status_t status = enter_call(site, ALL_GPUS, &t_s);
    if (status)
        return status;
    pthread_mutex_lock(&lock);
    if (result == NEW_NODE)
        num_users = 0; /* The users were those of the node before, in a process that opens several. */
    if (num_users++ == 0)
        discover(node_now());
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

status_t nvmlInitWithFlags(unsigned flags) {
    static struct site site = {.name = "nvmlInit_v2"};
    (void)flags;
    return init(&site);
}

status_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

status_t nvmlInit(void) { return nvmlInitWithFlags(0); }

status_t nvmlShutdown(void) {
    ENTER_LIBRARY();
    pthread_mutex_lock(&lock);
    num_users--;
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(status_t status) {
    switch (status) {
    case NVML_SUCCESS: return "Success";
    case NVML_UNINITIALIZED: return "Uninitialized";
    case NVML_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_NOT_SUPPORTED: return "Not Supported";
    case NVML_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_NOT_FOUND: return "Not Found";
    case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_TIMEOUT: return "Timeout";
    case NVML_GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

status_t nvml_enter_library(struct site *site) {
    double t_s;
    return num_users <= 0 || !node_now() ? NVML_UNINITIALIZED : enter_call(site, ALL_GPUS, &t_s);
}

device_t nvml_handle(int gpu, int mig) {
    handles[gpu][mig + 1].gpu = gpu;
    handles[gpu][mig + 1].mig = mig;
    return &handles[gpu][mig + 1];
}

/* Return the GPU of a handle, -1 if the handle is invalid. */
int nvml_gpu_of(device_t device) {
    size_t offset = (size_t)((char *)device - (char *)handles);
    return !device || offset >= sizeof handles ? -1 : (int)(offset / sizeof handles[0]);
}

status_t nvml_enter(struct site *site, device_t device, struct target *target) {
    const struct node *node = node_now();
    if (num_users <= 0 || !node)
        return NVML_UNINITIALIZED;
    target->index = nvml_gpu_of(device);
    if (target->index < 0 || target->index >= node->num_gpus)
        return NVML_INVALID_ARGUMENT;
    target->gpu = &node->gpu[target->index];
    target->mig = handles[target->index][((char *)device - (char *)handles[target->index]) / sizeof handles[0][0]].mig;
    status_t status = enter_call(site, target->index, &target->t_s);
    if (status)
        return status;
    return target->t_s >= target->gpu->unplug_s ? NVML_GPU_IS_LOST : NVML_SUCCESS;
}

int nvml_visible(unsigned index) { return visible[index]; }

unsigned nvml_num_visible(void) { return num_visible; }

status_t nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER_LIBRARY();
    REQUIRE(count);
    *count = num_visible;
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

/* Return the handle of a GPU, unless this call fails for it in the scenario. */
static status_t get_handle(struct site *site, int gpu, device_t *device) {
    struct target target;
    *device = nvml_handle(gpu, -1);
    return nvml_enter(site, *device, &target);
}

status_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    static struct site site = {.name = __func__};
    if (num_users <= 0 || !node_now())
        return NVML_UNINITIALIZED;
    return !device || index >= num_visible ? NVML_INVALID_ARGUMENT : get_handle(&site, visible[index], device);
}

status_t nvmlDeviceGetHandleByIndex(unsigned index, device_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* Return the handle of the visible GPU whose text member at `offset` equals `wanted`. */
static status_t find(struct site *site, const char *wanted, size_t offset, device_t *device) {
    status_t status = nvml_enter_library(site);
    if (status)
        return status;
    REQUIRE(wanted && device);
    for (unsigned i = 0; i < num_visible; i++)
        if (!strcmp((const char *)&node_now()->gpu[visible[i]] + offset, wanted))
            return get_handle(site, visible[i], device);
    return NVML_NOT_FOUND;
}

status_t nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device) {
    static struct site site = {.name = __func__};
    return find(&site, uuid, offsetof(struct gpu, uuid), device);
}

status_t nvmlDeviceGetHandleBySerial(const char *serial, device_t *device) {
    static struct site site = {.name = __func__};
    return find(&site, serial, offsetof(struct gpu, serial), device);
}

status_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device_t *device) {
    ENTER_LIBRARY();
    unsigned domain, bus;
    if (!bus_id || !device || sscanf(bus_id, "%x:%x:", &domain, &bus) != 2)
        return NVML_INVALID_ARGUMENT;
    for (unsigned i = 0; i < num_visible; i++)
        if ((unsigned)node_now()->gpu[visible[i]].pci_bus == bus)
            return get_handle(&site, visible[i], device);
    return NVML_NOT_FOUND;
}

status_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, device_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

status_t nvmlDeviceGetIndex(device_t device, unsigned *index) {
    ENTER(device, target);
    for (*index = 0; *index < num_visible; (*index)++)
        if (visible[*index] == target.index)
            return NVML_SUCCESS;
    return NVML_NOT_FOUND;
}
