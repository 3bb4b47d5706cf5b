/* The tape and what notes on it, for loops in which a microsecond counts: see measure/tape.py, which says
 * what each does, and serves where this is not built. Relies on the GIL. */

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

/* Call an optional function of ours; it counts its own failures. */
static void
call_ours(PyObject *function, PyObject *argument)
{
    if (function == NULL || function == Py_None)
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback); /* the user's, if what we are around raised */
    Py_INCREF(function);
    PyObject *result = argument ? PyObject_CallOneArg(function, argument)
                                : PyObject_CallNoArgs(function);
    Py_DECREF(function);
    if (result == NULL)
        PyErr_Clear();
    Py_XDECREF(result);
    PyErr_Restore(type, value, traceback);
}

static int64_t
now_ns(Tape *tape)
{
    if (tape->now != Py_None) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *now = PyObject_CallNoArgs(tape->now);
        int64_t at = now ? PyLong_AsLongLong(now) : 0;
        Py_XDECREF(now);
        PyErr_Clear();
        PyErr_Restore(type, value, traceback);
        return at;
    }
    struct timespec spec;
    clock_gettime(CLOCK_MONOTONIC, &spec);
    return (int64_t)spec.tv_sec * 1000000000 + spec.tv_nsec;
}

static void
tape_put(Tape *tape, long code)
{
    int64_t at = now_ns(tape);
    if (tape->used == tape->room) {
        Py_ssize_t room = tape->room ? 2 * tape->room : 1024;
        int64_t *events = PyMem_Realloc(tape->events, room * sizeof(int64_t));
        if (events == NULL)
            return;
        tape->events = events;
        tape->room = room;
    }
    tape->events[tape->used] = code;
    tape->events[tape->used + 1] = at;
    tape->used += EVENT_SIZE;
    if (tape->follower != Py_None) {
        PyObject *number = PyLong_FromLong(code);
        if (number != NULL)
            call_ours(tape->follower, number);
        Py_XDECREF(number);
    }
    if (tape->used > EVENT_SIZE * LONG_TAPE)
        call_ours(tape->on_long, NULL);
}

static PyObject *
tape_append(Tape *tape, PyObject *argument)
{
    long code = PyLong_AsLong(argument);
    if (code == -1 && PyErr_Occurred())
        return NULL;
    tape_put(tape, code);
    Py_RETURN_NONE;
}

static PyObject *
tape_note(Tape *tape, PyObject *argument)
{
    if (PyThread_get_thread_ident() != tape->owner)
        Py_RETURN_NONE;
    return tape_append(tape, argument);
}

static PyObject *
tape_take(Tape *tape, PyObject *Py_UNUSED(ignored))
{
    Py_ssize_t used = tape->used;
    PyObject *list = PyList_New(used);
    if (list == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < used; i++) {
        PyObject *number = PyLong_FromLongLong(tape->events[i]);
        if (number == NULL) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SET_ITEM(list, i, number);
    }
    /* Making the numbers runs no Python code, so nothing was appended meanwhile. */
    tape->used = 0;
    return list;
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

static PyMethodDef tape_methods[] = {
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
    PyObject *dict;
    Tape *tape;
    PyObject *original, *asks, *tells, *instead;
    long begin, end, raised, otherwise;
} Around;

/* Whether *asks* returns something false; an error of it is none of the user's. */
static int
is_otherwise(PyObject *asks)
{
    if (asks == Py_None)
        return 0;
    PyObject *answer = PyObject_CallNoArgs(asks);
    int truth = answer ? PyObject_IsTrue(answer) : 1;
    Py_XDECREF(answer);
    if (truth < 0 || answer == NULL)
        PyErr_Clear();
    return truth == 0;
}

static PyObject *
around_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Around *around = (Around *)self;
    Tape *tape = around->tape;
    PyObject *result;
    if (around->instead != Py_None) {
        PyObject *instead = Py_NewRef(around->instead);
        result = PyObject_Vectorcall(instead, args, nargsf, names);
        Py_DECREF(instead);
        return result;
    }
    if (PyThread_get_thread_ident() != tape->owner)
        return PyObject_Vectorcall(around->original, args, nargsf, names);
    Py_INCREF(self); /* Detaching may drop the last reference meanwhile. */
    tape_put(tape, is_otherwise(around->asks) ? around->otherwise : around->begin);
    result = PyObject_Vectorcall(around->original, args, nargsf, names);
    if (result != NULL && around->tells != Py_None) {
        PyObject *ours = PyObject_CallOneArg(around->tells, result);
        if (ours == NULL)
            Py_CLEAR(result); /* It does not raise; but the user may interrupt it. */
        Py_XDECREF(ours);
    }
    if (tape->owner == PyThread_get_thread_ident()) /* It may have been turned off. */
        tape_put(tape, result ? around->end : around->raised);
    Py_DECREF(self);
    return result;
}

