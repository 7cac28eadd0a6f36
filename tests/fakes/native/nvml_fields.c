/* nvmlDeviceGetFieldValues: each value has a type, a scope, a time stamp and a status. */
#include <math.h>
#include <stddef.h>

#include "nvml.h"

enum { SCOPE_GPU = 0, SCOPE_MEMORY = 2 };
static const unsigned ALL_LINKS = 0xffffffffu;

typedef status_t reader(const struct target *target, struct field_value *to);

static status_t give_uint(struct field_value *to, double value) {
    to->valueType = TYPE_UINT;
    to->value.uiVal = (unsigned)(unsigned long long)value; /* A 32-bit counter wraps here. */
    return NVML_SUCCESS;
}

static status_t give_int(struct field_value *to, double value) {
    to->valueType = TYPE_INT;
    to->value.siVal = (int)value;
    return NVML_SUCCESS;
}

static status_t give_ull(struct field_value *to, double value) {
    to->valueType = TYPE_ULL;
    to->value.ullVal = (unsigned long long)value;
    return NVML_SUCCESS;
}

static double frozen_s(const struct target *target, const char *what) {
    return frozen_time_s(target->index, what, target->t_s);
}

static status_t power(const struct target *target, struct field_value *to, const struct sensor *sensor) {
    double power_w = sensor_power_w(target->gpu, sensor, frozen_s(target, "power"));
    if (to->scopeId == SCOPE_MEMORY)
        power_w *= target->gpu->memory_power_share;
    else if (to->scopeId != SCOPE_GPU)
        return NVML_NOT_SUPPORTED; /* Only Grace Hopper has a sensor of the module. */
    return give_uint(to, floor(power_w * 1000 + 1e-6));
}

static status_t power_average(const struct target *target, struct field_value *to) {
    return power(target, to, &target->gpu->average);
}

static status_t power_instant(const struct target *target, struct field_value *to) {
    return to->scopeId == SCOPE_MEMORY ? NVML_NOT_SUPPORTED : power(target, to, &target->gpu->instant);
}

static status_t power_limit(const struct target *target, struct field_value *to) {
    const struct gpu *gpu = target->gpu;
    const double limits_w[] = {gpu->min_limit_w, gpu->max_limit_w, gpu->default_limit_w, gpu->limit_w};
    return give_uint(to, limits_w[(to->fieldId == 192 ? 190 : to->fieldId) - 187] * 1000);
}

static status_t energy(const struct target *target, struct field_value *to) {
    return give_ull(to, energy_counter_j(target->gpu, frozen_s(target, "energy")) * 1000);
}

static status_t memory_temperature(const struct target *target, struct field_value *to) {
    return give_uint(to, floor(gpu_memory_c(target->gpu, frozen_s(target, "temperature"))));
}

/* Margins from thresholds to the highest operating temperature. Those of shutdown and slowdown are negative. */
static status_t temperature_margin(const struct target *target, struct field_value *to) {
    const struct gpu *gpu = target->gpu;
    const double thresholds_c[] = {gpu->shutdown_c, gpu->slowdown_c, gpu->memory_max_c, gpu->max_c};
    return give_int(to, gpu->max_c - thresholds_c[to->fieldId - 193]);
}

static status_t violation(const struct target *target, struct field_value *to) {
    enum cause cause = to->fieldId == 74    ? POWER_CAP
                       : to->fieldId == 75  ? SW_THERMAL
                       : to->fieldId == 76  ? SYNC_BOOST
                       : to->fieldId == 269 ? SW_THERMAL
                       : to->fieldId == 270 ? HW_THERMAL
                                            : POWER_BRAKE;
    return give_ull(to, violation_ns(target->gpu, cause, target->t_s));
}

/* Return the bytes of one link, or of all links if the scope is UINT_MAX. */
static double nvlink_bytes(const struct target *target, const struct field_value *to, int is_received) {
    const struct gpu *gpu = target->gpu;
    double rate = is_received ? gpu->nvlink_rx_bytes_per_s : gpu->nvlink_tx_bytes_per_s;
    double total = traffic_bytes(gpu, gpu->nvlink_offset_bytes, rate, frozen_s(target, "nvlink"));
    return to->scopeId == ALL_LINKS ? total : total / gpu->nvlinks;
}

static int has_link(const struct target *target, const struct field_value *to) {
    return target->gpu->nvlinks > 0 && (to->scopeId == ALL_LINKS || to->scopeId < target->gpu->nvlinks);
}

