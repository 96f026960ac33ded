#include "typed_graph.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace jitbatch {
namespace {

// The ranks of the parts of a graph: how many parts of its own type lie on a path below a part, at most, in its loop.
class Ranks {
public:
  explicit Ranks(const TypeTable &table) : table_(table) {}

  struct Added {
    Index part;
    Index level;
    Index rank;
  };

  // A further part, which reads earlier ones; -1 for what is given.
  Added add(Index type, IntSpan reads, bool is_kept) {
    const Type &own = table_.types()[type];
    const Index width = own.loop < 0 ? 0 : size_of(table_.loops()[own.loop]);
    const std::size_t begin = below_.size();
    below_.resize(begin + width, 0);
    below_kept_.resize(begin + width, 0);
    Index level = 0;
    for (Index read : reads) {
      if (read < 0)
        continue;
      level = std::max(level, parts_[read].level + 1);
      if (own.loop < 0 || table_.types()[parts_[read].type].loop != own.loop)
        continue;
      for (Index place = 0; place < width; ++place) {
        below_[begin + place] = std::max(below_[begin + place], below_[parts_[read].begin + place]);
        below_kept_[begin + place] = std::max(below_kept_[begin + place], below_kept_[parts_[read].begin + place]);
      }
    }
    Index rank = 0, kept = is_kept;
    if (own.loop >= 0) {
      rank = below_[begin + own.place]++;
      kept = below_kept_[begin + own.place] += is_kept;
      add_needs(type, rank, reads);
    }
    parts_.push_back({type, level, rank, is_kept ? kept : 0, is_kept, begin});
    return {static_cast<Index>(parts_.size()) - 1, level, rank};
  }

  // Each type, rank and type read once, with the highest rank read.
  std::vector<Need> needs() {
    std::sort(needs_.begin(), needs_.end(), [](const Need &one, const Need &other) {
      return std::tie(one.type, one.rank, one.read, one.highest) <
             std::tie(other.type, other.rank, other.read, other.highest);
    });
    std::vector<Need> highest;
    for (const Need &need : needs_) {
      if (!highest.empty() && highest.back().type == need.type && highest.back().rank == need.rank &&
          highest.back().read == need.read)
        highest.back() = need;
      else
        highest.push_back(need);
    }
    return highest;
  }

  std::vector<TypeRanks> by_type() const {
    std::vector<TypeRanks> of_type(table_.types().size(), {0, 0, 0, 0});
    for (const Ranked &part : parts_) {
      TypeRanks &own = of_type[part.type];
      own.nodes += part.is_kept;
      own.ranks = std::max(own.ranks, part.rank + 1);
      own.least = std::max(own.least, part.kept);
    }
    std::vector<TypeRanks> present;
    for (std::size_t type = 0; type < of_type.size(); ++type) {
      of_type[type].type = static_cast<Index>(type);
      if (of_type[type].ranks)
        present.push_back(of_type[type]);
    }
    return present;
  }

private:
  struct Ranked {
    Index type;
    Index level;
    Index rank;
    Index kept; // how many parts of its type that are kept lie on a path up to it, itself included
    bool is_kept;
    std::size_t begin; // in the tables below
  };

  void add_needs(Index type, Index rank, IntSpan reads) {
    for (Index read : reads) {
      if (read < 0 || parts_[read].type == type || table_.types()[parts_[read].type].loop != table_.types()[type].loop)
        continue;
      needs_.push_back({type, rank, parts_[read].type, parts_[read].rank});
    }
  }

  const TypeTable &table_;
  std::vector<Ranked> parts_;
  // For each part in a loop, and each type of that loop, how many parts of the type lie on a path up to it, itself
  // included: of all parts, and of those that are kept.
  Ints below_, below_kept_;
  std::vector<Need> needs_;
};

// A value while a graph is written anew: its number, and the part that makes it, -1 for what is given.
struct Made {
  Index value;
  Index part;
};

class Retyping {
public:
  Retyping(const TypeTable &table, const GraphView &graph) : graph_(graph), table_(table), ranks_(table) {}

  WrittenGraph run() {
    check_inputs();
    find_shared();
    const Index inputs = static_cast<Index>(graph_.input_class.size());
    for (Index input = 0; input < inputs; ++input)
      made_.push_back({input, -1});
    for (Index number : graph_.shared_rows)
      made_.push_back(shared_value(number));
    result_.values = inputs + size_of(result_.shared);
    for (std::size_t node = 0; node < graph_.kind.size(); ++node)
      add_node(node);
    for (Index value : graph_.outputs) {
      check(value >= 0 && static_cast<std::size_t>(value) < made_.size(), "outputs are values");
      result_.outputs.push_back(made_[value].value);
    }
    result_.needs = ranks_.needs();
    result_.ranks = ranks_.by_type();
    return std::move(result_);
  }

private:
  void check_inputs() const {
    check(graph_.input_class.size() == graph_.input_row.size() && graph_.classes.size() == graph_.class_rows.size(),
          "every input has a class and a row");
    check(graph_.operand_start.size() == graph_.kind.size() + 1, "one entry a node");
    for (std::size_t place = 0; place < graph_.classes.size(); ++place)
      check(graph_.classes[place] >= 0 && graph_.class_rows[place] >= 0, "a class has rows");
    for (std::size_t input = 0; input < graph_.input_class.size(); ++input) {
      const auto found = std::find(graph_.classes.begin(), graph_.classes.end(), graph_.input_class[input]);
      check(found != graph_.classes.end(), "the class of an input has rows");
      const Index rows = graph_.class_rows[found - graph_.classes.begin()];
      check(graph_.input_row[input] >= 0 && graph_.input_row[input] < rows, "an input is a row of its class");
    }
  }

