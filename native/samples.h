// Samples as the core reads them, and what it knows of those of one structure.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "input_rows.h"
#include "typed_graph.h"

namespace jitbatch {

// A leaf of a sample: a number of Python's, or an array.
struct Leaf {
  char kind;   // of a number, as NumPy's: b, i or f
  Index array; // its place among the exported arrays; -1 for a number
  union {
    std::int64_t integer;
    double real;
  };
};

// The samples of a batch, taken apart. An encoding is equal only for samples that are the same program: it says which
// containers, `Static` objects, numbers and arrays there are, not which numbers.
struct ReadSamples {
  ReadSamples() = default;
  ~ReadSamples();
  ReadSamples(const ReadSamples &) = delete;
  ReadSamples &operator=(const ReadSamples &) = delete;

  std::size_t size() const { return ends.size(); }
  std::size_t first_leaf(std::size_t sample) const { return sample ? ends[sample - 1].leaf : 0; }
  std::string_view encoding(std::size_t sample) const {
    const std::size_t first = sample ? ends[sample - 1].byte : 0;
    return std::string_view(encodings).substr(first, ends[sample].byte - first);
  }

  struct End {
    std::size_t leaf, byte;
  };
  std::string encodings; // one after the other
  std::vector<Leaf> leaves;
  std::vector<End> ends; // of each sample
  std::vector<Py_buffer> arrays;
  std::vector<nanobind::object> named; // objects whose addresses are in encodings
};

// What samples with one encoding have in common.
struct KnownStructure {
  // The leaves of a class that are input rows. Those from `leaves` on are constants.
  struct Take {
    Index value_class;
    ClassFormat format;
    std::vector<std::size_t> leaves;
  };

  std::shared_ptr<const TypedGraph> typed(const TypeTable *table) const;
  void put(std::shared_ptr<const TypedGraph> graph);

  Index nodes;
  Index results; // how many values are
  Index output;  // equal for graphs with results of one tree and of the same classes
  std::size_t leaves;
  std::vector<Take> takes;
  std::vector<std::string> constants;

private:
  static constexpr std::size_t most_typed = 4;
  std::vector<std::shared_ptr<const TypedGraph>> typed_;
};

// Samples of known structures, one after the other.
class KnownBatch {
public:
  using Structures = std::vector<std::shared_ptr<KnownStructure>>;
  // None if the core cannot convert a number to the class that it is a row of.
  static std::shared_ptr<KnownBatch> make(std::shared_ptr<const ReadSamples> read, Structures structures,
                                          nanobind::object graphs);

  nanobind::object graphs() const { return graphs_; }
  std::size_t size() const { return structures_.size(); }
  // The sum of a number over all samples.
  Index total(Index KnownStructure::*number) const;
  // The output that all samples have; -1 if they differ.
  Index output() const;
  // Reads `typed` from the structures; whether one of them has no graph of these types.
  bool lacks(const TypeTable &table);
  void put_typed(const std::vector<std::shared_ptr<TypedGraph>> &graphs);
  // The graphs in terms of the types that were asked for last. A structure may forget its own for those of other
  // batches.
  const std::vector<std::shared_ptr<const TypedGraph>> &typed() const { return typed_; }
  // Input rows, which keep the batch.
  static std::shared_ptr<InputRows> inputs(std::shared_ptr<const KnownBatch> batch,
                                           const std::vector<ClassFormat> &formats);

private:
  struct Chunk {
    Index value_class;
    const char *data;
    std::size_t bytes, item;
  };

  bool add(const KnownStructure &structure, const Leaf *leaves);
  bool add_number(const Leaf &leaf, const ClassFormat &format);
  bool add_array(const KnownStructure::Take &take, const Py_buffer &buffer);

  std::shared_ptr<const ReadSamples> read_;
  Structures structures_;
  nanobind::object graphs_; // a tuple
  std::vector<std::shared_ptr<const TypedGraph>> typed_;
  std::vector<Chunk> chunks_;
  std::unique_ptr<char[]> numbers_; // converted
  char *next_ = nullptr;
};

// A hash table of structures, by encoding. Python keeps the graphs and the objects that encodings name alive as long as
// a structure is in it.
class KnownStructures {
public:
  // False if there is one already.
  bool put(std::string encoding, std::shared_ptr<KnownStructure> structure, PyObject *graph);
  bool discard(const std::string &encoding) { return structures_.erase(encoding) > 0; }
  // Whether the structure was found since this was asked last.
  bool take_used(std::string_view encoding);
  // The samples with their structures; none if one is not known, or has a number that the core cannot convert.
  std::shared_ptr<KnownBatch> find(std::shared_ptr<const ReadSamples> read);
  std::size_t size() const { return structures_.size(); }

private:
  struct Entry {
    std::shared_ptr<KnownStructure> structure;
    PyObject *graph;
    bool was_used = false;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  std::unordered_map<std::string, Entry, Hash, std::equal_to<>> structures_;
};

void add_samples(nanobind::module_ &m);

} // namespace jitbatch
