/* A libnvidia-ml.so.1 without a driver, for tests: pynvml loads it and calls it for real.
 *
 * One C file a subject; all are compiled together. It is set up by the environment; the scenario
 * file is read again at every call, so a test can break and mend a running process:
 *   STUB_GPUS      how many GPUs there are (2)
 *   STUB_PCIE_MS   how long nvmlDeviceGetPcieThroughput blocks (20, as the real one)
 *   STUB_SAMPLED_PCIE  when 1, what goes over PCIe is known from that call alone
 *   STUB_CHATTER   when set, nvmlInit prints on standard output, as libraries sometimes do
 *   STUB_SHUTDOWN_MARK  a file that nvmlShutdown makes, so that a test can see it was called
 *   STUB_DEVICE    a file that is open while NVML is, as /dev/nvidia0 would be
 *   STUB_SCENARIO  a file of lines "<function|*> <gpu|*> <answer>"; the last one that fits wins.
 *                  The gpu of a call that has none is -1. Answers:
 *                    15          return this nvmlReturn_t
 *                    =1234       succeed with this value, for functions that give one number
 *                    +1234       succeed with a value that grows by this each second
 *                    hang        never return
 *                    hang-in-D   never return, in an uninterruptible sleep while it lasts
 *                    crash       die of a segmentation fault
 */
#ifndef NVMLSTUB_H
#define NVMLSTUB_H

#define API __attribute__((visibility("default")))
#define MAX_GPUS 16

/* nvmlReturn_t, as far as the stub gives it of its own accord. */
enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999
};

struct gpu {
    int index;
    int instance; /* 0: the whole GPU; else this MIG device of it, see mig.c */
};

extern struct gpu gpus[MAX_GPUS];
extern unsigned visible_gpus;

/* An integer from the environment. */
int setting(const char *name, int otherwise);

/* Plays the scenario for a call; puts its value, if it has one, in place of *value. */
int play(const char *function, int gpu, unsigned long long *value);

/* The same for a call on a GPU, which may be invalid or not initialised. */
int ask(const char *function, const struct gpu *gpu, unsigned long long *value);

/* The same for the many functions that give one unsigned number. */
int give(const char *function, const struct gpu *gpu, unsigned *out, unsigned normally);

/* GPU 1 is the sick one: hot, held at its power limit, on a PCIe link of generation 3, with one of
 * its NVLinks at half speed and one down, and with a row of its memory that waits for a reset to be
 * replaced. */
int is_sick(const struct gpu *gpu);

/* Whether MIG keeps a GPU from answering *function*. */
int mig_refuses(const char *function, const struct gpu *gpu);

/* " MIG 1g.10gb" and the like, empty for a whole GPU; and the memory of either, in bytes. */
const char *mig_name(const struct gpu *gpu);
unsigned long long memory_of(const struct gpu *gpu);

/* What a field tells of one link, or of all: a result, and a change of *value where it needs one.
 * Fields that are not of links are left as they are. */
int nvlink_field(const struct gpu *gpu, unsigned field, unsigned link, unsigned long long *value);

/* Monotonic seconds since the library was loaded, for counters that grow. */
double seconds_running(void);

#endif
