/* Step functions of time, evaluated in closed form so that every process computes the same node. */
#ifndef FAKES_WAVE_H
#define FAKES_WAVE_H

/* Steps (start time, value), the first at 0; repeated each period_s where that is above 0, else the last one holds.
   Before 0 the first value held for ever. */
struct wave {
    int count;
    double period_s;
    double *start_s;
    double *value;
    double *integral; /* From 0 to the start of each step, and to the end of the period. */
};

/* A wave behind a first-order low pass that starts in balance with the first value. */
struct response {
    const struct wave *wave;
    double tau_s;
    double *at_start; /* Answer at the start of each step, and at the end of the period, to a zero state at 0. */
};

void wave_set(struct wave *wave, int count, double period_s, const double *start_s, const double *value);
void wave_free(struct wave *wave);
double wave_value(const struct wave *wave, double t_s);
double wave_integral(const struct wave *wave, double t_s);
void response_set(struct response *response, const struct wave *wave, double tau_s);
double response_value(const struct response *response, double t_s);

#endif
