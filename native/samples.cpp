#include "samples.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nb = nanobind;
using namespace nb::literals;

namespace jitbatch {
namespace {

// What is known of Python's classes: set once, by `bind_samples`.
struct Python {
  PyTypeObject *static_value = nullptr, *array = nullptr, *scalar = nullptr;
  PyTypeObject *jax_array = nullptr; // as soon as one was met
  PyObject *interned = nullptr, *is_named_tuple = nullptr, *is_jax_array = nullptr;
  PyObject *interned_name = nullptr, *weak_name = nullptr;
  std::size_t most = 0; // parts of a sample
};
Python python;

// Samples lie all over the memory. What is read soon is fetched while others are read.
inline void prefetch([[maybe_unused]] const void *memory) {
#if defined(__GNUC__)
  __builtin_prefetch(memory);
#endif
}

// Takes samples apart. A sample that it cannot read is not wrong: Python takes it apart then, or says what is wrong.
class Reader {
public:
  // `expected` are the leaves of a sample in the order that JAX gives them; null if they are not known.
  explicit Reader(ReadSamples &read, PyObject *expected = nullptr) : read_(read), expected_(expected) {}

  // Reads a sample with these parts. What it holds may change meanwhile: `Static` values are objects of the user.
  bool add(PyObject *const *parts, std::size_t count) {
    const std::size_t first = read_.leaves.size();
    parts_ = 0;
    size('T', count);
    for (std::size_t part = 0; part < count; ++part)
      if (!add_tree(parts[part]))
        return false;
    if (expected_ && read_.leaves.size() - first != static_cast<std::size_t>(PyList_GET_SIZE(expected_)))
      return false;
    read_.ends.push_back({read_.leaves.size(), read_.encodings.size()});
    return true;
  }

private:
  struct Frame {
    nb::object container; // a tuple or list
    Py_ssize_t next, size;
  };

  bool add_tree(PyObject *root) {
    frames_.clear();
    if (!visit(root))
      return false;
    while (!frames_.empty()) {
      Frame &frame = frames_.back();
      if (frame.next == frame.size) {
        frames_.pop_back();
        continue;
      }
      PyObject *container = frame.container.ptr(), *item;
      if (PyTuple_Check(container)) {
        item = PyTuple_GET_ITEM(container, frame.next++);
      } else {
        if (PyList_GET_SIZE(container) != frame.size)
          return false;
        item = PyList_GET_ITEM(container, frame.next++);
      }
      if (!visit(item))
        return false;
    }
    return true;
  }

  bool visit(PyObject *part) {
    if (++parts_ > python.most)
      return false;
    PyTypeObject *kind = Py_TYPE(part);
    if (kind == &PyTuple_Type)
      return push('T', part, PyTuple_GET_SIZE(part));
    if (kind == &PyLong_Type || kind == &PyFloat_Type || kind == &PyBool_Type)
      return add_number(part, kind);
    if (part == Py_None) {
      tag('N');
      return true;
    }
    const nb::object held = nb::borrow(part); // from here on Python code may run
    if (kind == python.array)
      return add_array(part, 'A');
    if (kind == &PyList_Type)
      return push('L', part, PyList_GET_SIZE(part));
    if (kind == &PyDict_Type)
      return add_dict(part);
    if (kind == python.static_value)
      return add_static(part);
    if (PyTuple_Check(part))
      return add_named_tuple(part);
    if (PyType_IsSubtype(kind, python.scalar)) // of a class of NumPy's own: others may be anything
      return !PyType_HasFeature(kind, Py_TPFLAGS_HEAPTYPE) && add_array(part, 'A');
    return add_jax_array(part);
  }

  // Encoding. It begins with what each part is, and how many parts that has, so no encoding begins another.

  void tag(char what) { read_.encodings.push_back(what); }
  void word(std::size_t number) { read_.encodings.append(reinterpret_cast<const char *>(&number), sizeof(number)); }
  void size(char what, std::size_t count) {
    tag(what);
    tag(static_cast<char>(count < 255 ? count : 255));
    if (count >= 255)
      word(count);
  }
  void name(PyObject *object) {
    word(reinterpret_cast<std::uintptr_t>(object));
    read_.named.push_back(nb::borrow(object));
  }

  bool push(char what, PyObject *container, Py_ssize_t count) {
    size(what, static_cast<std::size_t>(count));
    frames_.push_back({nb::borrow(container), 0, count});
    PyObject **items = PySequence_Fast_ITEMS(container);
    for (Py_ssize_t item = 0; item < std::min(count, Py_ssize_t{8}); ++item)
      prefetch(items[item]);
    return true;
  }

