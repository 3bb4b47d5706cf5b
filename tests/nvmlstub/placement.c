/* Where a GPU sits: four to a socket of 32 CPUs, each socket a NUMA node. */
#include "nvmlstub.h"

#include <string.h>

enum { GPUS_PER_SOCKET = 4, NODE = 40, SYSTEM = 50 };

static unsigned socket_of(const struct gpu *gpu) {
    return gpu ? (unsigned)(gpu->index / GPUS_PER_SOCKET) : 0;
}

API int nvmlDeviceGetMinorNumber(struct gpu *gpu, unsigned *out) {
    return give(__func__, gpu, out, gpu ? (unsigned)gpu->index : 0);
}

API int nvmlDeviceGetCpuAffinity(struct gpu *gpu, unsigned words, unsigned long *out) {
    memset(out, 0, words * sizeof *out);
    if (socket_of(gpu) / 2 < words)
        out[socket_of(gpu) / 2] = 0xFFFFFFFFUL << socket_of(gpu) % 2 * 32;
    return ask(__func__, gpu, NULL);
}

API int nvmlDeviceGetMemoryAffinity(struct gpu *gpu, unsigned words, unsigned long *out, int scope) {
    (void)scope;
    memset(out, 0, words * sizeof *out);
    out[0] = 1UL << socket_of(gpu);
    return ask(__func__, gpu, NULL);
}

API int nvmlDeviceGetTopologyCommonAncestor(struct gpu *one, struct gpu *other, int *out) {
    unsigned level = socket_of(one) == socket_of(other) ? NODE : SYSTEM;
    return give(__func__, one, (unsigned *)out, level);
}
