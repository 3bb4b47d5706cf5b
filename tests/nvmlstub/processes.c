/* Who uses a GPU. STUB_PROCESSES names a file of lines "<gpu> <pid> <used bytes> [<instance>]", read
 * at every call; without it nobody does. Used bytes of -1: not available. */
#include "nvmlstub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROCESSES = 64 };

/* nvmlProcessInfo_v2_t, which the functions of version 3 fill */
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

static unsigned load(const struct gpu *gpu, struct process out[PROCESSES]) {
    const char *path = getenv("STUB_PROCESSES");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[128];
    unsigned count = 0;
    while (file && count < PROCESSES && fgets(line, sizeof line, file)) {
        struct process *process = &out[count];
        int index, instance = -1;
        long long used;
        if (sscanf(line, "%d %u %lld %d", &index, &process->pid, &used, &instance) < 3)
            continue;
        process->used = (unsigned long long)used;
        process->gpu_instance = process->compute_instance = (unsigned)instance;
        count += index == gpu->index;
    }
    if (file)
        fclose(file);
    return count;
}

/* As the real one: the number that there are, and the processes only where there is room for all. */
static int list(unsigned *count, struct process *out, const struct process *all, unsigned total) {
    unsigned room = *count;
    *count = total;
    if (room < total)
        return INSUFFICIENT_SIZE;
    if (total)
        memcpy(out, all, total * sizeof *all);
    return SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, unsigned *count, void *out) {
    struct process all[PROCESSES];
    int result = ask(__func__, gpu, NULL);
    return result == SUCCESS ? list(count, out, all, load(gpu, all)) : result;
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(struct gpu *gpu, unsigned *count, void *out) {
    int result = ask(__func__, gpu, NULL);
    return result == SUCCESS ? list(count, out, NULL, 0) : result;
}