  bool add_leaf(PyObject *part, const Leaf &leaf) {
    if (expected_) {
      const Py_ssize_t place = static_cast<Py_ssize_t>(read_.leaves.size());
      if (place >= PyList_GET_SIZE(expected_) || PyList_GET_ITEM(expected_, place) != part)
        return false;
    }
    read_.leaves.push_back(leaf);
    return true;
  }

  bool add_number(PyObject *part, PyTypeObject *kind) {
    Leaf leaf;
    leaf.array = -1;
    if (kind == &PyFloat_Type) {
      leaf.kind = 'f';
      leaf.real = PyFloat_AS_DOUBLE(part);
    } else if (kind == &PyBool_Type) {
      leaf.kind = 'b';
      leaf.integer = part == Py_True;
    } else {
      int overflow = 0;
      leaf.kind = 'i';
      leaf.integer = PyLong_AsLongLongAndOverflow(part, &overflow);
      if (overflow)
        return false;
    }
    tag(leaf.kind);
    return add_leaf(part, leaf);
  }

  bool add_array(PyObject *part, char what) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(part, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      return false;
    }
    Leaf leaf;
    leaf.array = static_cast<Index>(read_.arrays.size());
    leaf.kind = kind_of(buffer.format);
    leaf.integer = 0;
    read_.arrays.push_back(buffer);
    if (!leaf.kind)
      return false;
    tag(what);
    tag(leaf.kind);
    tag(static_cast<char>(buffer.itemsize));
    size('S', static_cast<std::size_t>(buffer.ndim));
    for (int axis = 0; axis < buffer.ndim; ++axis)
      word(static_cast<std::size_t>(buffer.shape[axis]));
    return add_leaf(part, leaf);
  }

  bool add_jax_array(PyObject *part) {
    if (Py_TYPE(part) != python.jax_array) {
      if (!nb::cast<bool>(nb::handle(python.is_jax_array)(nb::handle(part))) || python.jax_array)
        return false;
      python.jax_array = reinterpret_cast<PyTypeObject *>(Py_NewRef(reinterpret_cast<PyObject *>(Py_TYPE(part))));
    }
    const nb::object is_weak = nb::steal(PyObject_GetAttr(part, python.weak_name));
    if (!is_weak.is_valid())
      throw nb::python_error();
    return add_array(part, is_weak.ptr() == Py_True ? 'W' : 'A');
  }

  bool add_static(PyObject *part) {
    nb::object canonical = nb::steal(PyObject_GetAttr(part, python.interned_name));
    if (!canonical.is_valid())
      throw nb::python_error();
    if (canonical.is_none())
      canonical = nb::handle(python.interned)(nb::handle(part));
    tag('V');
    name(canonical.ptr());
    return true;
  }

  bool add_named_tuple(PyObject *part) {
    PyTypeObject *kind = Py_TYPE(part);
    const auto *found = std::find(known_.data(), known_.data() + known_.size(), kind);
    if (found == known_.data() + known_.size()) {
      if (!nb::cast<bool>(
              nb::handle(python.is_named_tuple)(nb::handle(reinterpret_cast<PyObject *>(kind)), nb::handle(part))))
        return false;
      known_.push_back(kind);
    }
    tag('C');
    name(reinterpret_cast<PyObject *>(kind));
    return push('T', part, PyTuple_GET_SIZE(part));
  }

  // JAX takes the values of a dict in the order of its sorted keys; code that iterates over it sees its own order.
  bool add_dict(PyObject *dict) {
    size('D', static_cast<std::size_t>(PyDict_GET_SIZE(dict)));
    std::vector<std::pair<PyObject *, PyObject *>> items; // nothing here runs Python code, so the dict keeps them
    Py_ssize_t place = 0;
    PyObject *key, *value;
    while (PyDict_Next(dict, &place, &key, &value)) {
      Py_ssize_t bytes = 0;
      const char *text = PyUnicode_CheckExact(key) ? PyUnicode_AsUTF8AndSize(key, &bytes) : nullptr;
      if (!text) {
        PyErr_Clear();
        return false;
      }
      size('K', static_cast<std::size_t>(bytes));
      read_.encodings.append(text, static_cast<std::size_t>(bytes));
      items.emplace_back(key, value);
    }
    std::sort(items.begin(), items.end(),
              [](const auto &one, const auto &other) { return PyUnicode_Compare(one.first, other.first) < 0; });
    const nb::object values = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
    if (!values.is_valid())
      throw nb::python_error();
    for (std::size_t item = 0; item < items.size(); ++item)
      PyTuple_SET_ITEM(values.ptr(), static_cast<Py_ssize_t>(item), Py_NewRef(items[item].second));
    frames_.push_back({values, 0, static_cast<Py_ssize_t>(items.size())});
    return true;
  }

