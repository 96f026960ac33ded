// Samples that were met before, by their identity, with all that a batch of them needs.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "input_rows.h"
#include "small.h"
#include "typed_graph.h"

namespace jitbatch {

// A sample, its graph and its input rows. Some parts may change: the numbers in NumPy's arrays are read for each batch,
// and a sample with other items in a list or dict, or with an array of another shape or dtype, is not known any more.
class KnownSample {
public:
  // See `KnownSamples.put` in `jitbatch/core/native.pyi`. Raises what `check` raises if the core cannot read the
  // inputs.
  KnownSample(PyObject *structure, PyObject *sample, PyObject *graph, Index nodes, Index results, Index output,
              PyObject *containers, PyObject *arrays, PyObject *inputs, PyObject *formats);
  ~KnownSample();
  KnownSample(const KnownSample &) = delete;
  KnownSample &operator=(const KnownSample &) = delete;

  // Exports the arrays in the sample; false if one of them has changed its shape or dtype, or a container its items.
  bool read(std::vector<Py_buffer> &buffers) const;
  // Calls `visit(value class, data, bytes, bytes of an element)` for the arrays of input rows. `buffers` are those of
  // `read`.
  template <typename Visit> void each_input(const Py_buffer *buffers, Visit visit) const {
    for (const Input &input : inputs_) {
      if (input.array < 0) {
        visit(input.value_class, own_.get() + input.begin, input.bytes, input.item);
      } else {
        const Py_buffer &buffer = buffers[input.array];
        visit(input.value_class, static_cast<const char *>(buffer.buf), static_cast<std::size_t>(buffer.len),
              input.item);
      }
    }
  }
  std::size_t array_count() const { return arrays_.size(); }

  std::shared_ptr<const TypedGraph> typed(const TypeTable *table) const;
  void put(std::shared_ptr<const TypedGraph> graph);

  std::vector<PyObject *> parts; // of the sample; `structure` keeps them alive
  PyObject *structure, *graph;
  Index nodes;
  Index results;                 // how many values are
  Index output;                  // equal for graphs with results of one tree and of the same classes
  mutable bool was_used = false; // since somebody asked

private:
  // A list or dict. `structure` keeps it and its items alive, so an address belongs to one object.
  struct Container {
    PyObject *container;
    std::vector<PyObject *> items; // of a dict, each key and its value
    bool is_same() const;
  };

  struct Array {
    PyObject *array; // `structure` keeps it alive
    char kind;
    Py_ssize_t item;
    std::vector<Py_ssize_t> shape;
  };

  struct Input {
    Index value_class;
    Index array;       // of the sample; -1 for numbers of our own
    std::size_t begin; // of these
    std::size_t bytes;
    std::size_t item; // bytes of an element
  };

  void add_containers(PyObject *containers);
  void add_arrays(PyObject *arrays);
  void add_inputs(PyObject *inputs, PyObject *formats);
  void add_input(Index value_class, PyObject *array, PyObject *format, std::vector<char> &own);

  static constexpr std::size_t most_typed = 4;

  std::vector<Container> containers_;
  std::vector<Array> arrays_;
  std::vector<Input> inputs_;
  std::unique_ptr<char[]> own_; // numbers, which never change
  std::vector<std::shared_ptr<const TypedGraph>> typed_;
};

// Known samples, one after the other.
struct KnownBatch {
  KnownBatch() = default;
  ~KnownBatch();
  KnownBatch(const KnownBatch &) = delete;
  KnownBatch &operator=(const KnownBatch &) = delete;

  // The sum of a number over all samples.
  Index total(Index KnownSample::*number) const;
  // The output that all samples have; -1 if they differ.
  Index output() const;
  // Reads `typed` from the samples; whether one of them has no graph of these types.
  bool lacks(const TypeTable &table);
  // Input rows, which keep the batch.
  static std::shared_ptr<InputRows> inputs(std::shared_ptr<const KnownBatch> batch,
                                           const std::vector<ClassFormat> &formats);

  std::vector<std::shared_ptr<KnownSample>> samples;
  std::vector<Py_buffer> buffers; // of all arrays in the samples
  // The graphs in terms of the types that were asked for last. A sample may forget its own for those of other batches.
  std::vector<std::shared_ptr<const TypedGraph>> typed;
};

// A hash table of known samples by the addresses of their parts. It holds references to all that it knows, so an
// address belongs to one sample.
class KnownSamples {
public:
  // Whether the core can read the sample's inputs; others are not put.
  bool put(std::shared_ptr<KnownSample> sample);
  // A reference to what was known, for the caller to give up: that may run code of Python's.
  std::shared_ptr<KnownSample> take(PyObject *sample);
  // Whether the sample was found since this was asked last.
  bool take_used(PyObject *sample);
  // The samples whose parts are at equal places in `columns`, a sequence of lists; none if one is not known.
  std::shared_ptr<KnownBatch> find(PyObject *columns) const;
  std::size_t size() const { return size_; }

  template <typename Visit> void each(Visit visit) const {
    for (const Slot &slot : slots_)
      if (slot.sample)
        visit(*slot.sample);
  }
  // All samples, for the caller to give up.
  std::vector<std::shared_ptr<KnownSample>> take_all();

private:
  struct Slot {
    std::uint64_t hash = 0;
    std::shared_ptr<KnownSample> sample;
  };

  std::size_t slot_of(std::uint64_t hash, PyObject *const *parts, std::size_t count) const;
  void grow();

  std::vector<Slot> slots_ = std::vector<Slot>(64);
  std::size_t size_ = 0;
};

void add_known_samples(nanobind::module_ &m);

} // namespace jitbatch
