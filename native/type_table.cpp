#include "type_table.h"

namespace jitbatch {

TypeTable::TypeTable(std::vector<Type> types, std::vector<Ints> loops, std::vector<std::pair<Index, Recipe>> recipes)
    : types_(std::move(types)), loops_(std::move(loops)) {
  for (const Type &type : types_)
    check(type.outputs >= 0 && type.rows >= 0, "a type has outputs and rows");
  for (std::size_t loop = 0; loop < loops_.size(); ++loop) {
    for (std::size_t place = 0; place < loops_[loop].size(); ++place) {
      const Index member = loops_[loop][place];
      check(member >= 0 && member < type_count(), "a loop has types that exist");
      check(types_[member].loop < 0, "a type is in one loop");
      types_[member].loop = static_cast<Index>(loop);
      types_[member].place = static_cast<Index>(place);
    }
  }
  for (auto &[kind, recipe] : recipes) {
    check(kind >= 0 && kind < 1 << 24, "a kind is a small number");
    check_recipe(recipe);
    if (kind >= size_of(recipe_of_kind_))
      recipe_of_kind_.resize(kind + 1, -1);
    recipe_of_kind_[kind] = static_cast<Index>(recipes_.size());
    recipes_.push_back(std::move(recipe));
  }
}

void TypeTable::check_recipe(const Recipe &recipe) const {
  const auto made = [&](Index part, Index output, std::size_t before) {
    check(part >= 0 && static_cast<std::size_t>(part) < before, "a recipe reads earlier parts");
    const Type &type = types_[recipe.parts[part].type];
    check(output >= 0 && output < type.outputs, "a part makes what is read of it");
  };
  for (std::size_t place = 0; place < recipe.parts.size(); ++place) {
    const Part &part = recipe.parts[place];
    check(part.type >= 0 && part.type < type_count(), "a part has a type that exists");
    const Type &type = types_[part.type];
    check(type.is_variadic ? type.outputs == 1 : type.rows == static_cast<Index>(part.operands.size()),
          "a part has an operand for each row");
    for (const Source &source : part.operands) {
      check(source.first >= 0, "an operand comes from somewhere");
      if (source.from == From::part_output)
        made(source.first, source.output, place);
    }
  }
  for (const PartOutput &output : recipe.outputs)
    made(output.part, output.output, recipe.parts.size());
}

const Recipe &TypeTable::recipe(Index kind) const {
  check(kind >= 0 && kind < size_of(recipe_of_kind_) && recipe_of_kind_[kind] >= 0,
        "a node is of a kind that the types were decided for");
  return recipes_[recipe_of_kind_[kind]];
}

} // namespace jitbatch