  ReadSamples &read_;
  PyObject *expected_;
  std::size_t parts_ = 0;
  std::vector<Frame> frames_;
  std::vector<PyTypeObject *> known_; // classes of named tuples, which `read_.named` keeps alive
};

} // namespace

ReadSamples::~ReadSamples() {
  for (Py_buffer &buffer : arrays)
    PyBuffer_Release(&buffer);
}

// Structures

std::shared_ptr<const TypedGraph> KnownStructure::typed(const TypeTable *table) const {
  for (const auto &own : typed_)
    if (own->table.get() == table)
      return own;
  return nullptr;
}

void KnownStructure::put(std::shared_ptr<const TypedGraph> own) {
  if (typed_.size() >= most_typed)
    typed_.erase(typed_.begin());
  typed_.push_back(std::move(own));
}

// Batches

std::shared_ptr<KnownBatch> KnownBatch::make(std::shared_ptr<const ReadSamples> read, Structures structures,
                                             nb::object graphs) {
  auto batch = std::make_shared<KnownBatch>();
  batch->read_ = std::move(read);
  batch->structures_ = std::move(structures);
  batch->graphs_ = std::move(graphs);
  std::size_t taken = 0;
  for (const auto &structure : batch->structures_)
    for (const auto &take : structure->takes)
      taken += take.leaves.size();
  batch->numbers_ = std::make_unique_for_overwrite<char[]>(sizeof(double) * taken);
  batch->next_ = batch->numbers_.get();
  for (std::size_t sample = 0; sample < batch->size(); ++sample) {
    const std::size_t first = batch->read_->first_leaf(sample), end = batch->read_->ends[sample].leaf;
    check(batch->structures_[sample]->leaves == end - first, "a sample has the leaves of its structure");
    if (!batch->add(*batch->structures_[sample], batch->read_->leaves.data() + first))
      return nullptr;
  }
  return batch;
}

bool KnownBatch::add(const KnownStructure &structure, const Leaf *leaves) {
  for (const KnownStructure::Take &take : structure.takes) {
    char *first = next_;
    const auto end_numbers = [&] {
      if (next_ != first)
        chunks_.push_back({take.value_class, first, static_cast<std::size_t>(next_ - first), take.format.item});
      first = next_;
    };
    for (std::size_t place : take.leaves) {
      if (place < structure.leaves && leaves[place].array < 0) {
        if (!add_number(leaves[place], take.format))
          return false;
        continue;
      }
      end_numbers();
      if (place < structure.leaves) {
        if (!add_array(take, read_->arrays[leaves[place].array]))
          return false;
      } else {
        const std::string &constant = structure.constants[place - structure.leaves];
        chunks_.push_back({take.value_class, constant.data(), constant.size(), take.format.item});
      }
    }
    end_numbers();
  }
  return true;
}

namespace {

template <typename Number> void append(char *&out, Number number) {
  std::memcpy(out, &number, sizeof(Number));
  out += sizeof(Number);
}

} // namespace

// A number that the class cannot hold is left to NumPy, which raises an error or warns.
bool KnownBatch::add_number(const Leaf &leaf, const ClassFormat &format) {
  if (leaf.kind != format.kind)
    return false;
  if (leaf.kind == 'b' && format.item == 1) {
    append(next_, static_cast<std::uint8_t>(leaf.integer));
  } else if (leaf.kind == 'i' && format.item == 8) {
    append(next_, leaf.integer);
  } else if (leaf.kind == 'i' && format.item == 4) {
    const auto narrow = static_cast<std::int32_t>(leaf.integer);
    if (narrow != leaf.integer)
      return false;
    append(next_, narrow);
  } else if (leaf.kind == 'f' && format.item == 8) {
    append(next_, leaf.real);
  } else if (leaf.kind == 'f' && format.item == 4) {
    const auto narrow = static_cast<float>(leaf.real);
    if (std::isinf(narrow) && !std::isinf(leaf.real))
      return false;
    append(next_, narrow);
  } else {
    return false;
  }
  return true;
}

