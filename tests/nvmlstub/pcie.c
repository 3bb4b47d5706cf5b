/* A GPU's PCIe link. */
#include "nvmlstub.h"

#include <time.h>

API int nvmlDeviceGetPcieThroughput(struct gpu *gpu, int direction, unsigned *out) {
    int milliseconds = setting("STUB_PCIE_MS", 20);
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&time, NULL);
    return give(__func__, gpu, out, direction == 0 ? 1000 : 2000); /* KB/s: transmit, receive */
}

/* 0 to 15; from 3 on it saves power. */
API int nvmlDeviceGetPerformanceState(struct gpu *gpu, unsigned *out) {
    return give(__func__, gpu, out, is_sick(gpu) ? 2 : 0);
}

API int nvmlDeviceGetCurrPcieLinkGeneration(struct gpu *gpu, unsigned *out) {
    return give(__func__, gpu, out, is_sick(gpu) ? 3 : 5);
}

API int nvmlDeviceGetMaxPcieLinkGeneration(struct gpu *gpu, unsigned *out) {
    return give(__func__, gpu, out, 5);
}

API int nvmlDeviceGetCurrPcieLinkWidth(struct gpu *gpu, unsigned *out) {
    return give(__func__, gpu, out, 16);
}

API int nvmlDeviceGetMaxPcieLinkWidth(struct gpu *gpu, unsigned *out) {
    return give(__func__, gpu, out, 16);
}

API int nvmlDeviceGetPcieReplayCounter(struct gpu *gpu, unsigned *out) {
    return give(__func__, gpu, out, is_sick(gpu) ? 7 : 0);
}
