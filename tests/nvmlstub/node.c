/* The library itself: its settings, the scenario it plays, and the calls on the node. */
#include "nvmlstub.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

struct gpu gpus[MAX_GPUS];
static int initialised;
unsigned visible_gpus;

int setting(const char *name, int otherwise) {
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

int play(const char *function, int gpu, unsigned long long *value) {
    char answer[32];
    if (!find_answer(function, gpu, answer))
        return SUCCESS;
    if (!strcmp(answer, "hang"))
        hang();
    if (!strcmp(answer, "hang-in-D"))
        hang_in_d();
    if (!strcmp(answer, "crash"))
        raise(SIGSEGV);
    if (answer[0] != '=' && answer[0] != '+')
        return atoi(answer);
    if (value && answer[0] == '=')
        *value = strtoull(answer + 1, NULL, 10);
    if (value && answer[0] == '+')
        *value = (unsigned long long)(strtod(answer + 1, NULL) * seconds_running());
    return SUCCESS;
}

int ask(const char *function, const struct gpu *gpu, unsigned long long *value) {
    if (!initialised)
        return UNINITIALIZED;
    if (!gpu)
        return INVALID_ARGUMENT;
    if (mig_refuses(function, gpu))
        return NOT_SUPPORTED;
    return play(function, gpu->index, value);
}

int give(const char *function, const struct gpu *gpu, unsigned *out, unsigned normally) {
    unsigned long long value = normally;
    int result = ask(function, gpu, &value);
    if (result == SUCCESS)
        *out = (unsigned)value;
    return result;
}

int is_sick(const struct gpu *gpu) {
    return gpu && gpu->index == 1;
}

double seconds_running(void) {
    static struct timespec started;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!started.tv_sec)
        started = now;
    return now.tv_sec - started.tv_sec + (now.tv_nsec - started.tv_nsec) / 1e9;
}

/* --- the node --- */

static FILE *device; /* What STUB_DEVICE names, open while NVML is. */

API int nvmlInitWithFlags(unsigned flags) {
    unsigned long long count = (unsigned)setting("STUB_GPUS", 2);
    int result = play(__func__, -1, NULL);
    (void)flags;
    if (result != SUCCESS)
        return result;
    if (!initialised) { /* As the real one, it counts when it is opened, and not again. */
        play("nvmlDeviceGetCount_v2", -1, &count);
        visible_gpus = (unsigned)count;
        device = getenv("STUB_DEVICE") ? fopen(getenv("STUB_DEVICE"), "r") : NULL;
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
    if (device && !initialised)
        fclose(device);
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
