/* The NVLinks of a GPU: 18, as an H100 has. The sick one has one at half speed and one down. */
#include "nvmlstub.h"

#include <stdio.h>

enum { LINKS = 18, SLOW_LINK = 3, DOWN_LINK = 5 };

/* Field values of a link, or of all of them; nvml.h has their numbers. */
enum { DATA_TX = 138, DATA_RX, REPLAY = 161, RECOVERY, CRC, SPEED };
#define ALL_LINKS 0xFFFFFFFFu

API int nvmlDeviceGetNvLinkState(struct gpu *gpu, unsigned link, unsigned *out) {
    int result = give(__func__, gpu, out, !(is_sick(gpu) && link == DOWN_LINK));
    return result == SUCCESS && link >= LINKS ? INVALID_ARGUMENT : result;
}

/* NVML_GPU_FABRIC_STATE_COMPLETED, with success. */
enum { COMPLETED = 3 };

struct fabric {
    unsigned version;
    unsigned char cluster_uuid[16];
    unsigned status, clique_id, state, health;
};

API int nvmlDeviceGetGpuFabricInfoV(struct gpu *gpu, struct fabric *out) {
    out->status = SUCCESS;
    return give(__func__, gpu, &out->state, COMPLETED);
}

/* Counts what the fields do, for drivers that do not have those: replay, recovery, CRC of the
 * flow control, CRC of the data. */
API int nvmlDeviceGetNvLinkErrorCounter(
    struct gpu *gpu, unsigned link, unsigned counter, unsigned long long *out
) {
    static const unsigned long long errors[] = {7, 1, 40, 2, 0};
    if (link >= LINKS || counter >= sizeof errors / sizeof *errors)
        return INVALID_ARGUMENT;
    *out = is_sick(gpu) && link == SLOW_LINK ? errors[counter] : 0;
    return ask(__func__, gpu, out);
}

int nvlink_field(
    const struct gpu *gpu, unsigned field, unsigned link, unsigned long long *value
) {
    if (field == DATA_TX || field == DATA_RX)
        return link == ALL_LINKS ? SUCCESS : NOT_SUPPORTED;
    if (field < REPLAY || field > SPEED)
        return SUCCESS; /* Not a field of links. */
    if (link >= LINKS || (is_sick(gpu) && link == DOWN_LINK))
        return NOT_SUPPORTED;
    if (link != SLOW_LINK && field != SPEED)
        *value = 0; /* All errors are on that link. */
    if (link != SLOW_LINK && field == SPEED)
        *value = 26562;
    return SUCCESS;
}
