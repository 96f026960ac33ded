#include "numbering.h"

#include <algorithm>

namespace jitbatch {
namespace {

class Numbering {
public:
  Numbering(const Ends &ends, const Recording &recording) : ends_(ends), recording_(recording) {}

  Numbered run() {
    check_recording();
    find_needed();
    find_used();
    for (std::size_t node = 0; node < recording_.kinds.size(); ++node)
      if (is_needed_[node])
        add_node(node);
    for (Row row : recording_.outputs)
      result_.outputs.push_back(value_of(row));
    finish();
    return std::move(result_);
  }

private:
  // Of a row that is made.
  struct Made {
    Index node = -1; // of the recording
    Index value = -1;
    Index end = -1; // which output of its kind it is, among the ends
  };

  Index kind_of(std::size_t node) const { return static_cast<Index>(recording_.kinds[node]); }

  // Rows that are made are numbered from zero and from `bare` upwards: one after the other here.
  std::size_t place_of(Row row) const {
    const std::size_t place = row < bare ? row : row - bare + bare_begin_;
    check(place < made_.size() && (row < bare ? place < bare_begin_ : true), "a row is made by some node");
    return place;
  }

  std::size_t given_of(Row row) const {
    const std::size_t place = static_cast<std::size_t>(-1 - row);
    check(place < recording_.given.size(), "a row is given");
    return place;
  }

  void check_recording() {
    check(recording_.kinds.size() == recording_.counts.size() &&
              recording_.given.size() == recording_.given_class.size(),
          "a recording has a count for each node and a class for each row");
    Row reads = 0, outputs = 0, last = -1, last_bare = bare - 1;
    for (std::size_t node = 0; node < recording_.kinds.size(); ++node) {
      check(recording_.kinds[node] >= 0 && recording_.kinds[node] < ends_.kinds(), "kinds exist");
      check(recording_.counts[node] >= 0, "counts are not negative");
      start_.push_back(reads);
      first_.push_back(outputs);
      reads += recording_.counts[node];
      outputs += ends_.first_output[kind_of(node) + 1] - ends_.first_output[kind_of(node)];
    }
    start_.push_back(reads);
    first_.push_back(outputs);
    check(static_cast<std::size_t>(reads) == recording_.operands.size() &&
              static_cast<std::size_t>(outputs) == recording_.made.size(),
          "operands and outputs are covered");
    checked_count(recording_.operands.size() + recording_.made.size() + recording_.given.size());
    for (Row row : recording_.made) {
      check(row >= 0, "nodes make rows that are not given");
      (row < bare ? last : last_bare) = std::max(row, row < bare ? last : last_bare);
    }
    // Numbers that no node has are bare operations that became part of one: there are not many more than rows.
    check(last + (last_bare - bare) < Row(1) << 31, "rows have small numbers");
    bare_begin_ = static_cast<std::size_t>(last + 1);
    made_.resize(bare_begin_ + static_cast<std::size_t>(last_bare - bare + 1));
    for (std::size_t node = 0; node < recording_.kinds.size(); ++node)
      for (Row at = first_[node]; at < first_[node + 1]; ++at)
        made_[place_of(recording_.made[at])].node = static_cast<Index>(node);
  }

  // Nodes that the outputs need, or that have effects.
  void find_needed() {
    is_needed_.assign(recording_.kinds.size(), false);
    const auto need = [&](Row row, std::size_t reader) {
      if (row < 0)
        return;
      const Index node = made_[place_of(row)].node;
      check(node >= 0 && static_cast<std::size_t>(node) < reader, "a node reads only earlier values");
      is_needed_[node] = true;
    };
    for (Row row : recording_.outputs)
      need(row, recording_.kinds.size());
    for (std::size_t node = recording_.kinds.size(); node-- > 0;) {
      if (ends_.has_effects[kind_of(node)])
        is_needed_[node] = true;
      for (Row at = start_[node]; is_needed_[node] && at < start_[node + 1]; ++at)
        need(recording_.operands[at], node);
    }
  }

