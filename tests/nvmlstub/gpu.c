/* Who a GPU is, and what it does. The layouts are those of nvml.h. */
#include "nvmlstub.h"

#include <stdio.h>

struct memory {
    unsigned long long total, free, used; /* bytes */
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used; /* bytes */
};

struct pci {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

/* --- who a GPU is --- */

API int nvmlDeviceGetUUID(struct gpu *gpu, char *out, unsigned size) {
    int result = ask(__func__, gpu, NULL);
    if (result == SUCCESS)
        snprintf(out, size, "%s-00000000-0000-0000-%04d-%012d", gpu->instance ? "MIG" : "GPU",
                 gpu->instance, gpu->index);
    return result;
}

API int nvmlDeviceGetName(struct gpu *gpu, char *out, unsigned size) {
    int result = ask(__func__, gpu, NULL);
    if (result == SUCCESS)
        snprintf(out, size, "NVIDIA Stub 80GB%s", mig_name(gpu));
    return result;
}

API int nvmlDeviceGetSerial(struct gpu *gpu, char *out, unsigned size) {
    int result = ask(__func__, gpu, NULL);
    if (result == SUCCESS)
        snprintf(out, size, "16500%08d", gpu->index);
    return result;
}

API int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci *out) {
    int result = ask(__func__, gpu, NULL);
    if (result == SUCCESS)
        snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", 0x10 + gpu->index);
    return result;
}

/* --- what a GPU does --- */

static const unsigned long long RESERVED = 1ULL << 29;

API int nvmlDeviceGetMemoryInfo_v2(struct gpu *gpu, struct memory_v2 *out) {
    unsigned long long used = gpu ? (gpu->index + 1ULL) << 30 : 0;
    int result = ask(__func__, gpu, &used);
    out->total = memory_of(gpu);
    out->reserved = RESERVED;
    out->used = used;
    out->free = out->total - RESERVED - used;
    return result;
}

API int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *out) {
    unsigned long long used = RESERVED + (gpu ? (gpu->index + 1ULL) << 30 : 0);
    int result = ask(__func__, gpu, &used);
    out->total = memory_of(gpu);
    out->used = used;
    out->free = out->total - used;
    return result;
}

API int nvmlDeviceGetClockInfo(struct gpu *gpu, int clock, unsigned *out) {
    return give(__func__, gpu, out, clock == 1 ? 1755 : 2619); /* MHz: SM, memory */
}

API int nvmlDeviceGetMaxClockInfo(struct gpu *gpu, int clock, unsigned *out) {
    return give(__func__, gpu, out, clock == 1 ? 1980 : 2619);
}

static int event_reasons(const char *function, struct gpu *gpu, unsigned long long *out) {
    *out = is_sick(gpu) ? 0x44 : 0; /* SW power cap, HW thermal slowdown */
    return ask(function, gpu, out);
}

API int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *gpu, unsigned long long *out) {
    return event_reasons(__func__, gpu, out);
}

API int nvmlDeviceGetCurrentClocksThrottleReasons(struct gpu *gpu, unsigned long long *out) {
    return event_reasons(__func__, gpu, out);
}

API int nvmlDeviceGetTemperature(struct gpu *gpu, int sensor, unsigned *out) {
    (void)sensor;
    return give(__func__, gpu, out, is_sick(gpu) ? 88 : 60);
}

API int nvmlDeviceGetPowerUsage(struct gpu *gpu, unsigned *out) {
    return give(__func__, gpu, out, is_sick(gpu) ? 700000 : 650500); /* mW */
}

API int nvmlDeviceGetEnforcedPowerLimit(struct gpu *gpu, unsigned *out) {
    return give(__func__, gpu, out, 700000); /* mW */
}

API int nvmlDeviceGetTotalEnergyConsumption(struct gpu *gpu, unsigned long long *out) {
    *out = 123456789; /* mJ */
    return ask(__func__, gpu, out);
}
