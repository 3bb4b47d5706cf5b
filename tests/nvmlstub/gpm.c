/* GPM: what the units of a GPU did between two samples. The layouts are those of nvml.h.
 * A scenario calls the metric 20 "gpm_20". */
#include "nvmlstub.h"

#include <stdio.h>
#include <stdlib.h>

#define REFRESH_SECONDS 0.1
#define MAX_METRICS 477

struct gpm_support {
    unsigned version, is_supported;
};

struct gpm_sample {
    int gpu;
    double taken_at; /* of seconds_running(); 0 as long as nothing was written into it */
};

struct gpm_metric {
    unsigned metric;
    int result;
    double value;
    char *short_name, *long_name, *unit;
};

struct gpm_metrics_get {
    unsigned version, count;
    struct gpm_sample *earlier, *later;
    struct gpm_metric metrics[MAX_METRICS];
};

_Static_assert(sizeof(struct gpm_metrics_get) == 19104, "as nvmlGpmMetricsGet_t of pynvml");

/* What every GPU does all the time; the sick one, held at its power limit, does less. */
static const struct known {
    unsigned metric;
    unsigned healthy, sick;
} known[] = {
    {2, 80, 60},      /* SM activity, percent */
    {3, 50, 40},      /* SM occupancy */
    {5, 45, 30},      /* any tensor unit */
    {10, 35, 25},     /* the memory's bandwidth */
    {20, 512, 512},   /* PCIe from the GPU, MiB a second */
    {21, 1024, 1024}, /* PCIe to the GPU */
};

API int nvmlGpmQueryDeviceSupport(struct gpu *gpu, struct gpm_support *out) {
    unsigned long long supported = 1;
    int result = ask(__func__, gpu, &supported);
    if (result == SUCCESS && out->version != 1)
        return ARGUMENT_VERSION_MISMATCH;
    out->is_supported = (unsigned)supported;
    return result;
}

API int nvmlGpmSampleAlloc(struct gpm_sample **out) {
    *out = calloc(1, sizeof **out);
    return play(__func__, -1, NULL);
}

API int nvmlGpmSampleFree(struct gpm_sample *sample) {
    free(sample);
    return play(__func__, -1, NULL);
}

API int nvmlGpmSampleGet(struct gpu *gpu, struct gpm_sample *sample) {
    int result = ask(__func__, gpu, NULL);
    if (result == SUCCESS)
        *sample = (struct gpm_sample){gpu->index, seconds_running() + 1};
    return result;
}

API int nvmlGpmMigSampleGet(struct gpu *gpu, unsigned instance, struct gpm_sample *sample) {
    int result = ask(__func__, gpu, NULL);
    (void)instance; /* All are as busy as the GPU. */
    if (result == SUCCESS)
        *sample = (struct gpm_sample){gpu->index, seconds_running() + 1};
    return result;
}

static void tell(int gpu, const struct known *known, struct gpm_metric *out) {
    char name[32];
    unsigned long long value = gpu == 1 ? known->sick : known->healthy;
    snprintf(name, sizeof name, "gpm_%u", known->metric);
    out->result = play(name, gpu, &value);
    if (setting("STUB_SAMPLED_PCIE", 0) && (known->metric == 20 || known->metric == 21))
        out->result = NOT_SUPPORTED;
    out->value = (double)value;
}

API int nvmlGpmMetricsGet(struct gpm_metrics_get *get) {
    const struct gpm_sample *earlier = get->earlier, *later = get->later;
    int result = play(__func__, later->gpu, NULL);
    if (result != SUCCESS)
        return result;
    if (get->version != 1)
        return ARGUMENT_VERSION_MISMATCH;
    if (!earlier->taken_at || earlier->gpu != later->gpu)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < get->count; i++) {
        get->metrics[i].result = NOT_SUPPORTED;
        for (unsigned k = 0; k < sizeof known / sizeof *known; k++)
            if (known[k].metric == get->metrics[i].metric)
                tell(later->gpu, &known[k], &get->metrics[i]);
        if (later->taken_at - earlier->taken_at < REFRESH_SECONDS)
            get->metrics[i].result = UNKNOWN; /* The counters were not refreshed in between. */
    }
    return SUCCESS;
}
