// A graph in terms of the types of a batch.
#pragma once

#include <memory>

#include "type_table.h"

namespace jitbatch {

struct Node {
  Index type;
  Index level;
  Index rank; // among the nodes of its loop
  Index arity;
};

// Nodes of a type and rank read some of type `read`, of ranks up to `highest`.
struct Need {
  Index type;
  Index rank;
  Index read;
  Index highest;
};

// Of a type that is there: its nodes, its ranks, and how many ranks it has without variadic nodes of one term.
struct TypeRanks {
  Index type;
  Index nodes;
  Index ranks;
  Index least;
};

// The graph of a sample as it was recorded.
struct GraphView {
  IntSpan kind, operand_start, operands, shared_rows, outputs;
  IntSpan input_class, input_row; // of each input
  IntSpan classes, class_rows;    // how many rows of which classes the sample has
};

// Values are numbered: the inputs, the shared values that are rows, then what the nodes make, in order. A variadic
// node of one term is that term, and no node; but it has a rank and a level, so that what is at the same height of two
// trees has the same rank, whether a node has one child or several.
struct WrittenGraph {
  std::vector<Node> nodes; // in topological order
  Ints operands;           // node after node
  Index values = 0;
  Index levels = 0; // how many nodes the longest path has
  Ints outputs;
  Ints shared;
  std::vector<Need> needs;
  std::vector<TypeRanks> ranks; // by type, ascending
};

// A written graph as it is kept: everything in one piece of memory, since a batch reads graphs from all over it.
class TypedGraph {
public:
  TypedGraph(std::shared_ptr<const TypeTable> table, const WrittenGraph &written, const GraphView &graph);
  TypedGraph(const TypedGraph &) = delete;
  TypedGraph &operator=(const TypedGraph &) = delete;

  std::shared_ptr<const TypeTable> table;
  Index values, levels;
  std::span<const Node> nodes;
  IntSpan operands, outputs;
  IntSpan input_class, input_row;
  IntSpan classes, class_rows;
  IntSpan shared;
  std::span<const Need> needs;
  std::span<const TypeRanks> ranks;

private:
  std::unique_ptr<std::byte[]> memory_;
};

std::shared_ptr<TypedGraph> retype(std::shared_ptr<const TypeTable> table, const GraphView &graph);

} // namespace jitbatch
