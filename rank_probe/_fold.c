/* The ledger, for loops in which a microsecond counts: see PythonLedger in measure/ledger.py, which
 * says what it does, and serves where this is not built. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdint.h>

/* See measure/boundaries.py. */
#define STAGE_BITS 15
#define BEGIN (1 << 4)
#define RELEASE (1 << 5)
#define COMPLETE (1 << 6)
#define SETTLES (1 << 7 | 1 << 8 | 1 << 9 | 1 << 10)

/* See wire/stages.py. */
#define STAGES 10
#define OTHER 1
#define SYNC 9

typedef struct {
    PyObject_HEAD
    PyObject *on_step, *on_mark, *last_completed;
    long stage;
    int is_released;
    int64_t since, release_time, begun_at, committed_until;
    int64_t nanoseconds[STAGES], at_release[STAGES], committed[STAGES];
    long long steps;
    double busy_seconds_squared;
} Ledger;

static PyObject *
as_tuple(const int64_t *numbers)
{
    PyObject *tuple = PyTuple_New(STAGES);
    for (Py_ssize_t i = 0; tuple != NULL && i < STAGES; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

static int
ledger_commit(Ledger *ledger, PyObject *completed, int64_t now)
{
    int64_t spent[STAGES], ended = ledger->is_released ? ledger->release_time : now;
    int64_t *after = ledger->is_released ? ledger->at_release : ledger->nanoseconds;
    for (Py_ssize_t i = 0; i < STAGES; i++)
        spent[i] = after[i] - ledger->committed[i];
    memcpy(ledger->committed, after, sizeof(ledger->committed));
    ledger->is_released = 0;
    int64_t until = ended - ledger->begun_at;
    double busy = (double)(until - ledger->committed_until - spent[SYNC]) / 1e9;
    ledger->committed_until = until;
    ledger->steps++;
    ledger->busy_seconds_squared += busy * busy;
    Py_SETREF(ledger->last_completed, Py_NewRef(completed));
    PyObject *result = NULL, *step = as_tuple(spent);
    PyObject *at = PyLong_FromLongLong(ended);
    if (step != NULL && at != NULL)
        result = PyObject_CallFunctionObjArgs(ledger->on_step, at, step, NULL);
    Py_XDECREF(step);
    Py_XDECREF(at);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static PyObject *
ledger_add(Ledger *ledger, PyObject *boundaries)
{
    if (!PyList_Check(boundaries))
        return PyErr_Format(PyExc_TypeError, "boundaries must be a list");
    for (Py_ssize_t i = 0; i + 1 < PyList_GET_SIZE(boundaries); i += 2) {
        PyObject *at = PyList_GET_ITEM(boundaries, i + 1);
        long mark = PyLong_AsLong(PyList_GET_ITEM(boundaries, i));
        int64_t now = PyLong_AsLongLong(at);
        if (PyErr_Occurred())
            return NULL;
        if ((mark & STAGE_BITS) >= STAGES)
            return PyErr_Format(PyExc_IndexError, "no such stage: %ld", mark & STAGE_BITS);
        ledger->nanoseconds[ledger->stage] += now - ledger->since;
        ledger->since = now;
        ledger->stage = mark & STAGE_BITS;
        if (mark & BEGIN) {
            memcpy(ledger->nanoseconds, ledger->committed, sizeof(ledger->committed));
            ledger->begun_at = now - ledger->committed_until;
            ledger->is_released = 0;
        }
        if (mark & RELEASE) {
            memcpy(ledger->at_release, ledger->nanoseconds, sizeof(ledger->at_release));
            ledger->release_time = now;
            ledger->is_released = 1;
        }
        if (mark & COMPLETE && ledger_commit(ledger, at, now) < 0)
            return NULL;
        if (mark & SETTLES) {
            PyObject *result = PyObject_CallOneArg(ledger->on_mark, PyList_GET_ITEM(boundaries, i));
            if (result == NULL)
                return NULL;
            Py_DECREF(result);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *
ledger_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"since", "on_step", "on_mark", NULL};
    long long since;
    PyObject *on_step, *on_mark;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LOO", names, &since, &on_step, &on_mark))
        return NULL;
    Ledger *ledger = (Ledger *)type->tp_alloc(type, 0);
    if (ledger == NULL)
        return NULL;
    ledger->since = since;
    ledger->on_step = Py_NewRef(on_step);
    ledger->on_mark = Py_NewRef(on_mark);
    ledger->last_completed = Py_NewRef(Py_None);
    ledger->stage = OTHER;
    return (PyObject *)ledger;
}

static int
ledger_traverse(Ledger *ledger, visitproc visit, void *arg)
{
    Py_VISIT(ledger->on_step);
    Py_VISIT(ledger->on_mark);
    return 0;
}

static int
ledger_clear(Ledger *ledger)
{
    Py_SETREF(ledger->on_step, Py_NewRef(Py_None));
    Py_SETREF(ledger->on_mark, Py_NewRef(Py_None));
    return 0;
}

static void
ledger_dealloc(Ledger *ledger)
{
    PyObject_GC_UnTrack(ledger);
    Py_XDECREF(ledger->on_step);
    Py_XDECREF(ledger->on_mark);
    Py_XDECREF(ledger->last_completed);
    Py_TYPE(ledger)->tp_free((PyObject *)ledger);
}

static PyObject *
ledger_nanoseconds(Ledger *ledger, void *Py_UNUSED(closure))
{
    return as_tuple(ledger->nanoseconds);
}

static PyObject *
ledger_committed(Ledger *ledger, void *Py_UNUSED(closure))
{
    return as_tuple(ledger->committed);
}

static PyMethodDef ledger_methods[] = {
    {"add", (PyCFunction)ledger_add, METH_O, NULL},
    {NULL},
};

static PyMemberDef ledger_members[] = {
    {"since", T_LONGLONG, offsetof(Ledger, since), READONLY, NULL},
    {"steps", T_LONGLONG, offsetof(Ledger, steps), READONLY, NULL},
    {"busy_seconds_squared", T_DOUBLE, offsetof(Ledger, busy_seconds_squared), READONLY, NULL},
    {"last_completed", T_OBJECT_EX, offsetof(Ledger, last_completed), READONLY, NULL},
    {NULL},
};

static PyGetSetDef ledger_getset[] = {
    {"nanoseconds", (getter)ledger_nanoseconds, NULL, NULL, NULL},
    {"committed", (getter)ledger_committed, NULL, NULL, NULL},
    {NULL},
};

static PyTypeObject Ledger_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "rank_probe._fold.Ledger",
    .tp_basicsize = sizeof(Ledger),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = ledger_new,
    .tp_traverse = (traverseproc)ledger_traverse,
    .tp_clear = (inquiry)ledger_clear,
    .tp_dealloc = (destructor)ledger_dealloc,
    .tp_methods = ledger_methods,
    .tp_members = ledger_members,
    .tp_getset = ledger_getset,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rank_probe._fold",
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__fold(void)
{
    if (PyType_Ready(&Ledger_Type) < 0)
        return NULL;
    PyObject *self = PyModule_Create(&module);
    if (self != NULL && PyModule_AddObjectRef(self, "Ledger", (PyObject *)&Ledger_Type) < 0)
        Py_CLEAR(self);
    return self;
}
