#include "known_samples.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

namespace nb = nanobind;
using namespace nb::literals;

namespace jitbatch {
namespace {

std::uint64_t hash_of(PyObject *const *parts, std::size_t count) {
  std::uint64_t hash = count;
  for (std::size_t part = 0; part < count; ++part) {
    hash = (hash ^ static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(parts[part]))) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 32;
  }
  return hash;
}

nb::object fast_sequence(PyObject *sequence) {
  const nb::object fast = nb::steal(PySequence_Fast(sequence, "a sequence"));
  if (!fast.is_valid())
    throw nb::python_error();
  return fast;
}

PyObject *item_of(const nb::object &fast, std::size_t place) {
  return PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(place));
}

std::size_t length_of(const nb::object &fast) { return static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast.ptr())); }

// What a buffer's numbers are, as NumPy's `kind`; releases the buffer and raises for others.
char checked_kind(Py_buffer &buffer) {
  const char kind = kind_of(buffer.format);
  if (!kind)
    PyBuffer_Release(&buffer);
  check(kind != 0, "the numbers of a known sample are plain");
  return kind;
}

void export_array(PyObject *array, Py_buffer &buffer) {
  if (PyObject_GetBuffer(array, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0)
    throw nb::python_error();
}

PyTypeObject *array_type() {
  static PyTypeObject *const type =
      reinterpret_cast<PyTypeObject *>(nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr());
  return type;
}

PyTypeObject *scalar_type() {
  static PyTypeObject *const type =
      reinterpret_cast<PyTypeObject *>(nb::object(nb::module_::import_("numpy").attr("generic")).release().ptr());
  return type;
}

} // namespace

// Samples

KnownSample::KnownSample(PyObject *own_structure, PyObject *sample, PyObject *own_graph, Index node_count,
                         Index result_count, Index own_output, PyObject *containers, PyObject *arrays, PyObject *inputs,
                         PyObject *formats)
    : structure(own_structure), graph(own_graph), nodes(node_count), results(result_count), output(own_output) {
  const nb::object all = fast_sequence(sample);
  for (std::size_t part = 0; part < length_of(all); ++part)
    parts.push_back(item_of(all, part));
  add_containers(containers);
  add_arrays(arrays);
  add_inputs(inputs, formats);
  Py_INCREF(structure); // at last: the destructor does not run if the constructor raises
  Py_INCREF(graph);
}

KnownSample::~KnownSample() {
  Py_DECREF(graph);
  Py_DECREF(structure);
}

void KnownSample::add_containers(PyObject *containers) {
  const nb::object all = fast_sequence(containers);
  for (std::size_t place = 0; place < length_of(all); ++place) {
    const nb::object pair = fast_sequence(item_of(all, place));
    check(length_of(pair) == 2, "a container is given with its items");
    PyObject *container = item_of(pair, 0);
    check(PyList_CheckExact(container) || PyDict_CheckExact(container), "containers are lists and dicts");
    PyObject *items = item_of(pair, 1);
    check(PyTuple_CheckExact(items), "the items of a container are a tuple, which keeps them alive");
    PyObject **first = PySequence_Fast_ITEMS(items);
    containers_.push_back({container, {first, first + PyTuple_GET_SIZE(items)}});
  }
}

bool KnownSample::Container::is_same() const {
  if (PyList_CheckExact(container)) {
    PyObject **first = PySequence_Fast_ITEMS(container);
    return std::equal(items.begin(), items.end(), first, first + PyList_GET_SIZE(container));
  }
  if (items.size() != 2 * static_cast<std::size_t>(PyDict_GET_SIZE(container)))
    return false;
  Py_ssize_t place = 0;
  PyObject *key, *value;
  for (auto item = items.begin(); PyDict_Next(container, &place, &key, &value); item += 2)
    if (item[0] != key || item[1] != value)
      return false;
  return true;
}

// NumPy's scalars cannot change.
void KnownSample::add_arrays(PyObject *arrays) {
  const nb::object all = fast_sequence(arrays);
  for (std::size_t place = 0; place < length_of(all); ++place) {
    PyObject *array = item_of(all, place);
    if (PyObject_TypeCheck(array, scalar_type()))
      continue;
    check(Py_TYPE(array) == array_type(), "the arrays of a known sample are NumPy's");
    Py_buffer buffer;
    export_array(array, buffer);
    const char kind = checked_kind(buffer);
    arrays_.push_back({array, kind, buffer.itemsize, {buffer.shape, buffer.shape + buffer.ndim}});
    PyBuffer_Release(&buffer);
  }
}

