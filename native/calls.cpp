#include "calls.h"

#include <nanobind/stl/vector.h>

#include <memory>
#include <new>
#include <unordered_map>

#include "numbering.h"
#include "slots.h"
#include "small.h"
#include "templates.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jitbatch {
namespace {

// What is known of Python's classes: set once, by `bind_recorder`.
struct Python {
  PyTypeObject *value = nullptr, *recorder = nullptr, *builder = nullptr, *calls = nullptr;
  Py_ssize_t trace, aval, aval_id, source, row, form; // of a value
  Py_ssize_t caller, found, scope;                    // of a recorder
  Py_ssize_t kinds, counts, operands, node_outputs;   // of a builder
  PyObject *node, *trace_state, *is_named_tuple, *replay, *further_rows;
  PyObject *call_name, *wrapped_name, *key_name, *value_name;
  PyTypeObject *operation = nullptr;
  Py_ssize_t bare_outputs; // of a builder
  PyObject *add;           // adds values in Python
};
Python python;

using Objects = Small<PyObject *, 48>;

// Words

enum Tag : Word { ROW, SHARED, TUPLE, NAMED_TUPLE, LIST, DICT, NONE, NAMES };

constexpr int deepest = 16; // containers in containers; deeper ones are Python's
constexpr Py_ssize_t longest = 1 << 12;

Word tagged(Word number, Tag tag) { return number * 8 + tag; }
Word address(PyObject *object) { return static_cast<Word>(reinterpret_cast<std::intptr_t>(object)); }

// The calls of one recording.
class Calls {
public:
  Calls(nb::handle recorder, nb::handle builder, nb::handle hidden, nb::handle exposed, nb::handle composites,
        nb::handle templates, nb::handle sites)
      : recorder(nb::borrow(recorder)), builder(nb::borrow(builder)), hidden(nb::borrow(hidden)),
        exposed(nb::borrow(exposed)), composites(nb::borrow(composites)), templates(nb::borrow(templates)),
        sites(nb::borrow(sites)) {
    if (!python.recorder || Py_TYPE(recorder.ptr()) != python.recorder || Py_TYPE(builder.ptr()) != python.builder)
      throw nb::type_error("a recorder and its builder");
    if (!PyDict_CheckExact(hidden.ptr()) || !PyList_CheckExact(exposed.ptr()) || !PySet_Check(composites.ptr()) ||
        !nb::isinstance<Templates>(templates))
      throw nb::type_error("hidden and exposed rows, keys of composite functions, and templates");
  }

  void share(nb::handle argument, Word form) { shared[argument.ptr()] = {nb::borrow(argument), form}; }

  nb::object recorder, builder, hidden, exposed, composites, templates, sites;
  std::unordered_map<PyObject *, std::pair<nb::object, Word>> shared; // the forms of arguments without a row
  Py_ssize_t count = 0;                                               // calls that Python's code did not see
  // The further rows of templates that were replayed, which are kept: no other template gets such an address.
  std::unordered_map<const Template *, std::pair<std::shared_ptr<const Template>, std::vector<nb::object>>> further;
};

// The words of a call, and the rows of its arguments. It holds no references: no code of Python's runs while it is made
// and used.
class Description {
public:
  Description(const Calls &calls, Word function) : calls_(calls) { words.push_back(function); }

  bool add_call(PyObject *args, PyObject *kwargs) {
    words.push_back(tagged(PyTuple_GET_SIZE(args), NAMES));
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(args); ++at)
      if (!add(PyTuple_GET_ITEM(args, at), 0))
        return false;
    PyObject *name, *value;
    for (Py_ssize_t at = 0; kwargs && PyDict_Next(kwargs, &at, &name, &value);) {
      keep(name);
      if (!add(value, 0))
        return false;
    }
    return true;
  }

  Words all_words() const { return {words.begin(), words.size()}; }

  // References to what words have the addresses of.
  std::vector<nb::object> all_kept() const {
    std::vector<nb::object> objects;
    for (PyObject *object : kept)
      objects.push_back(nb::borrow(object));
    return objects;
  }

