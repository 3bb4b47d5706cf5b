/* Sleep, and tell when the sleep ended: before the caller has the interpreter again. */
#include <stdint.h>
#include <time.h>

static int64_t read_clock(clockid_t clock) {
    struct timespec now;
    return clock_gettime(clock, &now) ? 0 : now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Nanoseconds of all clocks; that of a thread that has ended counts nothing. */
int64_t sum_of(const clockid_t *clocks, int count) {
    int64_t sum = 0;
    for (int at = 0; at < count; at++)
        sum += read_clock(clocks[at]);
    return sum;
}

/* Use a CPU for *nanoseconds*; return the longest of them between two looks at the clock. */
int64_t spin(int64_t nanoseconds) {
    int64_t began = read_clock(CLOCK_THREAD_CPUTIME_ID), last = began, longest = 0;
    while (last - began < nanoseconds) {
        int64_t now = read_clock(CLOCK_THREAD_CPUTIME_ID);
        longest = now - last > longest ? now - last : longest;
        last = now;
    }
    return longest;
}

/* *woke is nanoseconds of the monotonic clock, *used the sum of the clocks. */
void nap(double seconds, const clockid_t *clocks, int count, int64_t *woke, int64_t *used) {
    struct timespec length = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &length, 0);
    *woke = read_clock(CLOCK_MONOTONIC);
    *used = sum_of(clocks, count);
}