void KnownSample::add_inputs(PyObject *inputs, PyObject *formats) {
  const nb::object all = fast_sequence(inputs), known = fast_sequence(formats);
  std::vector<char> own;
  for (std::size_t place = 0; place < length_of(all); ++place) {
    const nb::object pair = fast_sequence(item_of(all, place));
    check(length_of(pair) == 2, "the inputs of a sample are pairs of a class and arrays");
    const Index value_class = nb::cast<Index>(nb::handle(item_of(pair, 0)));
    check(value_class >= 0 && static_cast<std::size_t>(value_class) < length_of(known), "a class has a format");
    const nb::object some = fast_sequence(item_of(pair, 1));
    for (std::size_t array = 0; array < length_of(some); ++array)
      add_input(value_class, item_of(some, array), item_of(known, static_cast<std::size_t>(value_class)), own);
  }
  own_ = std::make_unique_for_overwrite<char[]>(own.size());
  std::copy(own.begin(), own.end(), own_.get());
}

void KnownSample::add_input(Index value_class, PyObject *array, PyObject *format, std::vector<char> &own) {
  const nb::object known = fast_sequence(format);
  check(length_of(known) == 3, "a format is a kind, the bytes of an element and of a value");
  const char *kind = PyUnicode_AsUTF8(item_of(known, 0));
  if (!kind)
    throw nb::python_error();
  const Py_ssize_t item = nb::cast<Py_ssize_t>(nb::handle(item_of(known, 1)));
  const ClassFormat own_format{kind[0], static_cast<std::size_t>(item), 0};
  const auto found = std::find_if(arrays_.begin(), arrays_.end(), [&](const Array &own) { return own.array == array; });
  if (found != arrays_.end()) {
    const std::size_t found_item = static_cast<std::size_t>(found->item);
    check(own_format.reads(found->kind, found_item), "an array has the dtype of its class");
    inputs_.push_back({value_class, static_cast<Index>(found - arrays_.begin()), 0, 0, found_item});
    return;
  }
  check(Py_TYPE(array) == array_type() || PyObject_TypeCheck(array, scalar_type()), "inputs are arrays");
  Py_buffer buffer;
  export_array(array, buffer);
  const std::size_t found_item = static_cast<std::size_t>(buffer.itemsize);
  const bool fits = own_format.reads(checked_kind(buffer), found_item);
  if (fits) {
    const std::size_t bytes = static_cast<std::size_t>(buffer.len);
    const char *data = static_cast<const char *>(buffer.buf);
    const std::size_t begin = own.size(), own_bytes = bytes / found_item * own_format.item;
    inputs_.push_back({value_class, -1, begin, own_bytes, own_format.item});
    own.resize(begin + own_bytes);
    if (found_item == own_format.item)
      std::copy(data, data + bytes, own.begin() + static_cast<std::ptrdiff_t>(begin));
    else
      narrow(own_format.kind, data, bytes, own.data() + begin);
  }
  PyBuffer_Release(&buffer);
  check(fits, "an array has the dtype of its class");
}

bool KnownSample::read(std::vector<Py_buffer> &buffers) const {
  for (const Container &known : containers_)
    if (!known.is_same())
      return false;
  for (const Array &known : arrays_) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(known.array, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      return false;
    }
    buffers.push_back(buffer);
    if (kind_of(buffer.format) != known.kind || buffer.itemsize != known.item ||
        !std::equal(known.shape.begin(), known.shape.end(), buffer.shape, buffer.shape + buffer.ndim))
      return false;
  }
  return true;
}

std::shared_ptr<const TypedGraph> KnownSample::typed(const TypeTable *table) const {
  for (const auto &own : typed_)
    if (own->table.get() == table)
      return own;
  return nullptr;
}

void KnownSample::put(std::shared_ptr<const TypedGraph> own) {
  if (typed_.size() >= most_typed)
    typed_.erase(typed_.begin());
  typed_.push_back(std::move(own));
}

// Batches

KnownBatch::~KnownBatch() {
  for (Py_buffer &buffer : buffers)
    PyBuffer_Release(&buffer);
}

Index KnownBatch::total(Index KnownSample::*number) const {
  std::size_t total = 0;
  for (const auto &sample : samples)
    total += static_cast<std::size_t>((*sample).*number);
  return checked_count(total);
}

Index KnownBatch::output() const {
  const Index first = samples.front()->output;
  for (const auto &sample : samples)
    if (sample->output != first)
      return -1;
  return first;
}

bool KnownBatch::lacks(const TypeTable &table) {
  typed.clear();
  typed.reserve(samples.size());
  for (const auto &sample : samples)
    typed.push_back(sample->typed(&table));
  return std::find(typed.begin(), typed.end(), nullptr) != typed.end();
}

