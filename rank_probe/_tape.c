/* What may not be in Python. Relies on the GIL.
 *
 * Tape: for loops in which a microsecond counts. See PythonTape in measure/tape.py, which says what
 * it and its hooks do, and serves where this is not built.
 * GarbageListener: see process/garbage.py. Recorder: see _device.c. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <time.h>

#ifndef __linux__
#error "time.perf_counter_ns is CLOCK_MONOTONIC on Linux only"
#endif

#define LONG_TAPE (1 << 16) /* tape.LONG */
#define EVENT_SIZE 2        /* a code and a time */

typedef struct {
    PyObject_HEAD
    unsigned long owner;
    int64_t *events;
    Py_ssize_t used, room;
    PyObject *now, *follower, *on_long;
} Tape;

static int64_t
clock_ns(void)
{
    struct timespec spec;
    clock_gettime(CLOCK_MONOTONIC, &spec);
    return (int64_t)spec.tv_sec * 1000000000 + spec.tv_nsec;
}

/* Forget an error of ours. What is no Exception, an interrupt or an exit, is the user's: return -1. */
static int
forget_error(void)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

/* Call an optional function of ours, which counts its own failures; return -1 for the user's. */
static int
call_ours(PyObject *function, PyObject *argument)
{
    if (function == NULL || function == Py_None)
        return 0;
    Py_INCREF(function);
    PyObject *result = argument ? PyObject_CallOneArg(function, argument)
                                : PyObject_CallNoArgs(function);
    Py_DECREF(function);
    if (result == NULL)
        return forget_error();
    Py_DECREF(result);
    return 0;
}

static int
read_now(Tape *tape, int64_t *at)
{
    if (tape->now != Py_None) {
        PyObject *now = PyObject_CallNoArgs(tape->now);
        *at = now ? PyLong_AsLongLong(now) : 0;
        Py_XDECREF(now);
        return PyErr_Occurred() ? forget_error() : 0;
    }
    *at = clock_ns();
    return 0;
}

static int
tape_put(Tape *tape, long code)
{
    int64_t at;
    if (read_now(tape, &at) < 0)
        return -1;
    if (tape->used == tape->room) {
        Py_ssize_t room = tape->room ? 2 * tape->room : 1024;
        int64_t *events = PyMem_Realloc(tape->events, room * sizeof(int64_t));
        if (events == NULL)
            return 0;
        tape->events = events;
        tape->room = room;
    }
    tape->events[tape->used] = code;
    tape->events[tape->used + 1] = at;
    tape->used += EVENT_SIZE;
    if (tape->follower != Py_None) {
        PyObject *number = PyLong_FromLong(code);
        int failed = number == NULL ? forget_error() : call_ours(tape->follower, number);
        Py_XDECREF(number);
        if (failed < 0)
            return -1;
    }
    return tape->used > EVENT_SIZE * LONG_TAPE ? call_ours(tape->on_long, NULL) : 0;
}

static PyObject *
tape_append(Tape *tape, PyObject *argument)
{
    long code = PyLong_AsLong(argument);
    if ((code == -1 && PyErr_Occurred()) || tape_put(tape, code) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Append for the owner; return whether it calls, -1 for an interrupt. */
static int
noted(Tape *tape, long code)
{
    if (PyThread_get_thread_ident() != tape->owner)
        return 0;
    return tape_put(tape, code) < 0 ? -1 : 1;
}

static PyObject *
tape_note(Tape *tape, PyObject *argument)
{
    long code = PyLong_AsLong(argument);
    int is_noted = code == -1 && PyErr_Occurred() ? -1 : noted(tape, code);
    return is_noted < 0 ? NULL : PyBool_FromLong(is_noted);
}

static PyObject *
tape_take(Tape *tape, PyObject *Py_UNUSED(ignored))
{
    PyObject *taken = PyBytes_FromStringAndSize((char *)tape->events, tape->used * sizeof(int64_t));
    if (taken != NULL)
        tape->used = 0;
    return taken;
}

static PyObject *
tape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"now", NULL};
    PyObject *now = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O", names, &now))
        return NULL;
    Tape *tape = (Tape *)type->tp_alloc(type, 0);
    if (tape == NULL)
        return NULL;
    tape->owner = PyThread_get_thread_ident();
    tape->now = Py_NewRef(now);
    tape->follower = Py_NewRef(Py_None);
    tape->on_long = Py_NewRef(Py_None);
    return (PyObject *)tape;
}