  // Whether JAX takes all tuples apart item by item. Other classes than named tuples have ways of their own.
  bool has_plain_tuples() const {
    std::vector<nb::object> own;
    for (PyObject *tuple : tuples)
      own.push_back(nb::borrow(tuple));
    for (const nb::object &tuple : own)
      if (!nb::cast<bool>(nb::handle(python.is_named_tuple)(tuple.type(), tuple)))
        return false;
    return true;
  }

  Objects rows; // Python's integers, or None for a shared value

private:
  void keep(PyObject *object) {
    words.push_back(address(object));
    kept.push_back(object);
  }

  bool add(PyObject *arg, int depth) {
    PyTypeObject *type = Py_TYPE(arg);
    if (type == python.value)
      return add_value(arg);
    if (!calls_.shared.empty()) {
      if (const auto found = calls_.shared.find(arg); found != calls_.shared.end()) {
        words.push_back(tagged(found->second.second, SHARED));
        return true;
      }
    }
    if (arg == Py_None) {
      words.push_back(NONE);
      return true;
    }
    if (depth > deepest)
      return false;
    if (PyTuple_Check(arg))
      return add_tuple(arg, type, depth);
    if (type == &PyList_Type && PyList_GET_SIZE(arg) <= longest) {
      words.push_back(tagged(PyList_GET_SIZE(arg), LIST));
      for (Py_ssize_t at = 0; at < PyList_GET_SIZE(arg); ++at)
        if (!add(PyList_GET_ITEM(arg, at), depth + 1))
          return false;
      return true;
    }
    return type == &PyDict_Type && add_dict(arg, depth);
  }

  bool add_value(PyObject *value) {
    PyObject *form = slot(value, python.form), *row = slot(value, python.row);
    if (!form || !row || !PyLong_CheckExact(form) || slot(value, python.trace) != calls_.recorder.ptr())
      return false;
    const Word number = PyLong_AsLongLong(form);
    if (number == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      return false;
    }
    words.push_back(tagged(number, ROW));
    rows.push_back(row);
    return true;
  }

  bool add_tuple(PyObject *arg, PyTypeObject *type, int depth) {
    const Py_ssize_t size = PyTuple_GET_SIZE(arg);
    if (size > longest)
      return false;
    words.push_back(tagged(size, type == &PyTuple_Type ? TUPLE : NAMED_TUPLE));
    if (type != &PyTuple_Type) {
      keep(reinterpret_cast<PyObject *>(type));
      tuples.push_back(arg);
    }
    for (Py_ssize_t at = 0; at < size; ++at)
      if (!add(PyTuple_GET_ITEM(arg, at), depth + 1))
        return false;
    return true;
  }

  // Leaves of a dict come in the order of its keys, as JAX sorts them.
  bool add_dict(PyObject *arg, int depth) {
    Objects keys, values;
    words.push_back(tagged(PyDict_GET_SIZE(arg), DICT));
    if (PyDict_GET_SIZE(arg) > 64)
      return false;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(arg, &at, &key, &value);) {
      if (!PyUnicode_CheckExact(key))
        return false;
      keep(key);
      std::size_t place = keys.size();
      keys.push_back(key);
      values.push_back(value);
      for (; place > 0 && PyUnicode_Compare(keys[place - 1], key) > 0; --place) {
        keys[place] = keys[place - 1];
        values[place] = values[place - 1];
      }
      keys[place] = key;
      values[place] = value;
    }
    for (PyObject *own : values)
      if (!add(own, depth + 1))
        return false;
    return true;
  }

  const Calls &calls_;
  Small<Word, 64> words;
  Small<PyObject *, 16> kept;   // what `words` have the addresses of
  Small<PyObject *, 16> tuples; // of classes of their own
};

// Replaying

