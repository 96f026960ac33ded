// The graphs of a batch as one, with equal calls merged.
#pragma once

#include "input_rows.h"
#include "typed_graph.h"

namespace jitbatch {

// The shared values that are rows.
struct SharedRows {
  IntSpan value_class; // of each shared value
  IntSpan row;         // -1 for those that are no rows
  IntSpan counts;      // for each value class
};

// Nodes and values are numbered over the whole batch; see the reference for what the arrays hold.
struct Batch {
  Batch(std::shared_ptr<const TypeTable> table, std::vector<std::shared_ptr<const TypedGraph>> graphs,
        InputRows &inputs, const SharedRows &shared, bool dedupe);

  IntSpan reads(Index node) const {
    return IntSpan(operands).subspan(operand_start[node], operand_start[node + 1] - operand_start[node]);
  }
  // The value that stands for a value: that of the leader of the node that makes it.
  Index stands_for(Index value) const { return key[value] < first_made ? value : key[value] - first_made; }

  std::shared_ptr<const TypeTable> table;
  std::vector<std::shared_ptr<const TypedGraph>> graphs;
  Ints type, level, rank;
  Ints operand_start, operands;
  Ints first_value;
  Ints leader;
  Ints nodes;
  Ints outputs;
  Ints value_row, given_class;
  Ints producer;
  Index levels = 0;
  // A number for every value, equal for values that are the same: what is given by class and row, what nodes make,
  // from `first_made` upwards, by the value of the leader.
  Ints key;
  Index first_made = 0;

private:
  void allocate();
  void add_given(const TypedGraph &graph, const InputRows &inputs, const Index *input_start, const SharedRows &shared);
  void add_nodes(const TypedGraph &graph, Index first, bool dedupe);
  Index find_leader(const Node &node, bool may_merge);

  Index next_node_ = 0, next_operand_ = 0, next_value_ = 0;

  Ints class_start_; // of the keys of what is given
  struct Slot {
    std::uint32_t hash;
    Index node; // -1 for none
  };
  std::vector<Slot> slots_; // a hash table of calls
};

} // namespace jitbatch
