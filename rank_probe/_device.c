/* The recorder of a device's clock, for loops in which a microsecond counts. See PythonRecorder in
 * measure/device_clock.py, which says what it does, and serves where this is not built or torch has
 * no CUDA runtime of its own. Relies on the GIL, and gives it up where the driver may block. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <math.h>
#include <stdint.h>
#include <time.h>

/* See measure/boundaries.py. */
#define STAGE_BITS 15
#define BEGIN (1 << 4)
#define RELEASE (1 << 5)
#define COMPLETE (1 << 6)
#define STEP_ENDS (BEGIN | COMPLETE)

#define YOUNG_STEPS 2 /* see device_clock.py */
#define BACKWARD 7    /* see wire/stages.py */
#define SYNC 9

/* See cudaError_t. */
#define NOT_READY 600
#define CAPTURE_IMPLICIT 906 /* the legacy stream, while another one of the device is captured */

typedef struct { /* in the order of cuda_events.FUNCTIONS, and the clock of a test */
    int (*create)(void **event, unsigned int flags);
    int (*record)(void *event, void *stream);
    int (*query)(void *event);
    int (*elapsed)(float *milliseconds, void *start, void *end);
    int (*is_capturing)(void *stream, int *status);
    int (*get_device)(int *device);
    int (*set_device)(int device);
    int (*last_error)(void);
    const char *(*error_string)(int error);
    long long (*now)(void);
} Runtime;

typedef struct {
    int64_t mark, number; /* of the step that ends here, else 0 */
    void *event, *stream; /* event: NULL where it is that of the entry before */
    int64_t nanoseconds;  /* since the event that was reached before */
} Entry;

enum state { BEGINS, COUNTS, IS_LOST };

typedef struct {
    PyObject_HEAD
    Runtime runtime;
    PyObject *stream, *number_of_device, *due;
    const char *error; /* NULL: nothing has failed */
    int device, hides, is_reading; /* hides: waits on other streams than home */
    long limit, whole; /* whole: steps that wait */
    long long every, at_once, next_read, recorded, number, dropped_steps, at, reached_mark, stage;
    enum state state;
    void **free, *reached, *home; /* free: events; home: the stream of the last one of no wait */
    long made, count; /* count: of the free ones */
    Entry *entries;
    Py_ssize_t begin, step, end, room; /* begin: of what waits; step: of the unfinished one */
} Recorder;

/* Return -1 if a call of CUDA failed. Torch is told again of what concerns it: that is sticky. */
static int
check(Recorder *self, int error)
{
    if (error == 0)
        return 0;
    self->runtime.last_error();
    self->error = self->runtime.error_string(error);
    return -1;
}

static long long
host_now(Recorder *self)
{
    struct timespec spec;
    if (self->runtime.now != NULL)
        return self->runtime.now();
    clock_gettime(CLOCK_MONOTONIC, &spec);
    return (long long)spec.tv_sec * 1000000000 + spec.tv_nsec;
}

static int
are_scarce(Recorder *self)
{
    return 2 * (self->made - self->count) > self->limit;
}

