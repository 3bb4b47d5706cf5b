/* A libnvidia-ml.so.1 without a driver, for tests: pynvml loads it and calls it for real.
 *
 * It is set up by the environment; the scenario file is read again at every call, so a test can
 * break and mend a running process:
 *   STUB_GPUS      how many GPUs there are (2)
 *   STUB_PCIE_MS   how long nvmlDeviceGetPcieThroughput blocks (20, as the real one)
 *   STUB_CHATTER   when set, nvmlInit prints on standard output, as libraries sometimes do
 *   STUB_SHUTDOWN_MARK  a file that nvmlShutdown makes, so that a test can see it was called
 *   STUB_SCENARIO  a file of lines "<function|*> <gpu|*> <answer>"; the last one that fits wins.
 *                  The gpu of a call that has none is -1. Answers:
 *                    15          return this nvmlReturn_t
 *                    =1234       succeed with this value, for functions that give one number
 *                    hang        never return
 *                    hang-in-D   never return, in an uninterruptible sleep while it lasts
 *                    crash       die of a segmentation fault
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define MAX_GPUS 16

/* nvmlReturn_t, as far as the stub gives it of its own accord. */
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, GPU_IS_LOST = 15 };

struct gpu {
    int index;
};

/* The layouts below are those of nvml.h. */
struct utilization {
    unsigned gpu, memory; /* percent */
};
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

static struct gpu gpus[MAX_GPUS];
static int initialised;
static unsigned visible_gpus;

static int setting(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

static void hang(void) {
    for (;;)
        pause();
}

/* The parent of a vfork sleeps in state D until its child ends, which this one never does. */
static void hang_in_d(void) {
    if (vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        hang();
    }
}

/* What the scenario has for this call; 0 if there is nothing. */
static int find_answer(const char *function, int gpu, char answer[32]) {
    const char *path = getenv("STUB_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    char its_function[128], its_gpu[16], its_answer[32];
    int found = 0;
    if (!file)
        return 0;
    while (fscanf(file, "%127s %15s %31s", its_function, its_gpu, its_answer) == 3) {
        if (strcmp(its_function, "*") && strcmp(its_function, function))
            continue;
        if (strcmp(its_gpu, "*") && atoi(its_gpu) != gpu)
            continue;
        strcpy(answer, its_answer);
        found = 1;
    }
    fclose(file);
    return found;
}

/* Plays the scenario; puts its value, if it has one, in place of *value. */
static int play(const char *function, int gpu, unsigned long long *value) {
    char answer[32];
    if (!find_answer(function, gpu, answer))
        return SUCCESS;
    if (!strcmp(answer, "hang"))
        hang();
    if (!strcmp(answer, "hang-in-D"))
        hang_in_d();
    if (!strcmp(answer, "crash"))
        raise(SIGSEGV);
    if (answer[0] != '=')
        return atoi(answer);
    if (value)
        *value = strtoull(answer + 1, NULL, 10);
    return SUCCESS;
}

/* The same for a call on a GPU. */
static int ask(const char *function, const struct gpu *gpu, unsigned long long *value) {
    if (!initialised)
        return UNINITIALIZED;
    if (!gpu)
        return INVALID_ARGUMENT;
    return play(function, gpu->index, value);
}

/* Most functions give one unsigned number. */
static int give(const char *function, const struct gpu *gpu, unsigned *out, unsigned normally) {
    unsigned long long value = normally;
    int result = ask(function, gpu, &value);
    if (result == SUCCESS)
        *out = (unsigned)value;
    return result;
}

/* --- the node --- */

API int nvmlInitWithFlags(unsigned flags) {
    unsigned long long count = (unsigned)setting("STUB_GPUS", 2);
    int result = play(__func__, -1, NULL);
    (void)flags;
    if (result != SUCCESS)
        return result;
    if (!initialised) { /* As the real one, it counts when it is opened, and not again. */
        play("nvmlDeviceGetCount_v2", -1, &count);
        visible_gpus = (unsigned)count;
    }
    for (int index = 0; index < MAX_GPUS; index++)
        gpus[index].index = index;
    initialised++;
    if (getenv("STUB_CHATTER")) {
        puts("a word from the driver");
        fflush(stdout);
    }
    return SUCCESS;
}

API int nvmlShutdown(void) {
    const char *mark = getenv("STUB_SHUTDOWN_MARK");
    if (!initialised)
        return UNINITIALIZED;
    initialised--;
    if (mark)
        fclose(fopen(mark, "w"));
    return play(__func__, -1, NULL);
}

API const char *nvmlErrorString(int result) {
    return result == GPU_IS_LOST ? "GPU is lost" : "an error of the stub";
}

API int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    snprintf(out, size, "999.42.01");
    return initialised ? play(__func__, -1, NULL) : UNINITIALIZED;
}

API int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    snprintf(out, size, "13.999.42.01");
    return play(__func__, -1, NULL);
}