std::shared_ptr<InputRows> KnownBatch::inputs(std::shared_ptr<const KnownBatch> batch,
                                              const std::vector<ClassFormat> &formats) {
  auto rows = std::make_shared<InputRows>(formats);
  const Py_buffer *own = batch->buffers.data();
  for (const auto &sample : batch->samples) {
    sample->each_input(own, [&](Index value_class, const char *data, std::size_t bytes, std::size_t item) {
      rows->add(value_class, data, bytes, item);
    });
    own += sample->array_count();
  }
  rows->keep(std::move(batch));
  return rows;
}

// All that are known

std::size_t KnownSamples::slot_of(std::uint64_t hash, PyObject *const *parts, std::size_t count) const {
  std::size_t slot = hash & (slots_.size() - 1);
  while (slots_[slot].sample) {
    const std::vector<PyObject *> &own = slots_[slot].sample->parts;
    if (slots_[slot].hash == hash && std::equal(own.begin(), own.end(), parts, parts + count))
      break;
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

void KnownSamples::grow() {
  std::vector<Slot> before(2 * slots_.size());
  before.swap(slots_);
  for (Slot &slot : before)
    if (slot.sample)
      slots_[slot_of(slot.hash, slot.sample->parts.data(), slot.sample->parts.size())] = std::move(slot);
}

bool KnownSamples::put(std::shared_ptr<KnownSample> sample) {
  if (2 * (size_ + 1) > slots_.size())
    grow();
  const std::uint64_t hash = hash_of(sample->parts.data(), sample->parts.size());
  Slot &slot = slots_[slot_of(hash, sample->parts.data(), sample->parts.size())];
  if (slot.sample)
    return false;
  slot = {hash, std::move(sample)};
  ++size_;
  return true;
}

std::shared_ptr<KnownSample> KnownSamples::take(PyObject *sample) {
  const nb::object parts = fast_sequence(sample);
  PyObject *const *items = PySequence_Fast_ITEMS(parts.ptr());
  const std::size_t mask = slots_.size() - 1;
  std::size_t gap = slot_of(hash_of(items, length_of(parts)), items, length_of(parts));
  std::shared_ptr<KnownSample> taken = std::move(slots_[gap].sample);
  slots_[gap].sample = nullptr;
  if (!taken)
    return nullptr;
  --size_;
  // Later ones move up to where the search for them begins, so that it meets no gap.
  for (std::size_t at = (gap + 1) & mask; slots_[at].sample; at = (at + 1) & mask) {
    if (((at - slots_[at].hash) & mask) >= ((at - gap) & mask)) {
      slots_[gap] = std::move(slots_[at]);
      slots_[at].sample = nullptr;
      gap = at;
    }
  }
  return taken;
}

bool KnownSamples::take_used(PyObject *sample) {
  const nb::object parts = fast_sequence(sample);
  PyObject *const *items = PySequence_Fast_ITEMS(parts.ptr());
  const Slot &slot = slots_[slot_of(hash_of(items, length_of(parts)), items, length_of(parts))];
  return slot.sample && std::exchange(slot.sample->was_used, false);
}

std::shared_ptr<KnownBatch> KnownSamples::find(PyObject *columns) const {
  const nb::object all = fast_sequence(columns);
  const std::size_t width = length_of(all);
  if (!width || !size_ || !PyList_CheckExact(item_of(all, 0)))
    return nullptr;
  const Py_ssize_t count = PyList_GET_SIZE(item_of(all, 0));
  for (std::size_t column = 0; column < width; ++column)
    if (!PyList_CheckExact(item_of(all, column)) || PyList_GET_SIZE(item_of(all, column)) != count)
      return nullptr;
  if (!count)
    return nullptr;
  std::vector<PyObject *> parts(static_cast<std::size_t>(count) * width);
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(count));
  for (std::size_t sample = 0; sample < hashes.size(); ++sample) {
    for (std::size_t column = 0; column < width; ++column)
      parts[sample * width + column] = PyList_GET_ITEM(item_of(all, column), static_cast<Py_ssize_t>(sample));
    hashes[sample] = hash_of(&parts[sample * width], width);
  }
  auto batch = std::make_shared<KnownBatch>();
  batch->samples.reserve(hashes.size());
  for (std::size_t sample = 0; sample < hashes.size(); ++sample) {
    const auto &found = slots_[slot_of(hashes[sample], &parts[sample * width], width)].sample;
    if (!found)
      return nullptr;
    batch->samples.push_back(found);
  }
  for (const auto &sample : batch->samples) {
    if (!sample->read(batch->buffers))
      return nullptr;
    sample->was_used = true;
  }
  return batch;
}

std::vector<std::shared_ptr<KnownSample>> KnownSamples::take_all() {
  std::vector<std::shared_ptr<KnownSample>> taken;
  for (Slot &slot : slots_)
    if (slot.sample)
      taken.push_back(std::move(slot.sample));
  slots_ = std::vector<Slot>(64);
  size_ = 0;
  return taken;
}

// Python

namespace {

bool put(KnownSamples &known, nb::handle structure, nb::handle sample, nb::handle graph, Index nodes, Index results,
         Index output, nb::handle containers, nb::handle arrays, nb::handle inputs, nb::handle formats) {
  std::shared_ptr<KnownSample> made;
  try {
    made = std::make_shared<KnownSample>(structure.ptr(), sample.ptr(), graph.ptr(), nodes, results, output,
                                         containers.ptr(), arrays.ptr(), inputs.ptr(), formats.ptr());
  } catch (const std::invalid_argument &) { // the core cannot read it
    return false;
  } catch (nb::python_error &error) { // nor export it
    if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_BufferError))
      throw;
    return false;
  }
  return known.put(std::move(made));
}