  // What is given and read, in the order in which it is read: inputs before shared values.
  void find_used() {
    value_of_given_.assign(recording_.given.size(), -1);
    Ints shared;
    const auto use = [&](Row row) {
      if (row >= 0)
        return;
      const std::size_t place = given_of(row);
      if (value_of_given_[place] >= 0)
        return;
      value_of_given_[place] = 0;
      const auto &[leaf, depth, index] = recording_.given[place];
      if (leaf < 0) {
        shared.push_back(static_cast<Index>(place));
        result_.shared_rows.push_back(static_cast<Index>(depth));
        return;
      }
      value_of_given_[place] = static_cast<Index>(result_.value_class.size());
      result_.value_class.push_back(static_cast<Index>(recording_.given_class[place]));
      for (Row number : {leaf, depth, index}) {
        check(number >= 0 && number < Row(1) << 31, "inputs are rows of leaves");
        result_.inputs.push_back(static_cast<Index>(number));
      }
    };
    for (std::size_t node = 0; node < recording_.kinds.size(); ++node)
      for (Row at = start_[node]; is_needed_[node] && at < start_[node + 1]; ++at)
        use(recording_.operands[at]);
    for (Row row : recording_.outputs)
      use(row);
    for (Index place : shared) {
      value_of_given_[place] = static_cast<Index>(result_.value_class.size());
      result_.value_class.push_back(static_cast<Index>(recording_.given_class[place]));
    }
    for (Index value_class : result_.value_class)
      check(value_class >= 0 && value_class < 1 << 24, "a class is a small number");
    result_.node_values.push_back(size_of(result_.value_class));
    result_.operand_start.push_back(0);
  }

  Index value_of(Row row) const { return row < 0 ? value_of_given_[given_of(row)] : made_[place_of(row)].value; }

  void add_node(std::size_t node) {
    const Index kind = kind_of(node);
    Index level = 0;
    for (Row at = start_[node]; at < start_[node + 1]; ++at) {
      const Row row = recording_.operands[at];
      result_.operands.push_back(value_of(row));
      if (row < 0)
        continue;
      const Made &made = made_[place_of(row)];
      level = std::max(level, level_[made.node] + 1);
      const Index column = ends_.is_variadic[kind] ? 0 : static_cast<Index>(at - start_[node]);
      const Index slot = ends_.first_slot[kind] + column;
      check(slot < ends_.first_slot[kind + 1], "a node has an operand for each row of its kind");
      result_.edges.emplace_back(made.end, slot);
    }
    level_.resize(node + 1, 0);
    level_[node] = level;
    result_.kind.push_back(kind);
    result_.level.push_back(level);
    result_.operand_start.push_back(size_of(result_.operands));
    for (Row at = first_[node]; at < first_[node + 1]; ++at) {
      Made &made = made_[place_of(recording_.made[at])];
      made.end = ends_.first_output[kind] + static_cast<Index>(at - first_[node]);
      made.value = size_of(result_.value_class);
      result_.value_class.push_back(ends_.out_class[made.end]);
    }
    result_.node_values.push_back(size_of(result_.value_class));
  }

  void finish() {
    auto &edges = result_.edges;
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    result_.kinds_present = result_.kind;
    std::sort(result_.kinds_present.begin(), result_.kinds_present.end());
    result_.kinds_present.erase(std::unique(result_.kinds_present.begin(), result_.kinds_present.end()),
                                result_.kinds_present.end());
  }

  const Ends &ends_;
  const Recording &recording_;
  Rows start_, first_; // where the operands and the outputs of each node begin
  std::vector<Made> made_;
  std::size_t bare_begin_ = 0;
  std::vector<bool> is_needed_;
  Ints value_of_given_;
  Ints level_; // of nodes of the recording
  Numbered result_;
};

} // namespace

void Ends::check() const {
  jitbatch::check(first_output.size() == is_variadic.size() + 1 && first_slot.size() == is_variadic.size() + 1 &&
                      has_effects.size() == is_variadic.size(),
                  "every kind has ends");
  for (std::size_t kind = 0; kind < is_variadic.size(); ++kind)
    jitbatch::check(first_output[kind] >= 0 && first_output[kind] <= first_output[kind + 1] && first_slot[kind] >= 0 &&
                        first_slot[kind] <= first_slot[kind + 1],
                    "ends ascend");
  jitbatch::check(static_cast<std::size_t>(first_output.back()) == out_class.size(), "every output has a class");
}

Numbered number(const Ends &ends, const Recording &recording) { return Numbering(ends, recording).run(); }

} // namespace jitbatch