static int
call_due(Recorder *self)
{
    PyObject *result = PyObject_CallFunction(self->due, "i", are_scarce(self) ? 0 : YOUNG_STEPS);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static void
give_back(Recorder *self, void *event)
{
    if (event != NULL)
        self->free[self->count++] = event;
}

static void
lose(Recorder *self, int64_t mark)
{
    self->state = IS_LOST;
    while (self->end > self->step)
        give_back(self, self->entries[--self->end].event);
    self->dropped_steps += (mark & COMPLETE) != 0;
}

static int
put(Recorder *self, Entry entry)
{
    if (self->end == self->room) {
        Py_ssize_t waiting = self->end - self->begin, room = 2 * waiting + 256;
        Entry *entries = PyMem_Malloc(room * sizeof(Entry));
        if (entries == NULL)
            return PyErr_NoMemory(), -1;
        if (waiting)
            memcpy(entries, self->entries + self->begin, waiting * sizeof(Entry));
        PyMem_Free(self->entries);
        self->entries = entries;
        self->step -= self->begin;
        self->begin = 0;
        self->end = waiting;
        self->room = room;
    }
    self->entries[self->end++] = entry;
    self->stage = entry.mark & STAGE_BITS;
    return 0;
}

static int
record(Recorder *self, int64_t mark, void *stream)
{
    if (self->state == COUNTS && self->stage != SYNC &&
        host_now(self) - self->recorded < self->at_once)
        return put(self, (Entry){.mark = mark, .stream = self}); /* which is no stream */
    if (self->count == 0 && self->made == self->limit) {
        lose(self, mark);
        return 0;
    }
    void *event = self->count ? self->free[--self->count] : NULL;
    self->made += event == NULL;
    PyThreadState *state = PyEval_SaveThread(); /* A full launch queue blocks. */
    int error = event == NULL ? self->runtime.create(&event, 0) : 0;
    if (error == 0)
        error = self->runtime.record(event, stream);
    PyEval_RestoreThread(state);
    if (check(self, error) < 0)
        return -1;
    if (self->state == BEGINS) {
        self->state = COUNTS;
        mark = (mark & STAGE_BITS) | BEGIN;
    }
    self->recorded = host_now(self);
    return put(self, (Entry){.mark = mark, .event = event, .stream = stream});
}

static int
end_step(Recorder *self, int64_t mark, void *stream)
{
    if (self->state == IS_LOST) {
        self->dropped_steps += (mark & COMPLETE) != 0;
        if (!are_scarce(self))
            self->state = BEGINS;
    }
    if (self->state != IS_LOST) {
        int is_whole = mark & COMPLETE && self->state == COUNTS;
        if (record(self, mark, stream) < 0)
            return -1;
        if (is_whole && self->state == COUNTS) {
            self->entries[self->end - 1].number = self->number;
            self->step = self->end;
            self->whole++;
        }
    }
    return host_now(self) < self->next_read && !are_scarce(self) ? 0 : call_due(self);
}

static int
take(Recorder *self, int64_t mark)
{
    int is_wait = (mark & STAGE_BITS) == SYNC, is_end = (mark & STEP_ENDS) != 0;
    if (self->state == COUNTS && (mark & (STAGE_BITS | STEP_ENDS | RELEASE)) == self->stage)
        return 0;
    self->number += (mark & COMPLETE) != 0;
    PyObject *handle = PyObject_CallOneArg(self->stream, self->number_of_device);
    void *stream = handle ? PyLong_AsVoidPtr(handle) : NULL;
    Py_XDECREF(handle);
    if (PyErr_Occurred())
        return -1;
    if (self->hides && !is_end && stream != self->home && (is_wait || mark & RELEASE))
        return 0;
    /* A batch may be fetched and copied on a stream of its own; gradients are computed at home. */
    if (is_end || ((mark & STAGE_BITS) == BACKWARD && self->stage != SYNC))
        self->home = stream;
    int is_capturing = 0, error = self->runtime.is_capturing(stream, &is_capturing);
    if (error == CAPTURE_IMPLICIT)
        is_capturing = (self->runtime.last_error(), 1);
    else if (check(self, error) < 0)
        return -1;
    if (is_end && !is_capturing)
        return end_step(self, mark, stream);
    if (is_end)
        lose(self, mark);
    return is_capturing || self->state == IS_LOST ? 0 : record(self, mark, stream);
}

/* Make the device the current one, as CUDA's default stream is that of the current device. */
static int
take_there(Recorder *self, int64_t mark)
{
    int current;
    if (check(self, self->runtime.get_device(&current)) < 0)
        return -1;
    if (current != self->device && check(self, self->runtime.set_device(self->device)) < 0)
        return -1;
    int failed = take(self, mark);
    if (current != self->device)
        self->runtime.set_device(current);
    return failed;
}

static PyObject *
recorder_boundary(Recorder *self, PyObject *argument)
{
    long mark = PyLong_AsLong(argument);
    if (self->error != NULL)
        self->dropped_steps += (mark & COMPLETE) != 0;
    else if (!PyErr_Occurred() && !self->is_reading && take_there(self, mark) < 0) {
        if (!PyErr_Occurred()) /* It tells of the error. */
            call_due(self);
        else if (self->error == NULL && PyErr_ExceptionMatches(PyExc_Exception))
            self->error = "a boundary could not be recorded";
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Return NOT_READY if the device has not reached an event, or another error. Needs no GIL. */
static int
query(Recorder *self, void *event)
{
    int error = event == NULL ? 0 : self->runtime.query(event);
    if (error != 0)
        self->runtime.last_error(); /* As torch does, which would find it after its next launch. */
    return error;
}

/* Find the times of a step; return 1 if the device has finished it, -1 for an error. Needs no GIL. */
static int
find_times(Recorder *self, Entry *first, Entry *last)
{
    for (Entry *each = last; each >= first; each--) {
        /* The last event on each stream comes after all others there. */
        if (each < last && each->stream == each[1].stream)
            continue;
        int error = query(self, each->event);
        if (error != 0)
            return error == NOT_READY ? 0 : check(self, error);
    }
    void *reached = self->reached;
    for (Entry *each = first; each <= last; each++) {
        float milliseconds = 0;
        if (each->event == NULL)
            continue;
        if (reached != NULL &&
            check(self, self->runtime.elapsed(&milliseconds, reached, each->event)) < 0)
            return -1;
        each->nanoseconds = llrint(milliseconds * 1e6);
        if (each->nanoseconds >= 0)
            reached = each->event;
    }
    return 1;
}

static PyObject *
recorder_read(Recorder *self, PyObject *argument)
{
    long young = PyLong_AsLong(argument);
    PyObject *pairs = PyBytes_FromStringAndSize(NULL, (self->step - self->begin) * 16);
    PyObject *numbers = PyList_New(0);
    int64_t *pair = pairs ? (int64_t *)PyBytes_AS_STRING(pairs) : NULL;
    while (!PyErr_Occurred() && self->error == NULL && self->whole > young) {
        Entry *first = self->entries + self->begin, *last = first;
        while (last->number == 0)
            last++;
        self->is_reading = 1; /* A hook of another thread finds nothing to do. */
        PyThreadState *state = PyEval_SaveThread();
        int found = find_times(self, first, last);
        PyEval_RestoreThread(state);
        self->is_reading = 0;
        if (found <= 0)
            break;
        for (Entry *each = first; each <= last; each++) {
            if (each->nanoseconds < 0)
                give_back(self, each->event);
            else if (each->event != NULL) {
                give_back(self, self->reached);
                self->reached = each->event;
                self->at += each->nanoseconds;
            }
            *pair++ = self->reached_mark = each->mark;
            *pair++ = self->at;
        }
        self->begin += last - first + 1;
        self->whole--;
        PyObject *number = PyLong_FromLongLong(last->number);
        if (number != NULL)
            PyList_Append(numbers, number);
        Py_XDECREF(number);
    }
    self->next_read = host_now(self) + self->every;
    if (PyErr_Occurred() ||
        _PyBytes_Resize(&pairs, (char *)pair - PyBytes_AS_STRING(pairs)) < 0) {
        Py_XDECREF(pairs);
        Py_XDECREF(numbers);
        return NULL;
    }
    return Py_BuildValue("(NN)", pairs, numbers);
}

static PyObject *
recorder_stands_in(Recorder *self, PyObject *Py_UNUSED(ignored))
{
    long long stage = self->reached_mark;
    for (Py_ssize_t i = self->begin; i < self->end; i++) {
        Entry each = self->entries[i];
        PyThreadState *state = PyEval_SaveThread();
        int error = query(self, each.event);
        PyEval_RestoreThread(state);
        if (error != 0) /* The training thread tells of any other. */
            return error == NOT_READY ? PyLong_FromLong(stage & STAGE_BITS) : Py_NewRef(Py_None);
        stage = each.mark;
    }
    Py_RETURN_NONE;
}

static PyObject *
recorder_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    Recorder *self = (Recorder *)type->tp_alloc(type, 0);
    PyObject *stream, *due;
    const char *runtime;
    Py_ssize_t size = 0;
    if (self == NULL ||
        !PyArg_ParseTuple(args, "(y#O)iLlLLpO", &runtime, &size, &stream, &self->device, &self->number,
                          &self->limit, &self->every, &self->at_once, &self->hides, &due) ||
        size != sizeof(Runtime)) {
        Py_XDECREF(self);
        return NULL;
    }
    memcpy(&self->runtime, runtime, size);
    self->stream = Py_NewRef(stream);
    self->due = Py_NewRef(due);
    self->number_of_device = PyLong_FromLong(self->device);
    self->free = PyMem_Calloc(self->limit, sizeof(void *));
    if (self->number_of_device == NULL || self->free == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int
recorder_traverse(Recorder *self, visitproc visit, void *arg)
{
    Py_VISIT(self->due);
    return 0;
}

/* Its events stay with CUDA: to destroy one may block. */
static void
recorder_dealloc(Recorder *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->stream);
    Py_XDECREF(self->number_of_device);
    Py_XDECREF(self->due);
    PyMem_Free(self->free);
    PyMem_Free(self->entries);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef recorder_methods[] = {
    {"boundary", (PyCFunction)recorder_boundary, METH_O, NULL},
    {"read", (PyCFunction)recorder_read, METH_O, NULL},
    {"stands_in", (PyCFunction)recorder_stands_in, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef recorder_members[] = {
    {"at", T_LONGLONG, offsetof(Recorder, at), READONLY, NULL},
    {"dropped_steps", T_LONGLONG, offsetof(Recorder, dropped_steps), READONLY, NULL},
    {"error", T_STRING, offsetof(Recorder, error), READONLY, NULL},
    {NULL},
};

/* No tp_clear, as in _tape.c: a hook may still come by, and its clock can be cleared. */
PyTypeObject Recorder_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "rank_probe._tape.Recorder",
    .tp_basicsize = sizeof(Recorder),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = recorder_new,
    .tp_traverse = (traverseproc)recorder_traverse,
    .tp_dealloc = (destructor)recorder_dealloc,
    .tp_methods = recorder_methods,
    .tp_members = recorder_members,
};