PyObject *list_slot(PyObject *object, Py_ssize_t place) {
  PyObject *list = slot(object, place);
  if (!list || !PyList_CheckExact(list))
    throw nb::type_error("the lists of a recording are lists");
  return list;
}

void append(PyObject *list, PyObject *item) {
  if (PyList_Append(list, item))
    throw nb::python_error();
}

nb::object new_value(const Calls &calls, const Template::Result &result, nb::handle row) {
  PyObject *value = python.value->tp_alloc(python.value, 0);
  if (!value)
    throw nb::python_error();
  slot(value, python.trace) = nb::object(calls.recorder).release().ptr();
  slot(value, python.aval) = nb::object(result.aval).release().ptr();
  slot(value, python.aval_id) = nb::object(result.aval_id).release().ptr();
  slot(value, python.form) = nb::object(result.aval_id).release().ptr();
  slot(value, python.source) = Py_NewRef(python.node);
  slot(value, python.row) = row.inc_ref().ptr();
  return nb::steal(value);
}

nb::object result_of(const Calls &calls, const Template &found, const std::vector<nb::object> &made) {
  const auto &results = found.results;
  if (found.make.is_none())
    return new_value(calls, results[0], made[results[0].place]);
  if (found.tuple.is_none()) {
    nb::list values;
    for (const auto &result : results)
      values.append(new_value(calls, result, made[result.place]));
    return found.make(values);
  }
  auto *type = reinterpret_cast<PyTypeObject *>(found.tuple.ptr());
  const auto size = static_cast<Py_ssize_t>(results.size());
  nb::object tuple = nb::steal(type == &PyTuple_Type ? PyTuple_New(size) : type->tp_alloc(type, size));
  if (!tuple.is_valid())
    throw nb::python_error();
  for (Py_ssize_t at = 0; at < size; ++at)
    PyTuple_SET_ITEM(tuple.ptr(), at, new_value(calls, results[at], made[results[at].place]).release().ptr());
  return tuple;
}

// Add the nodes of a template to the graph, and make the result of the call; see `record/replay.py`.
nb::object replay(Calls &calls, const Template &found, const Objects &rows, const std::vector<nb::object> &further) {
  PyObject *builder = calls.builder.ptr(), *operands = list_slot(builder, python.operands);
  PyObject *kinds = list_slot(builder, python.kinds), *counts = list_slot(builder, python.counts);
  PyObject *outputs = slot(builder, python.node_outputs);
  const Py_ssize_t first = outputs ? PyLong_AsSsize_t(outputs) : -1;
  if (first < 0)
    throw nb::type_error("the number of outputs is an integer");
  std::vector<nb::object> made;
  made.reserve(found.output_count);
  for (std::size_t output = 0; output < found.output_count; ++output)
    made.push_back(nb::steal(PyLong_FromSsize_t(first + static_cast<Py_ssize_t>(output))));
  for (const nb::object &kind : found.kinds)
    append(kinds, kind.ptr());
  for (const nb::object &count : found.counts)
    append(counts, count.ptr());
  for (std::size_t place : found.operands) {
    const std::size_t output = place - rows.size(); // if it is no argument
    append(operands, place < rows.size()    ? rows[place]
                     : output < made.size() ? made[output].ptr()
                                            : further[output - made.size()].ptr());
  }
  PyObject *end = PyLong_FromSsize_t(first + static_cast<Py_ssize_t>(found.output_count));
  if (!end)
    throw nb::python_error();
  fill_slot(builder, python.node_outputs, end);
  const int is_in_body = PyObject_IsTrue(slot(calls.recorder.ptr(), python.scope));
  if (is_in_body < 0)
    throw nb::python_error();
  for (const nb::object &row : made)
    if (is_in_body)
      append(calls.exposed.ptr(), row.ptr());
  return result_of(calls, found, made);
}

// Calls

bool are_hidden(const Calls &calls, const Objects &rows) {
  if (!PyDict_GET_SIZE(calls.hidden.ptr()))
    return false;
  for (PyObject *row : rows) {
    const int is_hidden = row == Py_None ? 0 : PyDict_Contains(calls.hidden.ptr(), row);
    if (is_hidden < 0)
      throw nb::python_error();
    if (is_hidden)
      return true;
  }
  return false;
}

