/* XID errors as events. STUB_EVENTS names a file of lines "<gpu> <xid>" that a test adds to: each is
 * an event of the sets that the GPU is registered in by then. A set is of one GPU here. */
#include "nvmlstub.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { XID_CRITICAL_ERROR = 8 };

struct event_set {
    struct gpu *gpu;
    int seen; /* lines of the file */
};

/* As in nvml.h. */
struct event {
    struct gpu *gpu;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

/* Reads on after the lines that the set has seen; the XID of its next event, or -1. */
static int next_xid(struct event_set *set) {
    const char *path = getenv("STUB_EVENTS");
    FILE *file = path ? fopen(path, "r") : NULL;
    int line = 0, gpu, xid, found = -1;
    while (file && found < 0 && fscanf(file, "%d %d", &gpu, &xid) == 2)
        if (++line > set->seen) {
            set->seen = line;
            if (gpu == set->gpu->index)
                found = xid;
        }
    if (file)
        fclose(file);
    return found;
}

API int nvmlDeviceGetSupportedEventTypes(struct gpu *gpu, unsigned long long *out) {
    *out = 0x9F; /* as an H100 has, XID among them */
    return ask(__func__, gpu, out);
}

API int nvmlEventSetCreate(struct event_set **out) {
    *out = calloc(1, sizeof **out);
    return play(__func__, -1, NULL);
}

API int nvmlDeviceRegisterEvents(struct gpu *gpu, unsigned long long types, struct event_set *set) {
    int result = ask(__func__, gpu, NULL);
    if (result != SUCCESS || types != XID_CRITICAL_ERROR)
        return result != SUCCESS ? result : NOT_SUPPORTED;
    set->gpu = gpu;
    while (next_xid(set) >= 0)
        ; /* What was before is never told. */
    return SUCCESS;
}

API int nvmlEventSetWait_v2(struct event_set *set, struct event *out, unsigned milliseconds) {
    int result = ask(__func__, set->gpu, NULL), xid;
    if (result != SUCCESS)
        return result;
    xid = next_xid(set);
    if (xid < 0) {
        usleep(milliseconds * 1000);
        return TIMEOUT;
    }
    *out = (struct event){set->gpu, XID_CRITICAL_ERROR, (unsigned)xid, ~0U, ~0U};
    return SUCCESS;
}

API int nvmlEventSetFree(struct event_set *set) {
    free(set);
    return play(__func__, -1, NULL);
}