  // The shared values that are rows: of the graph, and those that nodes of its kinds read as rows.
  void find_shared() {
    Ints &shared = result_.shared;
    shared.assign(graph_.shared_rows.begin(), graph_.shared_rows.end());
    Ints kinds(graph_.kind.begin(), graph_.kind.end());
    std::sort(kinds.begin(), kinds.end());
    kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
    for (Index kind : kinds)
      for (const Part &part : table_.recipe(kind).parts)
        for (const Source &source : part.operands)
          if (source.from == From::shared_value)
            shared.push_back(source.first);
    std::sort(shared.begin(), shared.end());
    shared.erase(std::unique(shared.begin(), shared.end()), shared.end());
    check(shared.empty() || shared.front() >= 0, "shared rows exist");
  }

  Made shared_value(Index number) const {
    const auto found = std::lower_bound(result_.shared.begin(), result_.shared.end(), number);
    const Index place = static_cast<Index>(found - result_.shared.begin());
    return {static_cast<Index>(graph_.input_class.size()) + place, -1};
  }

  void add_node(std::size_t node) {
    const Index begin = graph_.operand_start[node], end = graph_.operand_start[node + 1];
    check(begin >= 0 && begin <= end && static_cast<std::size_t>(end) <= graph_.operands.size(),
          "operands are covered");
    const IntSpan reads = graph_.operands.subspan(begin, end - begin);
    for (Index value : reads)
      check(value >= 0 && static_cast<std::size_t>(value) < made_.size(), "a node reads only earlier values");
    const Recipe &recipe = table_.recipe(graph_.kind[node]);
    by_parts_.clear();
    for (const Part &part : recipe.parts)
      add_part(part, reads);
    for (const PartOutput &output : recipe.outputs)
      made_.push_back({by_parts_[output.part].value + output.output, by_parts_[output.part].part});
  }

  void add_part(const Part &part, IntSpan reads) {
    const Type &type = table_.types()[part.type];
    const std::size_t first = result_.operands.size();
    makers_.clear();
    const auto read = [&](const Made &made) {
      result_.operands.push_back(made.value);
      makers_.push_back(made.part);
    };
    if (type.is_variadic) {
      check(!reads.empty(), "a variadic node has a term");
      for (Index value : reads)
        read(made_[value]);
    } else {
      for (const Source &source : part.operands)
        read(operand(source, reads));
    }
    const Index arity = checked_count(result_.operands.size() - first);
    const bool is_kept = !(type.is_variadic && arity == 1);
    const auto [number, level, rank] = ranks_.add(part.type, makers_, is_kept);
    if (is_kept) {
      result_.nodes.push_back({part.type, level, rank, arity});
      result_.levels = std::max(result_.levels, level + 1);
      by_parts_.push_back({result_.values, number});
      result_.values = checked_count(static_cast<std::size_t>(result_.values) + type.outputs);
    } else { // it is its term
      by_parts_.push_back({result_.operands.back(), number});
      result_.operands.pop_back();
    }
  }

  Made operand(const Source &source, IntSpan reads) const {
    switch (source.from) {
    case From::row_operand:
      check(static_cast<std::size_t>(source.first) < reads.size(), "a node has an operand for each row of its kind");
      return made_[reads[source.first]];
    case From::shared_value:
      return shared_value(source.first);
    default:
      return {by_parts_[source.first].value + source.output, by_parts_[source.first].part};
    }
  }

  const GraphView &graph_;
  const TypeTable &table_;
  Ranks ranks_;
  WrittenGraph result_;
  std::vector<Made> made_;     // of the values of the graph as it was
  std::vector<Made> by_parts_; // of the parts of the current node, their first outputs
  Ints makers_;                // of the operands of the current part
};

} // namespace

TypedGraph::TypedGraph(std::shared_ptr<const TypeTable> types, const WrittenGraph &written, const GraphView &graph)
    : table(std::move(types)), values(written.values), levels(written.levels) {
  std::size_t bytes = 0;
  const auto each = [&](auto &&visit) {
    visit(written.nodes, nodes);
    visit(written.operands, operands);
    visit(graph.input_class, input_class);
    visit(graph.input_row, input_row);
    visit(graph.classes, classes);
    visit(graph.class_rows, class_rows);
    visit(written.shared, shared);
    visit(written.outputs, outputs);
    visit(written.needs, needs);
    visit(written.ranks, ranks);
  };
  each([&](const auto &from, const auto &) { bytes += from.size() * sizeof(*from.data()); });
  memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::byte *place = memory_.get();
  each([&](const auto &from, auto &kept) { // all of them consist of integers, so they are aligned
    using Item = typename std::remove_reference_t<decltype(kept)>::element_type;
    const std::size_t size = from.size() * sizeof(Item);
    if (size)
      std::memcpy(place, from.data(), size);
    kept = {reinterpret_cast<Item *>(place), from.size()};
    place += size;
  });
}

std::shared_ptr<TypedGraph> retype(std::shared_ptr<const TypeTable> table, const GraphView &graph) {
  const WrittenGraph written = Retyping(*table, graph).run();
  return std::make_shared<TypedGraph>(std::move(table), written, graph);
}

} // namespace jitbatch
