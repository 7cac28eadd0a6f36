/* Event sets, which deliver the XID errors of the scenario. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvml.h"

enum { EVENT_ECC_SINGLE = 0x1, EVENT_ECC_DOUBLE = 0x2, EVENT_XID = 0x8 };

struct event_set {
    double since_s;
    char is_watched[MAX_GPUS], is_delivered[MAX_XIDS];
};

status_t nvmlEventSetCreate(struct event_set **set) {
    ENTER_LIBRARY();
    REQUIRE(set);
    *set = calloc(1, sizeof **set);
    (*set)->since_s = node_time_s(node_now());
    return NVML_SUCCESS;
}

status_t nvmlEventSetFree(struct event_set *set) {
    ENTER_LIBRARY();
    free(set);
    return NVML_SUCCESS;
}

status_t nvmlDeviceGetSupportedEventTypes(device_t device, unsigned long long *types) {
    ENTER_WHOLE(device, target);
    REQUIRE(types);
    *types = EVENT_XID | EVENT_ECC_SINGLE | EVENT_ECC_DOUBLE;
    return NVML_SUCCESS;
}

status_t nvmlDeviceRegisterEvents(device_t device, unsigned long long types, struct event_set *set) {
    ENTER_WHOLE(device, target);
    REQUIRE(set);
    set->is_watched[target.index] = (types & EVENT_XID) != 0;
    return NVML_SUCCESS;
}

/* Deliver the next XID error that is due on a watched GPU. */
static status_t next_event(struct event_set *set, struct event_data *event) {
    const struct node *node = node_now();
    double t_s = node_time_s(node);
    for (int i = 0; i < node->num_xids; i++) {
        int is_due = node->xid[i].at_s <= t_s && node->xid[i].at_s >= set->since_s;
        if (set->is_delivered[i] || !is_due || !set->is_watched[node->xid[i].gpu])
            continue;
        set->is_delivered[i] = 1;
        memset(event, 0, sizeof *event);
        event->device = nvml_handle(node->xid[i].gpu, -1);
        event->eventType = EVENT_XID;
        event->eventData = (unsigned long long)node->xid[i].code;
        event->gpuInstanceId = event->computeInstanceId = 0xffffffffu;
        return NVML_SUCCESS;
    }
    return NVML_TIMEOUT;
}

status_t nvmlEventSetWait_v2(struct event_set *set, struct event_data *event, unsigned timeout_ms) {
    ENTER_LIBRARY();
    REQUIRE(set && event);
    const struct timespec millisecond = {0, 1000000};
    status_t status = next_event(set, event);
    for (unsigned waited_ms = 0; status == NVML_TIMEOUT && waited_ms < timeout_ms; waited_ms++) {
        nanosleep(&millisecond, NULL);
        status = next_event(set, event);
    }
    return status;
}

status_t nvmlEventSetWait(struct event_set *set, struct event_data *event, unsigned timeout_ms) {
    return nvmlEventSetWait_v2(set, event, timeout_ms);
}
