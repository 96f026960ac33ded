// A recording numbered into a graph: what nothing needs is dropped, and all numbers are small.
#pragma once

#include <tuple>

#include "numbers.h"

namespace jitbatch {

using Row = std::int64_t;
using Rows = std::vector<Row>;

constexpr Row bare = Row(1) << 40; // the first number of rows that bare operations make; `BARE` in Python

// The ends of edges at nodes of every kind; see the reference.
struct Ends {
  IntSpan first_output, out_class, first_slot, is_variadic, has_effects;

  Index kinds() const { return static_cast<Index>(is_variadic.size()); }
  void check() const;
};

// A recording: numbers below zero are given, others are made.
struct Recording {
  Rows kinds, counts, operands, made, outputs;
  std::vector<std::tuple<Row, Row, Row>> given;
  Rows given_class;
};

struct Numbered {
  Ints inputs, shared_rows, kind, operand_start, operands, value_class, outputs, level, node_values, kinds_present;
  std::vector<std::pair<Index, Index>> edges;
};

Numbered number(const Ends &ends, const Recording &recording);

// Which of the sample's rows of their classes inputs are.
struct InputPlaces {
  Ints of_input;   // classes, then rows
  Ints class_rows; // classes, then how many rows
  std::vector<Ints> leaves;
};

// `rows(leaf, depth)` is how many rows a leaf has whose first axes are indexed.
template <typename CountRows> InputPlaces find_input_places(const Numbered &graph, CountRows count_rows) {
  struct Leaf {
    Index leaf, depth, value_class, begin;
  };
  std::vector<Leaf> known;
  Ints rows, place_of_leaf; // of each class; of each leaf, where the search among those that are known begins
  InputPlaces places;
  const std::size_t inputs = graph.inputs.size() / 3;
  places.of_input.resize(2 * inputs);
  for (std::size_t input = 0; input < inputs; ++input) {
    const Index leaf = graph.inputs[3 * input], depth = graph.inputs[3 * input + 1];
    const Index value_class = graph.value_class[input];
    if (leaf >= size_of(place_of_leaf))
      place_of_leaf.resize(leaf + 1, -1);
    std::size_t at = place_of_leaf[leaf] < 0 ? known.size() : place_of_leaf[leaf];
    while (at < known.size() && !(known[at].leaf == leaf && known[at].depth == depth))
      ++at;
    if (at == known.size()) {
      if (place_of_leaf[leaf] < 0)
        place_of_leaf[leaf] = static_cast<Index>(at);
      if (value_class >= size_of(rows))
        rows.resize(value_class + 1, 0);
      known.push_back({leaf, depth, value_class, rows[value_class]});
      rows[value_class] = checked_count(static_cast<std::size_t>(rows[value_class]) + count_rows(leaf, depth));
    }
    places.of_input[input] = value_class;
    places.of_input[inputs + input] = known[at].begin + graph.inputs[3 * input + 2];
  }
  std::vector<Ints> leaves(rows.size());
  for (const Leaf &leaf : known)
    leaves[leaf.value_class].push_back(leaf.leaf);
  Ints counts;
  for (Index value_class = 0; value_class < size_of(rows); ++value_class) {
    if (leaves[value_class].empty())
      continue;
    places.class_rows.push_back(value_class);
    counts.push_back(rows[value_class]);
    places.leaves.push_back(std::move(leaves[value_class]));
  }
  places.class_rows.insert(places.class_rows.end(), counts.begin(), counts.end());
  return places;
}

} // namespace jitbatch
