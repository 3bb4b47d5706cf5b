/* How well a GPU is: its temperature's margin, its memory's errors, and the rows it replaced. */
#include "nvmlstub.h"

struct margin_temperature {
    unsigned version;
    int celsius;
};

/* NVML_STRUCT_VERSION: the struct's size, and the version in the highest byte. */
static const unsigned MARGIN_TEMPERATURE_V1 = sizeof(struct margin_temperature) | 1U << 24;

enum { SLOWDOWN_THRESHOLD = 1, UNCORRECTED = 1 };

API int nvmlDeviceGetMarginTemperature(struct gpu *gpu, struct margin_temperature *out) {
    unsigned celsius;
    int result = give(__func__, gpu, &celsius, is_sick(gpu) ? (unsigned)-1 : 27);
    if (result == SUCCESS && out->version != MARGIN_TEMPERATURE_V1)
        return ARGUMENT_VERSION_MISMATCH;
    if (result == SUCCESS)
        out->celsius = (int)celsius;
    return result;
}

API int nvmlDeviceGetTemperatureThreshold(struct gpu *gpu, int threshold, unsigned *out) {
    return give(__func__, gpu, out, threshold == SLOWDOWN_THRESHOLD ? 87 : 92);
}

/* The sick GPU had two errors too many, and one of their rows waits for a reset. */
API int nvmlDeviceGetTotalEccErrors(struct gpu *gpu, int type, int counter,
                                    unsigned long long *out) {
    (void)counter;
    *out = !is_sick(gpu) ? 0 : type == UNCORRECTED ? 2 : 37;
    return ask(__func__, gpu, out);
}

API int nvmlDeviceGetRemappedRows(struct gpu *gpu, unsigned *corrected, unsigned *uncorrected,
                                  unsigned *is_pending, unsigned *failure_occurred) {
    *corrected = is_sick(gpu) ? 3 : 0;
    *is_pending = is_sick(gpu) ? 1 : 0;
    *failure_occurred = 0;
    return give(__func__, gpu, uncorrected, is_sick(gpu) ? 1 : 0);
}