API int nvmlDeviceGetCount_v2(unsigned *out) {
    *out = visible_gpus;
    return initialised ? play(__func__, -1, NULL) : UNINITIALIZED;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if (index >= MAX_GPUS)
        return INVALID_ARGUMENT;
    *out = &gpus[index];
    return ask(__func__, &gpus[index], NULL);
}

/* --- who a GPU is --- */

API int nvmlDeviceGetUUID(struct gpu *gpu, char *out, unsigned size) {
    int result = ask(__func__, gpu, NULL);
    if (result == SUCCESS)
        snprintf(out, size, "GPU-00000000-0000-0000-0000-%012d", gpu->index);
    return result;
}

API int nvmlDeviceGetName(struct gpu *gpu, char *out, unsigned size) {
    int result = ask(__func__, gpu, NULL);
    if (result == SUCCESS)
        snprintf(out, size, "NVIDIA Stub 80GB");
    return result;
}

API int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci *out) {
    int result = ask(__func__, gpu, NULL);
    if (result == SUCCESS)
        snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", 0x10 + gpu->index);
    return result;
}

/* --- what a GPU does --- */

API int nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct utilization *out) {
    out->memory = 40;
    return give(__func__, gpu, &out->gpu, gpu ? 90 + gpu->index % 8 : 0);
}

static const unsigned long long TOTAL = 80ULL << 30, RESERVED = 1ULL << 29;

API int nvmlDeviceGetMemoryInfo_v2(struct gpu *gpu, struct memory_v2 *out) {
    unsigned long long used = gpu ? (gpu->index + 1ULL) << 30 : 0;
    int result = ask(__func__, gpu, &used);
    out->total = TOTAL;
    out->reserved = RESERVED;
    out->used = used;
    out->free = TOTAL - RESERVED - used;
    return result;
}

API int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *out) {
    unsigned long long used = RESERVED + (gpu ? (gpu->index + 1ULL) << 30 : 0);
    int result = ask(__func__, gpu, &used);
    out->total = TOTAL;
    out->used = used;
    out->free = TOTAL - used;
    return result;
}

API int nvmlDeviceGetClockInfo(struct gpu *gpu, int clock, unsigned *out) {
    return give(__func__, gpu, out, clock == 1 ? 1755 : 2619); /* MHz: SM, memory */
}

API int nvmlDeviceGetMaxClockInfo(struct gpu *gpu, int clock, unsigned *out) {
    return give(__func__, gpu, out, clock == 1 ? 1980 : 2619);
}

/* GPU 1 is the sick one: hot, held at its power limit, and on a PCIe link of generation 3. */
static int is_sick(const struct gpu *gpu) {
    return gpu && gpu->index == 1;
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

/* Field 82, the memory's temperature, is the only one here; a scenario calls it "field_82". */
API int nvmlDeviceGetFieldValues(struct gpu *gpu, int count, struct field_value *out) {
    int result = ask(__func__, gpu, NULL);
    for (int i = 0; i < count; i++) {
        out[i].value_type = 1; /* unsigned int */
        out[i].result = out[i].field == 82 ? play("field_82", gpu->index, NULL) : NOT_SUPPORTED;
        out[i].value.as_unsigned = is_sick(gpu) ? 95 : 70;
    }
    return result;
}

/* --- its PCIe link --- */

API int nvmlDeviceGetPcieThroughput(struct gpu *gpu, int direction, unsigned *out) {
    int milliseconds = setting("STUB_PCIE_MS", 20);
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&time, NULL);
    return give(__func__, gpu, out, direction == 0 ? 1000 : 2000); /* KB/s: transmit, receive */
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