static int
tape_traverse(Tape *tape, visitproc visit, void *arg)
{
    Py_VISIT(tape->now);
    Py_VISIT(tape->follower);
    Py_VISIT(tape->on_long);
    return 0;
}

static int
tape_clear(Tape *tape)
{
    /* None, not NULL: another thread's hook may still come by. */
    Py_SETREF(tape->now, Py_NewRef(Py_None));
    Py_SETREF(tape->follower, Py_NewRef(Py_None));
    Py_SETREF(tape->on_long, Py_NewRef(Py_None));
    return 0;
}

static void
tape_dealloc(Tape *tape)
{
    PyObject_GC_UnTrack(tape);
    Py_XDECREF(tape->now);
    Py_XDECREF(tape->follower);
    Py_XDECREF(tape->on_long);
    PyMem_Free(tape->events);
    Py_TYPE(tape)->tp_free((PyObject *)tape);
}

/* What stands around a call of the user's, behind a function in Python. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall; /* NULL: it takes any arguments */
    Tape *tape;
    PyObject *original, *tell, *count, *gradients;
    int begins, ungraded, ended, raised;
} Hook;

static PyTypeObject Hook_Type;

static Hook *
new_hook(Tape *tape, vectorcallfunc vectorcall)
{
    Hook *hook = (Hook *)Hook_Type.tp_alloc(&Hook_Type, 0);
    if (hook != NULL) {
        hook->vectorcall = vectorcall;
        hook->tape = (Tape *)Py_NewRef(tape);
    }
    return hook;
}

/* Note that the user's call raised, or an interrupt before it. */
static PyObject *
has_raised(Hook *hook)
{
    PyObject *type, *value, *traceback, *later, *interrupt, *its_traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (noted(hook->tape, hook->raised) >= 0) {
        PyErr_Restore(type, value, traceback);
        return NULL;
    }
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(value, traceback);
    PyErr_Fetch(&later, &interrupt, &its_traceback);
    PyErr_NormalizeException(&later, &interrupt, &its_traceback);
    if (interrupt != value)
        PyException_SetContext(interrupt, Py_NewRef(value));
    PyErr_Restore(later, interrupt, its_traceback);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return NULL;
}

static PyObject *
around_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    Hook *hook = (Hook *)self;
    if (hook->vectorcall != NULL)
        return PyVectorcall_Call(self, args, kwargs);
    PyObject *result = NULL;
    if (noted(hook->tape, hook->begins) >= 0)
        result = PyObject_Call(hook->original, args, kwargs);
    if (result == NULL)
        return has_raised(hook);
    if (noted(hook->tape, hook->ended) < 0)
        Py_CLEAR(result);
    return result;
}

static PyObject *
tape_around(Tape *tape, PyObject *args)
{
    Hook *hook = new_hook(tape, NULL);
    if (hook != NULL && !PyArg_ParseTuple(args, "Oiii", &hook->original, &hook->begins,
                                          &hook->ended, &hook->raised)) {
        hook->original = NULL;
        Py_CLEAR(hook);
    }
    if (hook != NULL)
        Py_INCREF(hook->original);
    return (PyObject *)hook;
}

static PyObject *shape_name; /* One object: the interpreter's cache of attributes knows no other. */

/* The rows of the first tensor in a list or tuple; 0 where it does not show, -1 for an interrupt. */
static long
rows_of(PyObject *batch)
{
    PyObject *first;
    if (PyList_CheckExact(batch) && PyList_GET_SIZE(batch) > 0)
        first = PyList_GET_ITEM(batch, 0);
    else if (PyTuple_CheckExact(batch) && PyTuple_GET_SIZE(batch) > 0)
        first = PyTuple_GET_ITEM(batch, 0);
    else
        return 0;
    Py_INCREF(first);
    PyObject *shape = PyObject_GetAttr(first, shape_name);
    Py_DECREF(first);
    long rows = 0;
    if (shape != NULL && PyTuple_Check(shape) && PyTuple_GET_SIZE(shape) > 0)
        rows = PyLong_AsLong(PyTuple_GET_ITEM(shape, 0));
    Py_XDECREF(shape);
    return PyErr_Occurred() ? forget_error() : rows;
}

