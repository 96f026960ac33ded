// The sizes of a fused program, and where its tables lie in one buffer; see `jitbatch/core/layout.py`.
#pragma once

#include <memory>
#include <optional>

#include "type_table.h"

namespace jitbatch {

constexpr Index no_table = -1;

struct BlockLayout {
  Index type, capacity, terms, longest;
  Ints starts, reads, writes, edges, widths, chunks, tables;
};

struct ArenaTables {
  Index edge_of_row, row_of_edge, edge_of_term, row_of_term, pair_left, pair_right, pair_start, pair_span;
};

struct LoopLayout {
  Index margin, rounds, most;
  Ints pair_trips, widths, edge_rows, pair_rows;
  Index rounds_table, ends_table;
  std::vector<ArenaTables> arenas;

  bool is_static() const { return !pair_trips.empty(); }
};

struct PhaseLayout {
  std::vector<BlockLayout> blocks;
  Index total_table;
  std::optional<LoopLayout> loop;

  Index margin() const { return loop ? loop->margin : 0; }
};

struct ArenaLayout {
  Index value_class, shared, inputs, capacity;
};

// Whatever is written by a layout lies inside its arenas and tables: that is checked here, once.
class Layout {
public:
  Layout(std::shared_ptr<const TypeTable> table, std::vector<PhaseLayout> phases, std::vector<ArenaLayout> arenas,
         Index size);

  const TypeTable &table() const { return *table_; }
  const std::shared_ptr<const TypeTable> &shared_table() const { return table_; }
  const std::vector<PhaseLayout> &phases() const { return phases_; }
  const std::vector<ArenaLayout> &arenas() const { return arenas_; }
  Index size() const { return size_; }

private:
  void check_block(const BlockLayout &block, const PhaseLayout &phase) const;
  void check_loop(const PhaseLayout &phase) const;
  void check_arena(std::size_t arena, const PhaseLayout &phase) const;
  void check_table(Index offset, std::size_t elements) const;

  std::shared_ptr<const TypeTable> table_;
  std::vector<PhaseLayout> phases_;
  std::vector<ArenaLayout> arenas_;
  Index size_;
};

} // namespace jitbatch