bool is_composite(const Calls &calls, nb::handle function) {
  if (!PySet_GET_SIZE(calls.composites.ptr()))
    return false;
  const int found = PySet_Contains(calls.composites.ptr(), nb::getattr(function, python.key_name).ptr());
  if (found < 0)
    throw nb::python_error();
  return found;
}

nb::object call_python(nb::handle recorder, nb::handle function, nb::handle args, nb::handle kwargs) {
  const nb::object wrapped = nb::getattr(function, python.wrapped_name), key = nb::getattr(function, python.key_name);
  const nb::object named = kwargs.is_valid() ? nb::borrow(kwargs) : nb::dict();
  PyObject *result = PyObject_CallMethodObjArgs(recorder.ptr(), python.call_name, wrapped.ptr(), key.ptr(), args.ptr(),
                                                named.ptr(), nullptr);
  if (!result)
    throw nb::python_error();
  return nb::steal(result);
}

// A call on arguments that have a template which Python has to replay.
nb::object replay_in_python(Calls &calls, const Template &found, const Objects &rows, nb::handle args,
                            nb::handle kwargs) {
  nb::list list;
  for (PyObject *row : rows)
    list.append(nb::handle(row));
  const nb::object recorder = calls.recorder, made = found.made;
  return nb::handle(python.replay)(recorder, made, list, args, kwargs.is_valid() ? nb::borrow(kwargs) : nb::dict());
}

// Remember the further rows of a template that Python has replayed: in this recording they stay the same.
void learn_further(Calls &calls, const std::shared_ptr<const Template> &found) {
  if (!found->is_plain || !calls.recorder.is_valid())
    return;
  const nb::object recorder = calls.recorder;
  const nb::object rows = nb::handle(python.further_rows)(recorder, nb::object(found->made.attr("further")));
  std::vector<nb::object> own;
  for (nb::handle row : rows)
    own.push_back(nb::borrow(row));
  check(own.size() == found->further_count, "a template has as many further rows as it says");
  if (calls.recorder.is_valid())
    calls.further.emplace(found.get(), std::pair(found, std::move(own)));
}

// Remember the template that Python found for a call, if it did.
void learn(const Calls &calls, const Description &description, std::vector<nb::object> kept) {
  PyObject *recorder = calls.recorder.ptr();
  const nb::object found = nb::borrow(slot(recorder, python.found));
  if (!found.is_valid() || found.is_none())
    return;
  auto learned = std::make_shared<const Template>(found);
  if (learned->row_count == description.rows.size())
    nb::inst_ptr<Templates>(calls.templates)->learn(description.all_words(), std::move(kept), std::move(learned));
}

nb::object call(Calls &calls, Word number, nb::handle function, nb::handle args, nb::handle kwargs) {
  const nb::object recorder = calls.recorder; // `calls` lets go of it when the recording ends
  if (is_composite(calls, function))
    return call_python(recorder, function, args, kwargs);
  Description description(calls, number);
  if (!description.add_call(args.ptr(), kwargs.ptr()) || are_hidden(calls, description.rows))
    return call_python(recorder, function, args, kwargs);
  const auto found = nb::inst_ptr<Templates>(calls.templates)->find(description.all_words());
  if (found) {
    ++calls.count;
    if (found->is_plain && !found->further_count)
      return replay(calls, *found, description.rows, {});
    if (const auto known = calls.further.find(found.get()); known != calls.further.end())
      return replay(calls, *found, description.rows, known->second.second);
    nb::object result = replay_in_python(calls, *found, description.rows, args, kwargs);
    learn_further(calls, found);
    return result;
  }
  std::vector<nb::object> kept = description.all_kept();
  const bool may_learn = description.has_plain_tuples();
  nb::object result = call_python(recorder, function, args, kwargs);
  if (may_learn && calls.recorder.is_valid())
    learn(calls, description, std::move(kept));
  return result;
}

