/* Values, integrals and low-pass responses of step functions. */
#include "wave.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *copy(const double *from, int count) {
    double *to = calloc((size_t)count + 1, sizeof *to);
    memcpy(to, from, (size_t)count * sizeof *to);
    return to;
}

void wave_set(struct wave *wave, int count, double period_s, const double *start_s, const double *value) {
    wave->count = count;
    wave->period_s = period_s;
    wave->start_s = copy(start_s, count);
    wave->start_s[count] = period_s;
    wave->value = copy(value, count);
    wave->integral = calloc((size_t)count + 1, sizeof *wave->integral);
    for (int i = 0; i < count; i++)
        wave->integral[i + 1] = wave->integral[i] + value[i] * (wave->start_s[i + 1] - start_s[i]);
}

void wave_free(struct wave *wave) {
    free(wave->start_s);
    free(wave->value);
    free(wave->integral);
}

/* Return the number of whole periods until a time of at least 0, and reduce the time to the rest. */
static double whole_periods(const struct wave *wave, double *t_s) {
    if (wave->period_s <= 0)
        return 0;
    double periods = floor(*t_s / wave->period_s);
    *t_s = fmax(0, *t_s - periods * wave->period_s);
    return periods;
}

static int step_at(const struct wave *wave, double t_s) {
    int low = 0, high = wave->count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (wave->start_s[middle] <= t_s)
            low = middle;
        else
            high = middle;
    }
    return low;
}

double wave_value(const struct wave *wave, double t_s) {
    if (wave->count == 0)
        return 0;
    if (t_s < 0)
        return wave->value[0];
    whole_periods(wave, &t_s);
    return wave->value[step_at(wave, t_s)];
}

double wave_integral(const struct wave *wave, double t_s) {
    if (wave->count == 0)
        return 0;
    if (t_s < 0)
        return wave->value[0] * t_s;
    double periods = whole_periods(wave, &t_s);
    int i = step_at(wave, t_s);
    return periods * wave->integral[wave->count] + wave->integral[i] + wave->value[i] * (t_s - wave->start_s[i]);
}

void response_set(struct response *response, const struct wave *wave, double tau_s) {
    response->wave = wave;
    response->tau_s = tau_s;
    response->at_start = calloc((size_t)wave->count + 1, sizeof *response->at_start);
    for (int i = 0; i < wave->count; i++) {
        double decay = exp(-(wave->start_s[i + 1] - wave->start_s[i]) / tau_s);
        response->at_start[i + 1] = response->at_start[i] * decay + wave->value[i] * (1 - decay);
    }
}

double response_value(const struct response *response, double t_s) {
    const struct wave *wave = response->wave;
    if (wave->count == 0)
        return 0;
    double state = wave->value[0];
    if (t_s <= 0)
        return state;
    double periods = whole_periods(wave, &t_s);
    if (periods > 0) {
        double decay = exp(-wave->period_s / response->tau_s), left = pow(decay, periods);
        state = state * left + response->at_start[wave->count] * (1 - left) / (1 - decay);
    }
    int i = step_at(wave, t_s);
    double decay = exp(-(t_s - wave->start_s[i]) / response->tau_s);
    double at_start = state * exp(-wave->start_s[i] / response->tau_s) + response->at_start[i];
    return at_start * decay + wave->value[i] * (1 - decay);
}