bool KnownBatch::add_array(const KnownStructure::Take &take, const Py_buffer &buffer) {
  const std::size_t item = static_cast<std::size_t>(buffer.itemsize);
  if (!take.format.reads(kind_of(buffer.format), item))
    return false;
  chunks_.push_back(
      {take.value_class, static_cast<const char *>(buffer.buf), static_cast<std::size_t>(buffer.len), item});
  return true;
}

Index KnownBatch::total(Index KnownStructure::*number) const {
  std::size_t total = 0;
  for (const auto &structure : structures_)
    total += static_cast<std::size_t>((*structure).*number);
  return checked_count(total);
}

Index KnownBatch::output() const {
  const Index first = structures_.front()->output;
  for (const auto &structure : structures_)
    if (structure->output != first)
      return -1;
  return first;
}

bool KnownBatch::lacks(const TypeTable &table) {
  typed_.clear();
  typed_.reserve(size());
  for (const auto &structure : structures_)
    typed_.push_back(structure->typed(&table));
  return std::find(typed_.begin(), typed_.end(), nullptr) != typed_.end();
}

void KnownBatch::put_typed(const std::vector<std::shared_ptr<TypedGraph>> &graphs) {
  check(graphs.size() == size(), "every sample has a typed graph");
  for (std::size_t sample = 0; sample < size(); ++sample) {
    check(graphs[sample] != nullptr, "every sample has a typed graph");
    if (!structures_[sample]->typed(graphs[sample]->table.get()))
      structures_[sample]->put(graphs[sample]);
  }
  typed_.assign(graphs.begin(), graphs.end());
}

std::shared_ptr<InputRows> KnownBatch::inputs(std::shared_ptr<const KnownBatch> batch,
                                              const std::vector<ClassFormat> &formats) {
  auto rows = std::make_shared<InputRows>(formats);
  for (const Chunk &chunk : batch->chunks_)
    rows->add(chunk.value_class, chunk.data, chunk.bytes, chunk.item);
  rows->keep(std::move(batch));
  return rows;
}

// All that are known

bool KnownStructures::put(std::string encoding, std::shared_ptr<KnownStructure> structure, PyObject *graph) {
  return structures_.try_emplace(std::move(encoding), Entry{std::move(structure), graph}).second;
}

bool KnownStructures::take_used(std::string_view encoding) {
  const auto found = structures_.find(encoding);
  return found != structures_.end() && std::exchange(found->second.was_used, false);
}

std::shared_ptr<KnownBatch> KnownStructures::find(std::shared_ptr<const ReadSamples> read) {
  KnownBatch::Structures structures;
  structures.reserve(read->size());
  const nb::object graphs = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(read->size())));
  if (!graphs.is_valid())
    throw nb::python_error();
  for (std::size_t sample = 0; sample < read->size(); ++sample) {
    const auto found = structures_.find(read->encoding(sample));
    if (found == structures_.end())
      return nullptr;
    found->second.was_used = true;
    structures.push_back(found->second.structure);
    PyTuple_SET_ITEM(graphs.ptr(), static_cast<Py_ssize_t>(sample), Py_NewRef(found->second.graph));
  }
  return KnownBatch::make(std::move(read), std::move(structures), graphs);
}

// Python

namespace {

PyTypeObject *type_of(nb::handle kind) { return reinterpret_cast<PyTypeObject *>(kind.inc_ref().ptr()); }

void bind_samples(nb::type_object static_value, nb::type_object array, nb::type_object scalar, nb::callable interned,
                  nb::callable is_named_tuple, nb::callable is_jax_array, std::size_t most) {
  python = {type_of(static_value),
            type_of(array),
            type_of(scalar),
            nullptr,
            interned.inc_ref().ptr(),
            is_named_tuple.inc_ref().ptr(),
            is_jax_array.inc_ref().ptr(),
            PyUnicode_InternFromString("_interned"),
            PyUnicode_InternFromString("weak_type"),
            most};
}

std::shared_ptr<ReadSamples> read_samples(nb::handle columns) {
  check(python.static_value, "`bind_samples` was called");
  const nb::object all = nb::steal(PySequence_Fast(columns.ptr(), "a list for each part"));
  if (!all.is_valid())
    throw nb::python_error();
  const std::size_t width = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(all.ptr()));
  PyObject **lists = PySequence_Fast_ITEMS(all.ptr());
  const Py_ssize_t count = width && PyList_CheckExact(lists[0]) ? PyList_GET_SIZE(lists[0]) : 0;
  if (!count)
    return nullptr;
  auto read = std::make_shared<ReadSamples>();
  Reader reader(*read);
  std::vector<nb::object> parts(width);
  std::vector<PyObject *> items(width);
  for (Py_ssize_t sample = 0; sample < count; ++sample) {
    for (std::size_t column = 0; column < width; ++column) { // a list may change while samples are read
      if (!PyList_CheckExact(lists[column]) || PyList_GET_SIZE(lists[column]) != count)
        return nullptr;
      items[column] = PyList_GET_ITEM(lists[column], sample);
      parts[column] = nb::borrow(items[column]);
      if (sample + 1 < count)
        prefetch(PyList_GET_ITEM(lists[column], sample + 1));
    }
    if (!reader.add(items.data(), width))
      return nullptr;
  }
  return read;
}