// Values and bodies

nb::object new_row(const Calls &calls, nb::handle aval, nb::handle aval_id, nb::handle source, Py_ssize_t row) {
  const nb::object value = nb::steal(python.value->tp_alloc(python.value, 0));
  PyObject *number = PyLong_FromSsize_t(row);
  if (!value.is_valid() || !number)
    throw nb::python_error();
  slot(value.ptr(), python.row) = number;
  slot(value.ptr(), python.trace) = Py_NewRef(calls.recorder.ptr());
  slot(value.ptr(), python.aval) = Py_NewRef(aval.ptr());
  slot(value.ptr(), python.aval_id) = Py_NewRef(aval_id.ptr());
  slot(value.ptr(), python.form) = Py_NewRef(aval_id.ptr());
  slot(value.ptr(), python.source) = Py_NewRef(source.ptr());
  return value;
}

// Rows that a sample gives; see `given_rows` in `record/values.py`.
nb::list given_rows(const Calls &calls, nb::iterable given, Py_ssize_t before) {
  if (!calls.recorder.is_valid())
    throw std::runtime_error("the recording has ended");
  nb::list values;
  for (nb::handle pair : given) {
    if (!PyTuple_Check(pair.ptr()) || PyTuple_GET_SIZE(pair.ptr()) != 2)
      throw nb::type_error("pairs of an aval and a source");
    PyObject *described = PyTuple_GET_ITEM(pair.ptr(), 0), *source = PyTuple_GET_ITEM(pair.ptr(), 1);
    if (!PyTuple_Check(described) || PyTuple_GET_SIZE(described) != 2)
      throw nb::type_error("an aval with its id");
    values.append(new_row(calls, PyTuple_GET_ITEM(described, 0), PyTuple_GET_ITEM(described, 1), source, -++before));
  }
  return values;
}

// The rows of a value, or of named tuples of values. False if there is anything else.
bool add_rows(nb::handle result, Objects &rows, int depth) {
  if (Py_TYPE(result.ptr()) == python.value) {
    PyObject *row = slot(result.ptr(), python.row);
    if (row)
      rows.push_back(row);
    return row;
  }
  if (!PyTuple_CheckExact(result.ptr()) &&
      !(PyTuple_Check(result.ptr()) && nb::cast<bool>(nb::handle(python.is_named_tuple)(result.type(), result))))
    return result.is_none();
  if (depth > deepest)
    return false;
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(result.ptr()); ++at)
    if (!add_rows(PyTuple_GET_ITEM(result.ptr(), at), rows, depth + 1))
      return false;
  return true;
}

// Hide what a body that ran on its arguments has seen, but for its result; see `Leaks.end_body`. False if Python has
// to.
bool end_body(const Calls &calls, nb::handle function, Py_ssize_t first, nb::handle result, Py_ssize_t scope) {
  Objects returned;
  PyObject *exposed = calls.exposed.ptr();
  if (!add_rows(result, returned, 0) || returned.size() > 8 || first < 0)
    return false;
  Py_ssize_t kept = first;
  for (Py_ssize_t at = first; at < PyList_GET_SIZE(exposed); ++at) {
    const nb::object row = nb::borrow(PyList_GET_ITEM(exposed, at));
    bool is_returned = row.is_none();
    for (PyObject *other : returned)
      is_returned = is_returned || PyObject_RichCompareBool(row.ptr(), other, Py_EQ) == 1;
    if (!is_returned) {
      if (PyDict_SetItem(calls.hidden.ptr(), row.ptr(), function.ptr()))
        throw nb::python_error();
    } else if (scope && !row.is_none()) {
      if (PyList_SetItem(exposed, kept++, nb::object(row).release().ptr()))
        throw nb::python_error();
    }
  }
  if (PyList_SetSlice(exposed, kept, PyList_GET_SIZE(exposed), nullptr))
    throw nb::python_error();
  return true;
}