nb::tuple graphs_of(const KnownBatch &batch) {
  const nb::object graphs = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(batch.samples.size())));
  if (!graphs.is_valid())
    throw nb::python_error();
  for (std::size_t sample = 0; sample < batch.samples.size(); ++sample)
    PyTuple_SET_ITEM(graphs.ptr(), static_cast<Py_ssize_t>(sample), Py_NewRef(batch.samples[sample]->graph));
  return nb::borrow<nb::tuple>(graphs);
}

nb::list structures_of(const KnownBatch &batch) {
  nb::list structures;
  for (const auto &sample : batch.samples)
    structures.append(nb::handle(sample->structure));
  return structures;
}

void put_typed(KnownBatch &batch, const std::vector<std::shared_ptr<TypedGraph>> &graphs) {
  check(graphs.size() == batch.samples.size(), "every sample has a typed graph");
  batch.typed.assign(graphs.begin(), graphs.end());
  for (std::size_t sample = 0; sample < graphs.size(); ++sample) {
    check(graphs[sample] != nullptr, "every sample has a typed graph");
    if (!batch.samples[sample]->typed(graphs[sample]->table.get()))
      batch.samples[sample]->put(graphs[sample]);
  }
}

int traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self))
    return 0;
  int result = 0;
  nb::inst_ptr<KnownSamples>(self)->each([&](const KnownSample &sample) {
    if (!result)
      result = visit(sample.structure, arg);
    if (!result)
      result = visit(sample.graph, arg);
  });
  return result;
}

int clear(PyObject *self) {
  if (nb::inst_ready(self))
    nb::inst_ptr<KnownSamples>(self)->take_all();
  return 0;
}

PyType_Slot slots[] = {
    {Py_tp_traverse, reinterpret_cast<void *>(traverse)}, {Py_tp_clear, reinterpret_cast<void *>(clear)}, {0, nullptr}};

} // namespace

void add_known_samples(nb::module_ &m) {
  nb::class_<KnownBatch>(m, "KnownBatch")
      .def("__len__", [](const KnownBatch &batch) { return batch.samples.size(); })
      .def_prop_ro("nodes", [](const KnownBatch &batch) { return batch.total(&KnownSample::nodes); })
      .def_prop_ro("results", [](const KnownBatch &batch) { return batch.total(&KnownSample::results); })
      .def_prop_ro("output", &KnownBatch::output)
      .def("graphs", graphs_of)
      .def("structures", structures_of)
      .def("lacks", &KnownBatch::lacks)
      .def("put_typed", put_typed);
  nb::class_<KnownSamples>(m, "KnownSamples", nb::type_slots(slots))
      .def(nb::init<>())
      .def("__len__", &KnownSamples::size)
      .def("put", put, "structure"_a, "sample"_a, "graph"_a, "nodes"_a, "results"_a, "output"_a, "containers"_a,
           "arrays"_a, "inputs"_a, "formats"_a)
      .def("discard", [](KnownSamples &known, nb::handle sample) { const auto gone = known.take(sample.ptr()); })
      .def("take_used", [](KnownSamples &known, nb::handle sample) { return known.take_used(sample.ptr()); })
      .def("find", [](const KnownSamples &known, nb::handle columns) { return known.find(columns.ptr()); });
}

} // namespace jitbatch
