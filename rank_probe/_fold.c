/* The fold, for loops in which a microsecond counts. `read` is python_read of measure/interpreter.py,
 * Ledger is PythonLedger of measure/ledger.py: those say what each does, and serve where this is not
 * built. */

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

/* A number and a time: an event or a boundary. */
typedef struct {
    int64_t number, at;
} Pair;

/* read(node, events): the node after the events, and their boundaries. */
static PyObject *
read_events(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *node, *events;
    if (!PyArg_ParseTuple(args, "O!S", &PyDict_Type, &node, &events))
        return NULL;
    const Pair *event = (const Pair *)PyBytes_AS_STRING(events);
    Py_ssize_t count = PyBytes_GET_SIZE(events) / sizeof(Pair), kept = 0;
    PyObject *boundaries = PyBytes_FromStringAndSize(NULL, count * sizeof(Pair));
    if (boundaries == NULL)
        return NULL;
    Pair *boundary = (Pair *)PyBytes_AS_STRING(boundaries);
    Py_INCREF(node);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *code = PyLong_FromLongLong(event[i].number);
        PyObject *found = code ? PyDict_GetItemWithError(node, code) : NULL;
        if (found != NULL)
            Py_INCREF(found);
        else if (!PyErr_Occurred())
            found = PyObject_GetItem(node, code);
        Py_XDECREF(code);
        if (found == NULL)
            goto failed;
        Py_SETREF(node, Py_NewRef(PyTuple_GET_ITEM(found, 0)));
        PyObject *mark = PyTuple_GET_ITEM(found, 1);
        if (mark != Py_None)
            boundary[kept++] = (Pair){PyLong_AsLongLong(mark), event[i].at};
        Py_DECREF(found);
    }
    if (_PyBytes_Resize(&boundaries, kept * sizeof(Pair)) < 0)
        goto failed;
    return Py_BuildValue("(NN)", node, boundaries);
failed:
    Py_DECREF(node);
    Py_XDECREF(boundaries);
    return NULL;
}

/* follow([node, tell], code): move the node on, and tell of the mark of a boundary there. */
static PyObject *
follow(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "a list and a code are expected");
    PyObject *found = PyObject_GetItem(PyList_GET_ITEM(args[0], 0), args[1]);
    if (found == NULL)
        return NULL;
    PyObject *mark = PyTuple_GET_ITEM(found, 1), *told = Py_NewRef(Py_None);
    PyList_SetItem(args[0], 0, Py_NewRef(PyTuple_GET_ITEM(found, 0)));
    if (mark != Py_None)
        Py_SETREF(told, PyObject_CallOneArg(PyList_GET_ITEM(args[0], 1), mark));
    Py_DECREF(found);
    return told;
}

typedef struct {
    PyObject_HEAD
    long stage;
    int is_released;
    int64_t completed, since, release_time;
    int64_t nanoseconds[STAGES], at_release[STAGES], committed[STAGES];
    long long steps;
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

/* Commit a step, and append it to whole. */
static int
ledger_commit(Ledger *ledger, int64_t now, PyObject *whole)
{
    int64_t spent[STAGES], ended = ledger->is_released ? ledger->release_time : now;
    int64_t *after = ledger->is_released ? ledger->at_release : ledger->nanoseconds;
    for (Py_ssize_t i = 0; i < STAGES; i++)
        spent[i] = after[i] - ledger->committed[i];
    memcpy(ledger->committed, after, sizeof(ledger->committed));
    ledger->is_released = 0;
    ledger->steps++;
    ledger->completed = now;
    PyObject *step = Py_BuildValue("(LN)", (long long)ended, as_tuple(spent));
    int failed = step == NULL ? -1 : PyList_Append(whole, step);
    Py_XDECREF(step);
    return failed;
}

static int
add_up(Ledger *ledger, const Pair *boundary, Py_ssize_t count, PyObject *whole, PyObject *settling)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t mark = boundary[i].number, now = boundary[i].at;
        if ((mark & STAGE_BITS) >= STAGES) {
            PyErr_Format(PyExc_IndexError, "no such stage: %d", (int)(mark & STAGE_BITS));
            return -1;
        }
        ledger->nanoseconds[ledger->stage] += now - ledger->since;
        ledger->since = now;
        ledger->stage = mark & STAGE_BITS;
        if (mark & BEGIN) {
            memcpy(ledger->nanoseconds, ledger->committed, sizeof(ledger->committed));
            ledger->is_released = 0;
        }
        if (mark & RELEASE) {
            memcpy(ledger->at_release, ledger->nanoseconds, sizeof(ledger->at_release));
            ledger->release_time = now;
            ledger->is_released = 1;
        }
        if (mark & COMPLETE && ledger_commit(ledger, now, whole) < 0)
            return -1;
        if (mark & SETTLES) {
            PyObject *settles = PyLong_FromLongLong(mark);
            int failed = settles == NULL ? -1 : PyList_Append(settling, settles);
            Py_XDECREF(settles);
            if (failed < 0)
                return -1;
        }
    }
    return 0;
}

static PyObject *
ledger_add(Ledger *ledger, PyObject *boundaries)
{
    if (!PyBytes_Check(boundaries))
        return PyErr_Format(PyExc_TypeError, "boundaries must be bytes");
    const Pair *boundary = (const Pair *)PyBytes_AS_STRING(boundaries);
    Py_ssize_t count = PyBytes_GET_SIZE(boundaries) / sizeof(Pair);
    PyObject *whole = PyList_New(0), *settling = PyList_New(0);
    if (whole != NULL && settling != NULL && add_up(ledger, boundary, count, whole, settling) == 0)
        return Py_BuildValue("(NN)", whole, settling);
    Py_XDECREF(whole);
    Py_XDECREF(settling);
    return NULL;
}

static PyObject *
ledger_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"since", NULL};
    long long since;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L", names, &since))
        return NULL;
    Ledger *ledger = (Ledger *)type->tp_alloc(type, 0);
    if (ledger == NULL)
        return NULL;
    ledger->since = since;
    ledger->stage = OTHER;
    return (PyObject *)ledger;
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

static PyObject *
ledger_last_completed(Ledger *ledger, void *Py_UNUSED(closure))
{
    return ledger->steps ? PyLong_FromLongLong(ledger->completed) : Py_NewRef(Py_None);
}

static PyMethodDef ledger_methods[] = {
    {"add", (PyCFunction)ledger_add, METH_O, NULL},
    {NULL},
};

static PyMemberDef ledger_members[] = {
    {"since", T_LONGLONG, offsetof(Ledger, since), READONLY, NULL},
    {"steps", T_LONGLONG, offsetof(Ledger, steps), READONLY, NULL},
    {NULL},
};

static PyGetSetDef ledger_getset[] = {
    {"nanoseconds", (getter)ledger_nanoseconds, NULL, NULL, NULL},
    {"committed", (getter)ledger_committed, NULL, NULL, NULL},
    {"last_completed", (getter)ledger_last_completed, NULL, NULL, NULL},
    {NULL},
};

static PyTypeObject Ledger_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "rank_probe._fold.Ledger",
    .tp_basicsize = sizeof(Ledger),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = ledger_new,
    .tp_methods = ledger_methods,
    .tp_members = ledger_members,
    .tp_getset = ledger_getset,
};

static PyMethodDef functions[] = {
    {"read", read_events, METH_VARARGS, NULL},
    {"follow", (PyCFunction)(void *)follow, METH_FASTCALL, NULL},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rank_probe._fold",
    .m_size = -1,
    .m_methods = functions,
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
