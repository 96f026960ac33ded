// The rounds of the nodes of a batch that run in loops, and the counts that the sizes of a program depend on.
#pragma once

#include <map>

#include "batch.h"

namespace jitbatch {

// What a batch needs room for; see the reference.
struct Measured {
  Ints nodes, terms, longest, widest; // of each type
  Ints rounds;                        // of each loop
  std::vector<std::map<Index, Index>> pairs, pair_trips;
};

// The distinct nodes in the order in which their rows lie: by type, and those of a type by round.
struct Order {
  Ints nodes;      // as numbers among the distinct nodes
  Ints type_start; // [types + 1]

  IntSpan of(Index type) const {
    return IntSpan(nodes).subspan(type_start[type], type_start[type + 1] - type_start[type]);
  }
};

class Schedule {
public:
  explicit Schedule(std::shared_ptr<const Batch> batch);

  const Batch &batch() const { return *batch_; }
  const TypeTable &table() const { return *batch_->table; }
  Index loop_count() const { return static_cast<Index>(table().loops().size()); }
  Index bound() const { return bound_; }
  // The round of each distinct node, 0 for those that are in no loop.
  const Ints &round() const { return round_; }
  Index type_of(Index node) const { return batch_->type[batch_->nodes[node]]; }
  IntSpan reads(Index node) const { return batch_->reads(batch_->nodes[node]); }

  Ints members(Index loop) const;
  Index least_steps(Index loop) const;
  // How many steps a loop has at most, if they are ranks.
  Index most_steps(Index loop) const;
  Index steps(Index loop) const;
  // Lets the steps of a loop be ranks, if these have an order; whether they have one.
  bool by_ranks(Index loop);
  void put(Index loop, IntSpan rounds);
  Order ordered() const;
  // `carries`: for each type and row operand the value class of what it reads, -1 if it has no cotangent rows.
  // `counts_trips`: whether to count how many sums of pairs are due at once.
  Measured measure(const std::vector<Ints> &carries, bool counts_trips) const;

private:
  struct Bound {
    Index read;  // a type of the loop, by its place
    Index count; // of its ranks that come before
  };

  void check_loop(Index loop) const;
  Ints count_readers(Index loop, const std::vector<Ints> &carries, const Order &order, Ints &value_class) const;
  std::map<Index, Index> pair_trips(const Ints &readers, const Ints &value_class) const;

  std::shared_ptr<const Batch> batch_;
  Ints ranks_, least_; // of each type
  Ints round_;
  Index bound_ = 0;
};

// For each k readers of a value there are k - 1 sums of pairs, as a heap; a pair reads only pairs of lower depth.
Index bit_length(Index number);
constexpr Index pair_width = 32;

} // namespace jitbatch
