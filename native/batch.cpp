#include "batch.h"

#include <algorithm>

namespace jitbatch {
namespace {

// Finds the distinct input rows; for each sample and class, where its rows begin among those of the class.
Ints merge_inputs(const std::vector<std::shared_ptr<const TypedGraph>> &graphs, InputRows &inputs, bool dedupe) {
  const std::size_t classes = static_cast<std::size_t>(inputs.class_count());
  Ints starts(classes * graphs.size());
  std::vector<std::size_t> total(classes, 0);
  for (std::size_t sample = 0; sample < graphs.size(); ++sample) {
    for (std::size_t number = 0; number < classes; ++number)
      starts[sample * classes + number] = checked_count(total[number]);
    for (std::size_t place = 0; place < graphs[sample]->classes.size(); ++place) {
      check(graphs[sample]->classes[place] < inputs.class_count(), "inputs are of value classes that exist");
      total[graphs[sample]->classes[place]] += graphs[sample]->class_rows[place];
    }
  }
  for (std::size_t number = 0; number < classes; ++number)
    inputs.merge(static_cast<Index>(number), checked_count(total[number]), dedupe);
  return starts;
}

} // namespace

Batch::Batch(std::shared_ptr<const TypeTable> types, std::vector<std::shared_ptr<const TypedGraph>> all,
             InputRows &inputs, const SharedRows &shared, bool dedupe)
    : table(std::move(types)), graphs(std::move(all)) {
  for (const auto &graph : graphs)
    check(graph && graph->table == table, "a typed graph is of the types of the batch");
  check(shared.value_class.size() == shared.row.size(), "every shared value has a class");
  check(static_cast<Index>(shared.counts.size()) == inputs.class_count(), "every class has a count of shared values");
  const Ints starts = merge_inputs(graphs, inputs, dedupe);
  const std::size_t classes = static_cast<std::size_t>(inputs.class_count());
  std::size_t given = 0;
  for (std::size_t number = 0; number < classes; ++number) {
    class_start_.push_back(checked_count(given));
    given += static_cast<std::size_t>(shared.counts[number]) + inputs.count(static_cast<Index>(number));
  }
  first_made = checked_count(given);
  allocate();
  for (std::size_t sample = 0; sample < graphs.size(); ++sample) {
    const TypedGraph &graph = *graphs[sample];
    const Index first = next_value_;
    add_given(graph, inputs, starts.data() + sample * classes, shared);
    add_nodes(graph, first, dedupe);
    for (Index value : graph.outputs)
      outputs.push_back(first + value);
    levels = std::max(levels, graph.levels);
  }
  slots_ = {};
}

void Batch::allocate() {
  std::size_t node_count = 0, operand_count = 0, value_count = 0;
  for (const auto &graph : graphs) {
    node_count += graph->nodes.size();
    operand_count += graph->operands.size();
    value_count += graph->values;
  }
  checked_count(2 * (value_count + operand_count) + first_made);
  for (Ints *numbers : {&type, &level, &rank, &first_value, &leader})
    numbers->resize(node_count);
  nodes.reserve(node_count);
  operand_start.resize(node_count + 1);
  operand_start[0] = 0;
  operands.resize(operand_count);
  for (Ints *numbers : {&value_row, &given_class, &producer, &key})
    numbers->resize(value_count);
  std::size_t slots = 16;
  while (slots < 2 * node_count)
    slots *= 2;
  slots_.assign(slots, {0, -1});
}

void Batch::add_given(const TypedGraph &graph, const InputRows &inputs, const Index *input_start,
                      const SharedRows &shared) {
  const auto add = [&](Index value_class, Index row) {
    value_row[next_value_] = row;
    given_class[next_value_] = value_class;
    producer[next_value_] = -1;
    key[next_value_++] = class_start_[value_class] + row;
  };
  for (std::size_t input = 0; input < graph.input_class.size(); ++input) {
    const Index value_class = graph.input_class[input];
    const Index row = inputs.which(value_class)[input_start[value_class] + graph.input_row[input]];
    add(value_class, shared.counts[value_class] + row);
  }
  for (Index number : graph.shared) {
    check(static_cast<std::size_t>(number) < shared.row.size(), "a shared value has a row");
    const Index value_class = shared.value_class[number];
    check(value_class >= 0 && value_class < size_of(class_start_), "a shared value has a class");
    add(value_class, shared.row[number]);
  }
}

void Batch::add_nodes(const TypedGraph &graph, Index first, bool dedupe) {
  const Index *operand = graph.operands.data();
  for (const Node &node : graph.nodes) {
    const Type &own = table->types()[node.type];
    for (Index place = 0; place < node.arity; ++place)
      operands[next_operand_++] = first + *operand++;
    const Index number = next_node_, by = find_leader(node, dedupe && own.may_merge);
    operand_start[number + 1] = next_operand_;
    type[number] = node.type;
    level[number] = node.level;
    rank[number] = node.rank;
    leader[number] = by;
    first_value[number] = next_value_;
    if (by == number)
      nodes.push_back(number);
    for (Index output = 0; output < own.outputs; ++output) {
      value_row[next_value_] = -1;
      given_class[next_value_] = -1;
      producer[next_value_] = number;
      key[next_value_++] = first_made + first_value[by] + output;
    }
    ++next_node_;
  }
}

// The first node that is the same call as the one whose operands come last: a call of the same type on the same
// values. Calls with equal hashes are compared.
Index Batch::find_leader(const Node &node, bool may_merge) {
  const Index number = next_node_;
  if (!may_merge)
    return number;
  const Index *own = operands.data() + operand_start[number];
  std::uint64_t hash = static_cast<std::uint64_t>(node.type) * 0xD6E8FEB86659FD93ull + node.arity;
  for (Index place = 0; place < node.arity; ++place) {
    hash = (hash ^ static_cast<std::uint64_t>(key[own[place]])) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  }
  const auto is_same = [&](Index other) {
    if (type[other] != node.type || operand_start[other + 1] - operand_start[other] != node.arity)
      return false;
    const Index *theirs = operands.data() + operand_start[other];
    for (Index place = 0; place < node.arity; ++place)
      if (key[own[place]] != key[theirs[place]])
        return false;
    return true;
  };
  const std::uint32_t mixed = static_cast<std::uint32_t>(hash ^ hash >> 32);
  std::size_t slot = mixed & (slots_.size() - 1);
  while (slots_[slot].node >= 0 && !(slots_[slot].hash == mixed && is_same(slots_[slot].node)))
    slot = (slot + 1) & (slots_.size() - 1);
  if (slots_[slot].node < 0)
    slots_[slot] = {mixed, number};
  return slots_[slot].node;
}

} // namespace jitbatch