/* Traffic in KiB. Even fields are sent, odd ones received. Raw fields (from 140) include the protocol. */
static status_t nvlink_throughput(const struct target *target, struct field_value *to) {
    const double protocol = to->fieldId >= 140 ? 1.1 : 1;
    if (!has_link(target, to))
        return target->gpu->nvlinks > 0 ? NVML_INVALID_ARGUMENT : NVML_NOT_SUPPORTED;
    return give_ull(to, protocol * nvlink_bytes(target, to, to->fieldId % 2) / 1024);
}

/* Traffic in bytes, which only NVLink 5 (Blackwell, architecture 10) counts. */
static status_t nvlink_count(const struct target *target, struct field_value *to) {
    if (target->gpu->architecture < 10 || !has_link(target, to))
        return NVML_NOT_SUPPORTED;
    return give_ull(to, nvlink_bytes(target, to, to->fieldId == 204));
}

static status_t nvlink_links(const struct target *target, struct field_value *to) {
    return give_uint(to, target->gpu->nvlinks);
}

static status_t nvlink_speed(const struct target *target, struct field_value *to) {
    return target->gpu->nvlinks > 0 ? give_uint(to, 25781) : NVML_NOT_SUPPORTED;
}

static status_t pcie_bytes(const struct target *target, struct field_value *to) {
    const struct gpu *gpu = target->gpu;
    double rate = to->fieldId == 197 ? gpu->pcie_tx_bytes_per_s : gpu->pcie_rx_bytes_per_s;
    double bytes = traffic_bytes(gpu, gpu->pcie_offset_bytes, rate, frozen_s(target, "pcie"));
    return gpu->pcie_counter_bits > 32 ? give_ull(to, bytes) : give_uint(to, bytes);
}

static status_t ecc(const struct target *target, struct field_value *to) {
    return give_ull(to, to->fieldId % 2 ? target->gpu->ecc_corrected : target->gpu->ecc_uncorrected);
}

static status_t remapped(const struct target *target, struct field_value *to) {
    return give_uint(to, to->fieldId == 143 ? target->gpu->remapped_rows : 0);
}

static status_t zero(const struct target *target, struct field_value *to) {
    (void)target;
    return give_uint(to, 0);
}

static const struct {
    unsigned first, last;
    reader *read;
} readers[] = {
    {3, 6, ecc},
    {74, 76, violation},
    {82, 82, memory_temperature},
    {83, 83, energy},
    {90, 90, nvlink_speed},
    {91, 91, nvlink_links},
    {94, 95, zero}, /* PCIe replays */
    {138, 141, nvlink_throughput},
    {142, 145, remapped},
    {161, 163, zero}, /* NVLink replays, recoveries, CRC errors */
    {164, 164, nvlink_speed},
    {173, 183, zero}, /* PCIe errors */
    {185, 185, power_average},
    {186, 186, power_instant},
    {187, 190, power_limit},
    {191, 191, energy},
    {192, 192, power_limit},
    {193, 196, temperature_margin},
    {197, 198, pcie_bytes},
    {202, 202, nvlink_count},
    {204, 204, nvlink_count},
    {269, 271, violation},
};

static status_t read_field(const struct target *target, struct field_value *to) {
    uint64_t key = FIELD_KEY(to->fieldId, to->scopeId);
    count_call(key, "");
    const struct rules *errors = &node_now()->errors;
    const struct rule *error = errors->count ? find_rule(errors, target->index, key, target->t_s) : NULL;
    if (error)
        return (status_t)error->value;
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (to->fieldId >= readers[i].first && to->fieldId <= readers[i].last)
            return readers[i].read(target, to);
    return NVML_NOT_SUPPORTED;
}

status_t nvmlDeviceGetFieldValues(device_t device, int count, struct field_value *values) {
    ENTER_WHOLE(device, target);
    REQUIRE(values && count > 0);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)node_wall_us(node_now(), target.t_s);
        values[i].latencyUsec = 3; /* A read of a real driver takes 3.5 to 7 us. */
        values[i].value.ullVal = 0xdeadbeefdeadbeefull; /* Nobody may use the value of a failed field. */
        values[i].valueType = 0;
        values[i].nvmlReturn = read_field(&target, &values[i]);
    }
    return NVML_SUCCESS;
}
