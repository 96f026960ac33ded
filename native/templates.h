// Templates of calls (`record/templates.py`), and a table of them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace jitbatch {

using Word = std::int64_t;
using Words = std::span<const Word>;

// What calls on arguments of certain forms add to a graph. The integers are Python's, since its lists hold them.
struct Template {
  struct Result {
    std::size_t place;
    nanobind::object aval, aval_id;
  };

  explicit Template(nanobind::handle made);

  nanobind::object made; // the `Template` of Python
  bool is_plain = false; // whether what follows is all that there is to it
  std::vector<nanobind::object> kinds, counts;
  std::vector<std::size_t> operands; // places among the rows of the arguments, of the outputs and of `further`
  std::size_t output_count = 0, row_count = 0;
  std::size_t further_count = 0; // constants and shared values that are rows, which come after those of the outputs
  std::vector<Result> results;
  nanobind::object make;  // makes the result of a list of its leaves; None for a single one
  nanobind::object tuple; // the class of the result, if `make` makes a tuple of them
};

// Templates by the words of calls.
class Templates {
public:
  std::shared_ptr<const Template> find(Words words) const;

  // Words have the addresses of objects: these are `kept`, so that no other object gets such an address.
  void learn(Words words, std::vector<nanobind::object> kept, std::shared_ptr<const Template> found);

  std::size_t size() const { return entries_.size(); }

private:
  struct Entry {
    std::size_t hash;
    std::vector<Word> words;
    std::vector<nanobind::object> kept;
    std::shared_ptr<const Template> found;
  };

  std::size_t place_of(std::size_t hash, Words words) const;
  void grow();

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> places_ = std::vector<std::uint32_t>(64, 0); // of entries, counted from 1
};

} // namespace jitbatch
