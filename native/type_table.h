// The types of a batch: what a node of each kind becomes, and which types run in a loop.
#pragma once

#include "numbers.h"

namespace jitbatch {

// Where an operand of a part comes from.
enum class From : Index { row_operand = 0, shared_value = 1, part_output = 2 };

struct Source {
  From from;
  Index first;  // a column of the node's operands, a shared value, or a part
  Index output; // of the part
};

// A node that a node becomes.
struct Part {
  Index type;
  std::vector<Source> operands;
};

struct PartOutput {
  Index part;
  Index output;
};

// What nodes of a kind become, and which part makes each of their outputs.
struct Recipe {
  std::vector<Part> parts;
  std::vector<PartOutput> outputs;
};

struct Type {
  Index outputs; // how many values a node makes
  Index rows;    // how many rows it reads, if it is not variadic
  bool is_variadic;
  bool may_merge; // whether equal calls are one call
  Index loop = -1;
  Index place = 0; // in its loop
};

class TypeTable {
public:
  TypeTable(std::vector<Type> types, std::vector<Ints> loops, std::vector<std::pair<Index, Recipe>> recipes);

  const std::vector<Type> &types() const { return types_; }
  const std::vector<Ints> &loops() const { return loops_; }
  Index type_count() const { return static_cast<Index>(types_.size()); }
  // Raises for a kind that is not among those that the types were decided for.
  const Recipe &recipe(Index kind) const;

private:
  void check_recipe(const Recipe &recipe) const;

  std::vector<Type> types_;
  std::vector<Ints> loops_;
  std::vector<Recipe> recipes_;
  Ints recipe_of_kind_; // -1 for none
};

} // namespace jitbatch