nb::bytes bytes_of(std::string_view text) { return nb::bytes(text.data(), text.size()); }

nb::list encodings_of(const ReadSamples &read) {
  nb::list encodings;
  for (std::size_t sample = 0; sample < read.size(); ++sample)
    encodings.append(bytes_of(read.encoding(sample)));
  return encodings;
}

// The encoding of a sample, and the objects whose addresses are in it.
nb::object encode(nb::tuple sample, nb::list leaves) {
  check(python.static_value, "`bind_samples` was called");
  ReadSamples read;
  Reader reader(read, leaves.ptr());
  std::vector<PyObject *> parts(sample.size());
  for (std::size_t part = 0; part < parts.size(); ++part)
    parts[part] = PyTuple_GET_ITEM(sample.ptr(), static_cast<Py_ssize_t>(part));
  if (!reader.add(parts.data(), parts.size()))
    return nb::none();
  nb::list named;
  for (const nb::object &object : read.named)
    named.append(object);
  return nb::make_tuple(bytes_of(read.encoding(0)), nb::tuple(named));
}

using TakeArgument = std::tuple<Index, std::tuple<std::string, std::size_t, std::size_t>, std::vector<std::size_t>>;

std::string_view view_of(const nb::bytes &text) { return {text.c_str(), text.size()}; }

bool put(KnownStructures &known, nb::bytes encoding, nb::handle graph, Index nodes, Index results, Index output,
         std::size_t leaves, const std::vector<TakeArgument> &takes, const std::vector<nb::bytes> &constants) {
  auto structure = std::make_shared<KnownStructure>();
  structure->nodes = nodes;
  structure->results = results;
  structure->output = output;
  structure->leaves = leaves;
  for (const auto &[value_class, format, places] : takes) {
    const auto &[kind, item, row] = format;
    for (std::size_t place : places)
      check(place < leaves + constants.size(), "a row is a leaf or a constant");
    structure->takes.push_back({value_class, {kind.empty() ? '\0' : kind[0], item, row}, places});
  }
  for (const nb::bytes &constant : constants)
    structure->constants.emplace_back(view_of(constant));
  return known.put(std::string(view_of(encoding)), std::move(structure), graph.ptr());
}

} // namespace

void add_samples(nb::module_ &m) {
  m.def("bind_samples", bind_samples, "static_value"_a, "array"_a, "scalar"_a, "interned"_a, "is_named_tuple"_a,
        "is_jax_array"_a, "most"_a);
  m.def("read_samples", read_samples);
  m.def("encode_sample", encode);
  nb::class_<ReadSamples>(m, "ReadSamples").def("__len__", &ReadSamples::size).def("encodings", encodings_of);
  nb::class_<KnownStructures>(m, "KnownStructures")
      .def(nb::init<>())
      .def("__len__", &KnownStructures::size)
      .def("put", put, "encoding"_a, "graph"_a, "nodes"_a, "results"_a, "output"_a, "leaves"_a, "takes"_a,
           "constants"_a)
      .def("discard", [](KnownStructures &known, nb::bytes encoding) { known.discard(std::string(view_of(encoding))); })
      .def("take_used", [](KnownStructures &known, nb::bytes encoding) { return known.take_used(view_of(encoding)); })
      .def("find",
           [](KnownStructures &known, std::shared_ptr<ReadSamples> read) { return known.find(std::move(read)); });
  nb::class_<KnownBatch>(m, "KnownBatch")
      .def("__len__", &KnownBatch::size)
      .def_prop_ro("nodes", [](const KnownBatch &batch) { return batch.total(&KnownStructure::nodes); })
      .def_prop_ro("results", [](const KnownBatch &batch) { return batch.total(&KnownStructure::results); })
      .def_prop_ro("output", &KnownBatch::output)
      .def("graphs", &KnownBatch::graphs)
      .def("lacks", &KnownBatch::lacks)
      .def("put_typed", &KnownBatch::put_typed);
}

} // namespace jitbatch
