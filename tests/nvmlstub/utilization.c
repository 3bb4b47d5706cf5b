/* How busy a GPU is: as one reading, and as the samples that the driver took. */
#include "nvmlstub.h"

#include <time.h>

struct utilization {
    unsigned gpu, memory; /* percent */
};

struct sample {
    unsigned long long timestamp_us;
    union {
        double as_double;
        unsigned as_unsigned;
    } value;
};

enum { GPU_UTILIZATION_SAMPLES = 1, VALUE_TYPE_UNSIGNED_INT = 1 };

/* As on a GeForce: 71 samples, one each 0.2 s. */
static const unsigned long long KEPT = 71, EVERY_US = 200000;

static unsigned percent(const struct gpu *gpu) {
    return gpu ? 90 + (unsigned)gpu->index % 8 : 0;
}

API int nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct utilization *out) {
    out->memory = 40;
    return give(__func__, gpu, &out->gpu, percent(gpu));
}

/* Percent, and over how many microseconds: of videos, of images. */
API int nvmlDeviceGetDecoderUtilization(struct gpu *gpu, unsigned *out, unsigned *period_us) {
    *period_us = 167000;
    return give(__func__, gpu, out, is_sick(gpu) ? 12 : 0);
}

API int nvmlDeviceGetJpgUtilization(struct gpu *gpu, unsigned *out, unsigned *period_us) {
    *period_us = 167000;
    return give(__func__, gpu, out, is_sick(gpu) ? 96 : 0);
}

/* Without *out* it only counts, with it it fills in no more than *count* samples. */
API int nvmlDeviceGetSamples(struct gpu *gpu, int type, unsigned long long since_us,
                             unsigned *value_type, unsigned *count, struct sample *out) {
    struct timespec now;
    unsigned value;
    int result = give(__func__, gpu, &value, percent(gpu));
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long newest = (now.tv_sec * 1000000ULL + now.tv_nsec / 1000) / EVERY_US;
    unsigned long long seen = since_us / EVERY_US;
    unsigned long long fresh = newest - seen < KEPT ? newest - seen : KEPT;
    if (result != SUCCESS)
        return result;
    if (type != GPU_UTILIZATION_SAMPLES || (out && *count == 0))
        return INVALID_ARGUMENT;
    if (fresh == 0)
        return NOT_FOUND;
    *value_type = VALUE_TYPE_UNSIGNED_INT;
    *count = out && *count < fresh ? *count : (unsigned)fresh;
    for (unsigned i = 0; out && i < *count; i++) {
        out[i].timestamp_us = (newest - fresh + 1 + i) * EVERY_US;
        out[i].value.as_unsigned = value;
    }
    return SUCCESS;
}