static int
tell(Hook *hook, PyObject *batch)
{
    long rows = hook->count == Py_None ? 0 : rows_of(batch);
    if (rows < 0)
        return -1;
    PyObject *number = rows ? PyLong_FromLong(rows) : NULL;
    PyObject *told = number ? PyObject_CallOneArg(hook->count, number)
                            : PyObject_CallOneArg(hook->tell, batch);
    Py_XDECREF(number);
    Py_XDECREF(told);
    return told == NULL ? -1 : 0;
}

static PyObject *
fetching_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Hook *hook = (Hook *)self;
    if (PyVectorcall_NARGS(nargsf) != 1 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "an iterator is expected");
    PyObject *gradients = PyObject_CallNoArgs(hook->gradients), *batch = NULL;
    int is_graded = gradients ? PyObject_IsTrue(gradients) : -1, is_noted = -1;
    Py_XDECREF(gradients);
    if (is_graded >= 0)
        is_noted = noted(hook->tape, is_graded ? hook->begins : hook->ungraded);
    if (is_noted >= 0)
        batch = PyObject_CallOneArg(hook->original, args[0]);
    if (batch != NULL && is_noted && tell(hook, batch) < 0)
        Py_CLEAR(batch);
    if (batch == NULL)
        return has_raised(hook);
    if (noted(hook->tape, hook->ended) < 0)
        Py_CLEAR(batch);
    return batch;
}

static PyObject *
tape_fetching(Tape *tape, PyObject *args)
{
    PyObject *original, *tell, *count, *gradients;
    int begins, ungraded, ended, raised;
    if (!PyArg_ParseTuple(args, "OOOOiiii", &original, &tell, &count, &gradients, &begins,
                          &ungraded, &ended, &raised))
        return NULL;
    Hook *hook = new_hook(tape, fetching_call);
    if (hook != NULL) {
        hook->original = Py_NewRef(original);
        hook->tell = Py_NewRef(tell);
        hook->count = Py_NewRef(count);
        hook->gradients = Py_NewRef(gradients);
        hook->begins = begins;
        hook->ungraded = ungraded;
        hook->ended = ended;
        hook->raised = raised;
    }
    return (PyObject *)hook;
}

/* An optimizer's hook, called with it and its step's arguments. */
static PyObject *
noting_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Hook *hook = (Hook *)self;
    if (PyVectorcall_NARGS(nargsf) != 3 || names != NULL || !PyTuple_Check(args[1]) ||
        !PyDict_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "an optimizer and its arguments are expected");
    int is_noted = noted(hook->tape, hook->begins);
    if (is_noted < 0)
        return NULL;
    if (is_noted && hook->tell != Py_None &&
        (PyTuple_GET_SIZE(args[1]) > 1 || PyDict_GET_SIZE(args[2]) > 0))
        return PyObject_CallFunctionObjArgs(hook->tell, args[1], args[2], NULL);
    Py_RETURN_NONE;
}

static PyObject *
tape_noting(Tape *tape, PyObject *args)
{
    PyObject *tell;
    int code;
    if (!PyArg_ParseTuple(args, "iO", &code, &tell))
        return NULL;
    Hook *hook = new_hook(tape, noting_call);
    if (hook != NULL) {
        hook->begins = code;
        hook->tell = Py_NewRef(tell);
    }
    return (PyObject *)hook;
}

static int
hook_traverse(Hook *hook, visitproc visit, void *arg)
{
    Py_VISIT(hook->tape);
    Py_VISIT(hook->original);
    Py_VISIT(hook->tell);
    Py_VISIT(hook->count);
    Py_VISIT(hook->gradients);
    return 0;
}

