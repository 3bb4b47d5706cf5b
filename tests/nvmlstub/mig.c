/* MIG: off on every GPU. With "nvmlDeviceGetMigMode 0 =1" in the scenario GPU 0 has two devices, and
 * no longer answers what is not supported then. */
#include "nvmlstub.h"

#include <string.h>

enum { DEVICES = 2, MOST_DEVICES = 7 };

static const struct profile {
    const char *name;
    unsigned gpu_instance, memory_gigabytes;
} profiles[] = {{"", 0, 80}, {" MIG 1g.10gb", 9, 10}, {" MIG 3g.40gb", 2, 40}};

static struct gpu devices[MAX_GPUS][DEVICES + 1];

static int is_on(const struct gpu *gpu) {
    unsigned long long mode = 0;
    return play("nvmlDeviceGetMigMode", gpu->index, &mode) == SUCCESS && mode;
}

static const struct profile *profile_of(const struct gpu *gpu) {
    return &profiles[gpu ? gpu->instance : 0];
}

const char *mig_name(const struct gpu *gpu) {
    return profile_of(gpu)->name;
}

unsigned long long memory_of(const struct gpu *gpu) {
    return (unsigned long long)profile_of(gpu)->memory_gigabytes << 30;
}

int mig_refuses(const char *function, const struct gpu *gpu) {
    static const char *const refused[] = {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetSamples",
                                          "nvmlDeviceGetProcessUtilization", "nvmlGpmSampleGet"};
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!strcmp(function, refused[i]))
            return is_on(gpu);
    return 0;
}

API int nvmlDeviceGetMigMode(struct gpu *gpu, unsigned *current, unsigned *pending) {
    int result = give(__func__, gpu, current, 0);
    *pending = *current;
    return result;
}

API int nvmlDeviceGetMaxMigDeviceCount(struct gpu *gpu, unsigned *out) {
    return give(__func__, gpu, out, MOST_DEVICES);
}

/* As on a real one the places are not filled in order: the second is empty. */
API int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *gpu, unsigned index, struct gpu **out) {
    int result = ask(__func__, gpu, NULL), instance = index == 0 ? 1 : index == 2 ? 2 : 0;
    if (result != SUCCESS)
        return result;
    if (!instance || !is_on(gpu))
        return NOT_FOUND;
    *out = &devices[gpu->index][instance];
    **out = (struct gpu){gpu->index, instance};
    return SUCCESS;
}

API int nvmlDeviceGetGpuInstanceId(struct gpu *gpu, unsigned *out) {
    return give(__func__, gpu, out, profile_of(gpu)->gpu_instance);
}

API int nvmlDeviceGetComputeInstanceId(struct gpu *gpu, unsigned *out) {
    return give(__func__, gpu, out, 0);
}
