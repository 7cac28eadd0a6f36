/* Step functions of time, evaluated in closed form so that all processes compute the same values. */
#ifndef FAKES_WAVE_H
#define FAKES_WAVE_H

/* Steps with start and value; the first starts at 0. They repeat every period_s; if that is 0, the last value holds.
   Before 0 the first value holds. */
struct wave {
    int count;
    double period_s;
    double *start_s;
    double *value;
    double *integral; /* From 0 to the start of each step, and to the end of the period. */
};

/* A wave behind a first-order low pass, which is in equilibrium with the first value at 0. */
struct response {
    const struct wave *wave;
    double tau_s;
    double *at_start; /* Response from state 0 at time 0: at the start of each step, and at the end of the period. */
};

void wave_set(struct wave *wave, int count, double period_s, const double *start_s, const double *value);
void wave_free(struct wave *wave);
double wave_value(const struct wave *wave, double t_s);
double wave_integral(const struct wave *wave, double t_s);
void response_set(struct response *response, const struct wave *wave, double tau_s);
double response_value(const struct response *response, double t_s);

#endif
