/* Field values: readings by number, each with a result of its own. */
#include "nvmlstub.h"

#include <limits.h>
#include <stdio.h>

/* As in nvml.h. */
struct field_value {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned value_type;
    int result;
    union {
        double as_double;
        unsigned as_unsigned;
        unsigned long long as_unsigned_long_long;
    } value;
};

/* nvmlValueType_t */
enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };

/* Every field that this driver knows: its type, and its value on a healthy and on the sick GPU.
 * One with a rate grows by it each second, with a negative one on the sick GPU alone.
 * A scenario calls field 82 "field_82". */
static const struct known {
    unsigned field, value_type;
    double healthy, sick, rate;
} known[] = {
    {74, UNSIGNED_LONG_LONG, 0, 0, -1e9}, /* SW power cap, nanoseconds */
    {76, UNSIGNED_LONG_LONG, 0, 0, 0}, /* sync boost */
    {82, UNSIGNED_INT, 70, 95, 0}, /* the memory's temperature, degrees Celsius */
    {138, UNSIGNED_LONG_LONG, 1 << 20, 1 << 20, 0}, /* NVLink: sent over all links, KiB */
    {139, UNSIGNED_LONG_LONG, 2 << 20, 2 << 20, 0}, /* received */
    {161, UNSIGNED_LONG_LONG, 0, 7, 0},             /* replays of a link */
    {162, UNSIGNED_LONG_LONG, 0, 1, 0},             /* recoveries */
    {163, UNSIGNED_LONG_LONG, 0, 42, 0},            /* CRC errors */
    {164, UNSIGNED_INT, 26562, 13281, 0},           /* its speed, MB a second */
    {197, UNSIGNED_LONG_LONG, 5e9, 5e9, 1e6},       /* PCIe: bytes from the GPU */
    {198, UNSIGNED_LONG_LONG, 5e9, 5e9, 2e6},       /* bytes to the GPU */
    {230, UNSIGNED_INT, 0, 1, 0}, /* the recovery action: reset the GPU */
    {251, UNSIGNED_INT, 1, 1, 0}, /* power smoothing is on: no time, as drivers since 13.1 have it */
    {252, UNSIGNED_INT, 0, 0, 0}, /* another setting of it; a time in 12.9 and 13.0 */
    {269, UNSIGNED_LONG_LONG, 0, 0, 0}, /* SW thermal slowdown, nanoseconds */
    {270, UNSIGNED_LONG_LONG, 0, 0, -1e9}, /* HW thermal slowdown */
    {271, UNSIGNED_LONG_LONG, 0, 0, 0}, /* HW power brake */
};

static void fill(struct gpu *gpu, const struct known *known, struct field_value *out) {
    char name[32];
    double normally = is_sick(gpu) ? known->sick : known->healthy;
    double rate = known->rate >= 0 ? known->rate : is_sick(gpu) ? -known->rate : 0;
    unsigned long long value = (unsigned long long)(normally + rate * seconds_running());
    snprintf(name, sizeof name, "field_%u", known->field);
    out->result = nvlink_field(gpu, known->field, out->scope, &value);
    if (out->result == SUCCESS)
        out->result = play(name, gpu->index, &value);
    if (setting("STUB_SAMPLED_PCIE", 0) && (known->field == 197 || known->field == 198))
        out->result = NOT_SUPPORTED;
    out->value_type = value > UINT_MAX ? UNSIGNED_LONG_LONG : known->value_type;
    if (out->value_type == UNSIGNED_LONG_LONG)
        out->value.as_unsigned_long_long = value;
    else
        out->value.as_unsigned = (unsigned)value;
}

API int nvmlDeviceGetFieldValues(struct gpu *gpu, int count, struct field_value *out) {
    int result = ask(__func__, gpu, NULL);
    for (int i = 0; result == SUCCESS && i < count; i++) {
        out[i].result = NOT_SUPPORTED;
        for (unsigned k = 0; k < sizeof known / sizeof *known; k++)
            if (known[k].field == out[i].field)
                fill(gpu, &known[k], &out[i]);
    }
    return result;
}
