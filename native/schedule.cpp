#include "schedule.h"

#include <algorithm>
#include <bit>

namespace jitbatch {

Index bit_length(Index number) { return static_cast<Index>(std::bit_width(static_cast<std::uint32_t>(number))); }

Schedule::Schedule(std::shared_ptr<const Batch> batch)
    : batch_(std::move(batch)), ranks_(table().type_count(), 0), least_(table().type_count(), 0),
      round_(batch_->nodes.size(), 0) {
  for (const auto &graph : batch_->graphs) {
    for (const TypeRanks &own : graph->ranks) {
      ranks_[own.type] = std::max(ranks_[own.type], own.ranks);
      least_[own.type] = std::max(least_[own.type], own.least);
    }
  }
  for (Index least : least_)
    bound_ += least;
}

void Schedule::check_loop(Index loop) const { check(loop >= 0 && loop < loop_count(), "a loop exists"); }

Ints Schedule::members(Index loop) const {
  check_loop(loop);
  Ints found;
  for (Index node = 0; node < size_of(round_); ++node)
    if (table().types()[type_of(node)].loop == loop)
      found.push_back(node);
  return found;
}

Index Schedule::least_steps(Index loop) const {
  check_loop(loop);
  Index steps = 0;
  for (Index type : table().loops()[loop])
    steps += least_[type];
  return steps;
}

Index Schedule::most_steps(Index loop) const {
  check_loop(loop);
  Index steps = 0;
  for (Index type : table().loops()[loop])
    steps += ranks_[type];
  return steps;
}

// In each round one step for each type that has nodes in it.
Index Schedule::steps(Index loop) const {
  check_loop(loop);
  const Index types = size_of(table().loops()[loop]);
  std::vector<bool> has_nodes;
  Index steps = 0;
  for (Index node = 0; node < size_of(round_); ++node) {
    const Type &type = table().types()[type_of(node)];
    if (type.loop != loop)
      continue;
    const std::size_t step = static_cast<std::size_t>(round_[node]) * types + type.place;
    if (step >= has_nodes.size())
      has_nodes.resize(step + 1, false);
    steps += !has_nodes[step];
    has_nodes[step] = true;
  }
  return steps;
}

// Types take turns in the order of the loop, and a round begins where a type is not a later one.
bool Schedule::by_ranks(Index loop) {
  check_loop(loop);
  const Ints &members = table().loops()[loop];
  const Index types = size_of(members);
  Ints first_rank(types + 1, 0); // ranks of all types of the loop are numbered, type after type
  for (Index place = 0; place < types; ++place)
    first_rank[place + 1] = first_rank[place] + ranks_[members[place]];

  // What each rank needs, of all graphs.
  Ints begin(first_rank[types] + 2, 0);
  const auto each_need = [&](auto &&visit) {
    for (const auto &graph : batch_->graphs)
      for (const Need &need : graph->needs)
        if (const Type &type = table().types()[need.type]; type.loop == loop)
          visit(first_rank[type.place] + need.rank, Bound{table().types()[need.read].place, need.highest + 1});
  };
  each_need([&](Index rank, const Bound &) { ++begin[rank + 2]; });
  for (std::size_t rank = 2; rank < begin.size(); ++rank)
    begin[rank] += begin[rank - 1];
  std::vector<Bound> bounds(begin.back());
  each_need([&](Index rank, const Bound &bound) { bounds[begin[rank + 1]++] = bound; });

  Ints done(types, 0), round_of_rank(first_rank[types], 0);
  Index left = first_rank[types], now = -1, last = types;
  while (left) {
    const Index left_before = left;
    for (Index place = 0; place < types; ++place) {
      const Index rank = first_rank[place] + done[place];
      if (rank == first_rank[place + 1])
        continue;
      const bool is_ready = std::all_of(bounds.begin() + begin[rank], bounds.begin() + begin[rank + 1],
                                        [&](const Bound &bound) { return done[bound.read] >= bound.count; });
      if (!is_ready)
        continue;
      now += place <= last;
      last = place;
      round_of_rank[rank] = now;
      ++done[place];
      --left;
    }
    if (left == left_before)
      return false;
  }
  for (Index node = 0; node < size_of(round_); ++node) {
    const Type &type = table().types()[type_of(node)];
    if (type.loop == loop)
      round_[node] = round_of_rank[first_rank[type.place] + batch_->rank[batch_->nodes[node]]];
  }
  return true;
}

void Schedule::put(Index loop, IntSpan rounds) {
  const Ints own = members(loop);
  check(own.size() == rounds.size(), "every node of a loop has a round");
  for (Index round : rounds)
    check(round >= 0 && round < checked_count(round_.size()) + 1, "there are not more rounds than nodes");
  for (std::size_t place = 0; place < own.size(); ++place)
    round_[own[place]] = rounds[place];
}

Order Schedule::ordered() const {
  const Index nodes = size_of(round_), types = table().type_count();
  Index rounds = 0;
  for (Index round : round_)
    rounds = std::max(rounds, round + 1);
  Order order{Ints(nodes), Ints(types + 1, 0)};
  // Sorted by rounds and then by types, each time by counting.
  Ints begin(rounds + 1, 0), by_round(nodes), type_of_node(nodes);
  for (Index node = 0; node < nodes; ++node) {
    type_of_node[node] = type_of(node);
    ++begin[round_[node] + 1];
    ++order.type_start[type_of_node[node] + 1];
  }
  for (Index round = 0; round < rounds; ++round)
    begin[round + 1] += begin[round];
  for (Index node = 0; node < nodes; ++node)
    by_round[begin[round_[node]]++] = node;
  for (Index type = 0; type < types; ++type)
    order.type_start[type + 1] += order.type_start[type];
  Ints next(order.type_start);
  for (Index node : by_round)
    order.nodes[next[type_of_node[node]]++] = node;
  return order;
}

Measured Schedule::measure(const std::vector<Ints> &carries, bool counts_trips) const {
  const Index types = table().type_count();
  check(static_cast<Index>(carries.size()) == types, "every type says which operands have cotangents");
  for (Index type = 0; type < types; ++type)
    check(size_of(carries[type]) == table().types()[type].rows, "every row operand has a cotangent or none");
  const Order order = ordered();
  Measured measured;
  for (Ints *counts : {&measured.nodes, &measured.terms, &measured.longest, &measured.widest})
    counts->assign(types, 0);
  measured.rounds.assign(loop_count(), 0);
  for (Index type = 0; type < types; ++type) {
    Index in_round = 0, last = -1;
    for (Index node : order.of(type)) {
      const Index arity = static_cast<Index>(reads(node).size());
      measured.terms[type] += arity;
      measured.longest[type] = std::max(measured.longest[type], arity);
      in_round = round_[node] == last ? in_round + 1 : 1;
      last = round_[node];
      measured.widest[type] = std::max(measured.widest[type], in_round);
    }
    measured.nodes[type] = static_cast<Index>(order.of(type).size());
    if (const Index loop = table().types()[type].loop; loop >= 0)
      measured.rounds[loop] = std::max(measured.rounds[loop], last + 1);
  }
  for (Index loop = 0; loop < loop_count(); ++loop) {
    Ints value_class;
    const Ints readers = count_readers(loop, carries, order, value_class);
    std::map<Index, Index> pairs;
    for (std::size_t value = 0; value < readers.size(); ++value)
      if (readers[value])
        pairs[value_class[value]] += readers[value] - 1;
    measured.pairs.push_back(std::move(pairs));
    measured.pair_trips.push_back(counts_trips ? pair_trips(readers, value_class) : std::map<Index, Index>());
  }
  return measured;
}

// How many cotangent rows each value has that the loop both makes and reads; and its class.
Ints Schedule::count_readers(Index loop, const std::vector<Ints> &carries, const Order &order,
                             Ints &value_class) const {
  Ints readers(batch_->key.size(), 0);
  value_class.assign(batch_->key.size(), -1);
  for (Index type : table().loops()[loop]) {
    const bool is_variadic = table().types()[type].is_variadic;
    for (Index node : order.of(type)) {
      const IntSpan operands = reads(node);
      for (std::size_t place = 0; place < operands.size(); ++place) {
        const Index carried = carries[type][is_variadic ? 0 : place], maker = batch_->producer[operands[place]];
        if (carried < 0 || maker < 0 || table().types()[batch_->type[maker]].loop != loop)
          continue;
        const Index value = batch_->stands_for(operands[place]);
        ++readers[value];
        value_class[value] = carried;
      }
    }
  }
  return readers;
}

// For each class how many chunks of sums of pairs are due at once, at most.
std::map<Index, Index> Schedule::pair_trips(const Ints &readers, const Ints &value_class) const {
  std::map<Index, Index> most, trips;
  for (std::size_t value = 0; value < readers.size(); ++value)
    if (readers[value])
      most[value_class[value]] = std::max(most[value_class[value]], readers[value] - 1);
  Ints distinct(batch_->type.size(), -1);
  for (Index node = 0; node < size_of(round_); ++node)
    distinct[batch_->nodes[node]] = node;
  // How many pairs there are of each class, round, type and depth.
  std::map<std::tuple<Index, Index, Index, Index>, Index> pairs;
  for (std::size_t value = 0; value < readers.size(); ++value) {
    const Index maker = batch_->producer[value], own = value_class[value];
    for (Index pair = 0; pair + 1 < readers[value]; ++pair)
      ++pairs[{own, round_[distinct[maker]], batch_->type[maker], bit_length(most[own]) - bit_length(pair + 1)}];
  }
  std::map<std::tuple<Index, Index, Index>, Index> chunks;
  for (const auto &[where, count] : pairs) {
    const auto &[own, round, type, depth] = where;
    const Index together = chunks[{own, round, type}] += (count + pair_width - 1) / pair_width;
    trips[own] = std::max(trips[own], together);
  }
  return trips;
}

} // namespace jitbatch
