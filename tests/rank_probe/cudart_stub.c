/* A CUDA runtime that needs no GPU, for the probe's recorder in C. Tests set its variables: the
 * clock, when each stream will have done its work, and what is wrong. It keeps CUDA's rules as far
 * as the probe could break them, and counts calls. */

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CREATE, RECORD, QUERY, ELAPSED, IS_CAPTURING, GET_DEVICE, SET_DEVICE, FUNCTIONS };
enum { INVALID_VALUE = 1, INVALID_HANDLE = 400, NOT_READY = 600, LOST = 700 };
enum { CAPTURES = 900, CAPTURE_IMPLICIT = 906 };
enum { STREAMS = 8, RELAXED = 2 };

typedef struct {
    int device, is_recorded;
    long long at;
} Event;

typedef long long Variable;
Variable stub_now, stub_idle_at[STREAMS]; /* nanoseconds */
Variable stub_calls[FUNCTIONS];
Variable stub_capturing; /* whichever stream is asked for; 2: the legacy one, beside a capture */
Variable stub_current_device;
Variable stub_failing; /* the function that reports a lost device, plus one */
Variable stub_last_error;
Variable stub_blocked; /* queries answer late, or once it is no longer so */
static __thread int mode, is_owner;

void
stub_reset(void)
{
    memset(stub_calls, 0, sizeof(stub_calls));
    memset(stub_idle_at, 0, sizeof(stub_idle_at));
    stub_now = stub_capturing = stub_current_device = stub_failing = stub_last_error = 0;
    stub_blocked = 0;
    is_owner = 1;
}

Variable
stub_clock(void)
{
    return stub_now;
}

static int
called(int function)
{
    stub_calls[function]++;
    return stub_failing == function + 1 ? stub_last_error = LOST : 0;
}

/* Of calls that break a capture, and that only a thread in relaxed mode may make beside the owner. */
static int
called_with_care(int function)
{
    int error = called(function);
    if (error == 0 && stub_capturing && mode != RELAXED)
        error = stub_last_error = CAPTURES;
    if (error == 0 && !is_owner && mode != RELAXED)
        error = stub_last_error = INVALID_VALUE;
    return error;
}

int
cudaEventCreateWithFlags(Event **event, unsigned int flags)
{
    int error = called(CREATE);
    if (error || stub_capturing || flags != 0)
        return error ? error : INVALID_VALUE; /* 0: it is timed */
    *event = calloc(1, sizeof(Event));
    (*event)->device = stub_current_device;
    return 0;
}

int
cudaEventRecord(Event *event, void *stream)
{
    int error = called(RECORD);
    if (error || stub_capturing)
        return error ? error : (stub_last_error = CAPTURES);
    if (event->device != stub_current_device)
        return stub_last_error = INVALID_HANDLE;
    long long idle_at = stub_idle_at[(long)stream];
    event->at = idle_at > stub_now ? idle_at : stub_now;
    event->is_recorded = 1;
    return 0;
}

int
cudaEventQuery(Event *event)
{
    int error = called_with_care(QUERY);
    for (int i = 0; i < 3000 && stub_blocked; i++)
        usleep(1000);
    if (error || !event->is_recorded)
        return error ? error : (stub_last_error = INVALID_HANDLE);
    return event->at <= stub_now ? 0 : (stub_last_error = NOT_READY);
}

int
cudaEventElapsedTime(float *milliseconds, Event *start, Event *end)
{
    int error = called_with_care(ELAPSED);
    if (error || start->device != end->device || !start->is_recorded || !end->is_recorded)
        return error ? error : (stub_last_error = INVALID_HANDLE);
    if (start->at > stub_now || end->at > stub_now)
        return stub_last_error = NOT_READY;
    *milliseconds = (end->at - start->at) / 1e6;
    return 0;
}

int
cudaStreamIsCapturing(void *stream, int *status)
{
    *status = stub_capturing == 1;
    int error = (long)stream < STREAMS ? called(IS_CAPTURING) : INVALID_HANDLE;
    return error || stub_capturing < 2 ? error : (stub_last_error = CAPTURE_IMPLICIT);
}

int
cudaGetDevice(int *device)
{
    *device = stub_current_device;
    return called(GET_DEVICE);
}

int
cudaSetDevice(int device)
{
    stub_current_device = device;
    return called(SET_DEVICE);
}

int
cudaThreadExchangeStreamCaptureMode(int *other)
{
    int before = mode;
    mode = *other;
    *other = before;
    return 0;
}

/* A lost device stays so. */
int
cudaGetLastError(void)
{
    int error = stub_last_error;
    stub_last_error = error == LOST ? LOST : 0;
    return error;
}

const char *
cudaGetErrorString(int error)
{
    return error == LOST ? "an illegal memory access was encountered" : "another error";
}
