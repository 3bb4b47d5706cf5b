/* Sleep, and tell when the sleep ended: before the caller has the interpreter again. */
#include <stdint.h>
#include <time.h>

static int64_t read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

void nap(double seconds, int64_t *woke, int64_t *used) {
    struct timespec length = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &length, 0);
    *woke = read_clock(CLOCK_MONOTONIC);
    *used = read_clock(CLOCK_PROCESS_CPUTIME_ID);
}