static void
hook_dealloc(Hook *hook)
{
    PyObject_GC_UnTrack(hook);
    Py_XDECREF(hook->tape);
    Py_XDECREF(hook->original);
    Py_XDECREF(hook->tell);
    Py_XDECREF(hook->count);
    Py_XDECREF(hook->gradients);
    Py_TYPE(hook)->tp_free((PyObject *)hook);
}

/* No tp_clear: somebody may call it until it is gone. Its tape and the functions can be cleared. */
static PyTypeObject Hook_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "rank_probe._tape.Hook",
    .tp_basicsize = sizeof(Hook),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_call = around_call,
    .tp_vectorcall_offset = offsetof(Hook, vectorcall),
    .tp_traverse = (traverseproc)hook_traverse,
    .tp_dealloc = (destructor)hook_dealloc,
};

static PyMethodDef tape_methods[] = {
    {"around", (PyCFunction)tape_around, METH_VARARGS, NULL},
    {"fetching", (PyCFunction)tape_fetching, METH_VARARGS, NULL},
    {"noting", (PyCFunction)tape_noting, METH_VARARGS, NULL},
    {"note", (PyCFunction)tape_note, METH_O, NULL},
    {"append", (PyCFunction)tape_append, METH_O, NULL},
    {"take", (PyCFunction)tape_take, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef tape_members[] = {
    {"owner", T_ULONG, offsetof(Tape, owner), 0, NULL},
    {"follower", T_OBJECT_EX, offsetof(Tape, follower), 0, NULL},
    {"on_long", T_OBJECT_EX, offsetof(Tape, on_long), 0, NULL},
    {NULL},
};

static PyTypeObject Tape_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "rank_probe._tape.Tape",
    .tp_basicsize = sizeof(Tape),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = tape_new,
    .tp_traverse = (traverseproc)tape_traverse,
    .tp_clear = (inquiry)tape_clear,
    .tp_dealloc = (destructor)tape_dealloc,
    .tp_methods = tape_methods,
    .tp_members = tape_members,
};

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int64_t began, nanoseconds; /* began: 0 for no collection that it saw begin */
} Listener;

/* Called with "start" or "stop", and what else the collector tells. */
static PyObject *
listener_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *Py_UNUSED(names))
{
    Listener *listener = (Listener *)self;
    if (PyVectorcall_NARGS(nargsf) < 1 || !PyUnicode_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "a garbage collection's phase is expected");
    if (PyUnicode_CompareWithASCIIString(args[0], "start") == 0)
        listener->began = clock_ns();
    else if (listener->began != 0) {
        listener->nanoseconds += clock_ns() - listener->began;
        listener->began = 0;
    }
    Py_RETURN_NONE;
}

static PyObject *
listener_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Listener *listener = (Listener *)type->tp_alloc(type, 0);
    if (listener != NULL)
        listener->vectorcall = listener_call;
    return (PyObject *)listener;
}

static PyMemberDef listener_members[] = {
    {"nanoseconds", T_LONGLONG, offsetof(Listener, nanoseconds), READONLY, NULL},
    {NULL},
};

static PyTypeObject Listener_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "rank_probe._tape.GarbageListener",
    .tp_basicsize = sizeof(Listener),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = listener_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Listener, vectorcall),
    .tp_members = listener_members,
};

extern PyTypeObject Recorder_Type;

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rank_probe._tape",
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__tape(void)
{
    if (PyType_Ready(&Tape_Type) < 0 || PyType_Ready(&Hook_Type) < 0 ||
        PyType_Ready(&Listener_Type) < 0 || PyType_Ready(&Recorder_Type) < 0)
        return NULL;
    shape_name = PyUnicode_InternFromString("shape");
    PyObject *self = shape_name ? PyModule_Create(&module) : NULL;
    if (self != NULL &&
        (PyModule_AddObjectRef(self, "Tape", (PyObject *)&Tape_Type) < 0 ||
         PyModule_AddObjectRef(self, "GarbageListener", (PyObject *)&Listener_Type) < 0 ||
         PyModule_AddObjectRef(self, "Recorder", (PyObject *)&Recorder_Type) < 0))
        Py_CLEAR(self);
    return self;
}