// Running totals

nb::object part(nb::handle object, const char *name) { return nb::getattr(object, name); }

// The calls of a recording that is current and that the core records; null for any other.
Calls *current_calls(PyObject *trace) {
  if (!trace || Py_TYPE(trace) != python.recorder)
    return nullptr;
  PyObject *caller = slot(trace, python.caller);
  if (!caller || Py_TYPE(caller) != python.calls || !nb::inst_ready(caller))
    return nullptr;
  Calls *calls = nb::inst_ptr<Calls>(caller);
  const nb::object current = nb::getattr(nb::handle(python.trace_state), python.value_name);
  return calls->recorder.is_valid() && current.ptr() == trace ? calls : nullptr;
}

// Whether an operation is the running total that made a value, at the place in the code where this runs.
bool is_total(const Calls &calls, nb::handle operation, nb::handle value) {
  const nb::object last = part(calls.sites, "_last"), totals = part(operation, "totals");
  PyFrameObject *frame = PyEval_GetFrame();
  if (!frame || !PyTuple_CheckExact(last.ptr()) || PyTuple_GET_SIZE(last.ptr()) != 3 ||
      !PyList_CheckExact(totals.ptr()) || !PyList_GET_SIZE(totals.ptr()))
    return false;
  PyObject *instruction = PyTuple_GET_ITEM(last.ptr(), 1);
  if (PyTuple_GET_ITEM(last.ptr(), 0) != reinterpret_cast<PyObject *>(frame) || !PyLong_CheckExact(instruction) ||
      PyLong_AsLong(instruction) != PyFrame_GetLasti(frame) ||
      PyTuple_GET_ITEM(last.ptr(), 2) != part(operation, "site").ptr())
    return false;
  const nb::object outputs = part(operation, "outputs");
  return PyList_CheckExact(outputs.ptr()) && PyList_GET_SIZE(outputs.ptr()) == 1 &&
         PyList_GET_ITEM(outputs.ptr(), 0) == value.ptr() && PyList_CheckExact(part(operation, "inputs").ptr()) &&
         part(operation, "scope").equal(nb::handle(slot(calls.recorder.ptr(), python.scope)));
}

// `left + right`, where `left` is what the addition in this place of the code made before: that operation has one term
// more. See `OperationRecorder.arithmetic`, and `record/running_totals.py`. Nothing if Python has to add.
nb::object continue_total(PyObject *left, PyObject *right) {
  if (Py_TYPE(left) != python.value || Py_TYPE(right) != python.value ||
      slot(left, python.trace) != slot(right, python.trace))
    return {};
  PyObject *source = slot(left, python.source), *aval_id = slot(left, python.aval_id);
  PyObject *row = slot(left, python.row), *other = slot(right, python.aval_id), *term = slot(right, python.row);
  if (!source || Py_TYPE(source) != python.operation || !row || row == Py_None || !term || !aval_id || !other ||
      !slot(left, python.aval) || PyObject_RichCompareBool(aval_id, other, Py_EQ) != 1)
    return {};
  Calls *calls = current_calls(slot(left, python.trace));
  if (!calls || !is_total(*calls, source, left))
    return {};
  Objects rows;
  rows.push_back(row);
  rows.push_back(term);
  PyObject *builder = calls->builder.ptr(), *count = slot(builder, python.bare_outputs);
  const Py_ssize_t made = count ? PyLong_AsSsize_t(count) : -1;
  if (made < 0 || are_hidden(*calls, rows))
    return {};
  const nb::object operation = nb::borrow(source);
  const nb::object result = nb::steal(python.value->tp_alloc(python.value, 0));
  if (!result.is_valid())
    throw nb::python_error();
  const nb::object own_row = nb::steal(PyLong_FromLongLong(bare + made));
  slot(result.ptr(), python.trace) = Py_NewRef(slot(left, python.trace));
  slot(result.ptr(), python.aval) = Py_NewRef(slot(left, python.aval));
  slot(result.ptr(), python.aval_id) = Py_NewRef(aval_id);
  slot(result.ptr(), python.form) = Py_NewRef(aval_id);
  slot(result.ptr(), python.source) = Py_NewRef(source);
  slot(result.ptr(), python.row) = Py_NewRef(own_row.ptr());
  fill_slot(builder, python.bare_outputs, PyLong_FromSsize_t(made + 1));
  append(part(operation, "inputs").ptr(), right);
  append(part(operation, "totals").ptr(), nb::make_tuple(nb::handle(left), part(operation, "at")).ptr());
  nb::list outputs;
  outputs.append(result);
  nb::setattr(operation, "outputs", outputs);
  nb::setattr(operation, "at", nb::int_(PyList_GET_SIZE(list_slot(builder, python.kinds))));
  append(part(calls->recorder, "ops").ptr(), source);
  nb::setattr(calls->sites, "_callee", nb::none());
  if (PyObject_IsTrue(slot(calls->recorder.ptr(), python.scope)) == 1)
    append(calls->exposed.ptr(), own_row.ptr());
  return result;
}