static PyObject *
around_get(PyObject *self, PyObject *instance, PyObject *Py_UNUSED(type))
{
    if (instance == NULL || instance == Py_None)
        return Py_NewRef(self);
    return PyMethod_New(self, instance);
}

static PyObject *
around_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tape", "original", "begin", "end", "raised", "asks", "otherwise",
                            "tells", NULL};
    PyObject *tape, *original, *asks = Py_None, *tells = Py_None;
    long begin, end, raised, otherwise = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!Olll|OlO", names, &Tape_Type, &tape,
                                     &original, &begin, &end, &raised, &asks, &otherwise, &tells))
        return NULL;
    Around *around = (Around *)type->tp_alloc(type, 0);
    if (around == NULL)
        return NULL;
    around->vectorcall = around_call;
    around->tape = (Tape *)Py_NewRef(tape);
    around->original = Py_NewRef(original);
    around->asks = Py_NewRef(asks);
    around->tells = Py_NewRef(tells);
    around->instead = Py_NewRef(Py_None);
    around->begin = begin;
    around->end = end;
    around->raised = raised;
    around->otherwise = otherwise;
    return (PyObject *)around;
}

static int
around_traverse(Around *around, visitproc visit, void *arg)
{
    Py_VISIT(around->dict);
    Py_VISIT(around->tape);
    Py_VISIT(around->original);
    Py_VISIT(around->asks);
    Py_VISIT(around->tells);
    Py_VISIT(around->instead);
    return 0;
}

static int
around_clear(Around *around)
{
    /* What a call needs stays: the cycles run through these. */
    Py_CLEAR(around->dict);
    Py_SETREF(around->asks, Py_NewRef(Py_None));
    Py_SETREF(around->tells, Py_NewRef(Py_None));
    Py_SETREF(around->instead, Py_NewRef(Py_None));
    return 0;
}

static void
around_dealloc(Around *around)
{
    PyObject_GC_UnTrack(around);
    Py_XDECREF(around->dict);
    Py_XDECREF(around->tape);
    Py_XDECREF(around->original);
    Py_XDECREF(around->asks);
    Py_XDECREF(around->tells);
    Py_XDECREF(around->instead);
    Py_TYPE(around)->tp_free((PyObject *)around);
}

static PyMemberDef around_members[] = {
    {"instead", T_OBJECT_EX, offsetof(Around, instead), 0, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Around, dict), READONLY, NULL},
    {NULL},
};

static PyGetSetDef around_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyTypeObject Around_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "rank_probe._tape.Around",
    .tp_basicsize = sizeof(Around),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = around_new,
    .tp_traverse = (traverseproc)around_traverse,
    .tp_clear = (inquiry)around_clear,
    .tp_dealloc = (destructor)around_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Around, vectorcall),
    .tp_dictoffset = offsetof(Around, dict),
    .tp_descr_get = around_get,
    .tp_members = around_members,
    .tp_getset = around_getset,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rank_probe._tape",
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__tape(void)
{
    if (PyType_Ready(&Tape_Type) < 0 || PyType_Ready(&Around_Type) < 0)
        return NULL;
    PyObject *self = PyModule_Create(&module);
    if (self != NULL && (PyModule_AddObjectRef(self, "Tape", (PyObject *)&Tape_Type) < 0 ||
                         PyModule_AddObjectRef(self, "Around", (PyObject *)&Around_Type) < 0))
        Py_CLEAR(self);
    return self;
}