// What a function makes for Python, with the error indicator set where it raises.
template <typename Function> PyObject *guarded(Function function) {
  try {
    return function().release().ptr();
  } catch (nb::python_error &error) {
    error.restore();
  } catch (const std::bad_alloc &) {
    PyErr_NoMemory();
  } catch (const std::exception &error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyObject *add_values(PyObject *left, PyObject *right) {
  return guarded([&] {
    nb::object total = continue_total(left, right);
    if (!total.is_valid())
      total = nb::steal(PyObject_CallFunctionObjArgs(python.add, left, right, nullptr));
    if (!total.is_valid())
      throw nb::python_error();
    return total;
  });
}

PyMethodDef add_method = {"__add__", add_values, METH_O, nullptr};

// Decorated functions

struct Decorated {
  PyObject_HEAD Word number; // differs from those of all other functions
};

PyObject *make_decorated(PyTypeObject *type, PyObject *, PyObject *) {
  static Word last = 0;
  PyObject *self = type->tp_alloc(type, 0);
  if (self)
    reinterpret_cast<Decorated *>(self)->number = ++last;
  return self;
}

nb::object call_in_trace(nb::handle trace, nb::handle self, nb::handle args, nb::handle kwargs) {
  if (Py_TYPE(trace.ptr()) != python.recorder) {
    const nb::object wrapped = nb::getattr(self, python.wrapped_name);
    PyObject *result = PyObject_Call(wrapped.ptr(), args.ptr(), kwargs.ptr());
    if (!result)
      throw nb::python_error();
    return nb::steal(result);
  }
  const nb::object caller = nb::borrow(slot(trace.ptr(), python.caller));
  if (!caller.is_valid() || Py_TYPE(caller.ptr()) != python.calls || !nb::inst_ready(caller) ||
      !nb::inst_ptr<Calls>(caller)->recorder.is_valid())
    return call_python(trace, self, args, kwargs);
  return call(*nb::inst_ptr<Calls>(caller), reinterpret_cast<Decorated *>(self.ptr())->number, self, args, kwargs);
}

PyObject *call_decorated(PyObject *self, PyObject *args, PyObject *kwargs) {
  return guarded([&] {
    if (!python.recorder)
      throw std::runtime_error("the core knows no recorder");
    const nb::object trace = nb::getattr(nb::handle(python.trace_state), python.value_name);
    return call_in_trace(trace, self, args, kwargs);
  });
}

nb::object make_decorated_type() {
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void *>(make_decorated)},
                                {Py_tp_call, reinterpret_cast<void *>(call_decorated)},
                                {0, nullptr}};
  static PyType_Spec spec = {"jitbatch.core.native.Decorated", sizeof(Decorated), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  return nb::steal(PyType_FromSpec(&spec));
}

// Garbage

int traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self))
    return 0;
  const Calls &calls = *nb::inst_ptr<Calls>(self);
  for (const nb::object *held : {&calls.recorder, &calls.builder, &calls.hidden, &calls.exposed, &calls.composites,
                                 &calls.templates, &calls.sites})
    Py_VISIT(held->ptr());
  for (const auto &[key, argument] : calls.shared)
    Py_VISIT(argument.first.ptr());
  return 0;
}

// Let go of everything; calls are Python's from then on.
void release(Calls &calls) {
  const auto shared = std::move(calls.shared);
  calls.shared.clear();
  const auto further = std::move(calls.further);
  calls.further.clear();
  const nb::object recorder = std::move(calls.recorder);
}

int clear(PyObject *self) {
  if (nb::inst_ready(self))
    release(*nb::inst_ptr<Calls>(self));
  return 0;
}

PyType_Slot calls_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void *>(traverse)}, {Py_tp_clear, reinterpret_cast<void *>(clear)}, {0, nullptr}};

void bind_recorder(nb::type_object value, nb::type_object recorder, nb::type_object builder, nb::type_object operation,
                   nb::object node, nb::object trace_state, nb::object is_named_tuple, nb::object replay,
                   nb::object further_rows) {
  Python own = python;
  own.trace = slot_of(value, "_trace");
  own.aval = slot_of(value, "aval");
  own.aval_id = slot_of(value, "aval_id");
  own.source = slot_of(value, "source");
  own.row = slot_of(value, "row");
  own.form = slot_of(value, "form");
  own.caller = slot_of(recorder, "caller");
  own.found = slot_of(recorder, "found");
  own.scope = slot_of(recorder, "scope");
  own.kinds = slot_of(builder, "kinds");
  own.counts = slot_of(builder, "counts");
  own.operands = slot_of(builder, "operands");
  own.node_outputs = slot_of(builder, "node_outputs");
  own.bare_outputs = slot_of(builder, "bare_outputs");
  const nb::object add = nb::getattr(value, "__add__");
  if (Py_TYPE(add.ptr()) != &PyMethodDescr_Type) { // and is not bound yet
    own.add = nb::object(add).release().ptr();
    PyObject *method = PyDescr_NewMethod(reinterpret_cast<PyTypeObject *>(value.ptr()), &add_method);
    if (!method)
      throw nb::python_error();
    nb::setattr(value, "__add__", nb::steal(method));
  }
  own.operation = reinterpret_cast<PyTypeObject *>(operation.release().ptr());
  own.call_name = PyUnicode_InternFromString("call");
  own.wrapped_name = PyUnicode_InternFromString("__wrapped__");
  own.key_name = PyUnicode_InternFromString("_key");
  own.value_name = PyUnicode_InternFromString("value");
  own.value = reinterpret_cast<PyTypeObject *>(value.release().ptr()); // classes live as long as the interpreter
  own.recorder = reinterpret_cast<PyTypeObject *>(recorder.release().ptr());
  own.builder = reinterpret_cast<PyTypeObject *>(builder.release().ptr());
  own.node = node.release().ptr();
  own.trace_state = trace_state.release().ptr();
  own.is_named_tuple = is_named_tuple.release().ptr();
  own.replay = replay.release().ptr();
  own.further_rows = further_rows.release().ptr();
  python = own;
}

} // namespace

void add_calls(nb::module_ &m) {
  nb::class_<Templates>(m, "Templates").def(nb::init<>()).def("__len__", &Templates::size);
  const auto calls =
      nb::class_<Calls>(m, "Calls", nb::type_slots(calls_slots))
          .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle>())
          .def_ro("count", &Calls::count)
          .def("share", &Calls::share)
          .def("given_rows", given_rows)
          .def("end_body", end_body, "function"_a, "first"_a, "result"_a.none(), "scope"_a)
          .def("release", release);
  python.calls = reinterpret_cast<PyTypeObject *>(calls.ptr());
  m.def("bind_recorder", bind_recorder);
  m.attr("Decorated") = make_decorated_type();
}

} // namespace jitbatch
