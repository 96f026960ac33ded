#include "layout.h"

#include <algorithm>

namespace jitbatch {
namespace {

std::size_t positive(Index number) {
  check(number >= 0, "sizes are not negative");
  return static_cast<std::size_t>(number);
}

} // namespace

Layout::Layout(std::shared_ptr<const TypeTable> table, std::vector<PhaseLayout> phases, std::vector<ArenaLayout> arenas,
               Index size)
    : table_(std::move(table)), phases_(std::move(phases)), arenas_(std::move(arenas)), size_(size) {
  positive(size);
  for (const ArenaLayout &arena : arenas_) {
    positive(arena.value_class);
    check(positive(arena.shared) + positive(arena.inputs) <= positive(arena.capacity), "an arena has its input rows");
  }
  std::vector<bool> is_there(table_->types().size(), false);
  for (const PhaseLayout &phase : phases_) {
    check(phase.loop || phase.blocks.size() == 1, "a phase that is not a loop has one type");
    check_table(phase.total_table, phase.blocks.size());
    for (const BlockLayout &block : phase.blocks) {
      check(block.type >= 0 && block.type < table_->type_count() && !is_there[block.type], "a type is in one phase");
      is_there[block.type] = true;
      check_block(block, phase);
    }
    if (phase.loop)
      check_loop(phase);
  }
  check(std::all_of(is_there.begin(), is_there.end(), [](bool there) { return there; }), "a type is in some phase");
}

void Layout::check_table(Index offset, std::size_t elements) const {
  check(offset >= 0 && static_cast<std::size_t>(offset) + elements <= static_cast<std::size_t>(size_),
        "a table lies in the buffer");
}

void Layout::check_block(const BlockLayout &block, const PhaseLayout &phase) const {
  const Type &type = table_->types()[block.type];
  const std::size_t capacity = positive(block.capacity), room = capacity + 2 * positive(phase.margin());
  const std::size_t rows = block.reads.size(), terms = positive(block.terms);
  check(size_of(block.reads) == type.rows && size_of(block.writes) == type.outputs &&
            block.starts.size() == block.writes.size(),
        "a block has an arena for each operand and output");
  for (Index arena : block.reads)
    check(positive(arena) < arenas_.size(), "a block reads arenas that exist");
  for (std::size_t output = 0; output < block.writes.size(); ++output) {
    check(positive(block.writes[output]) < arenas_.size(), "a block writes arenas that exist");
    check(positive(block.starts[output]) + room <= positive(arenas_[block.writes[output]].capacity),
          "a block lies in its arena");
  }
  if (!type.is_variadic) {
    check(block.tables.size() == 1, "a block has a table of operands");
    check_table(block.tables[0], rows * (phase.loop ? room : capacity));
  } else {
    check(rows == 1 && block.tables.size() == (phase.loop ? 3u : 2u), "a variadic block has tables of terms");
    check_table(block.tables[0], terms);
    check_table(block.tables[1], phase.loop ? room : terms);
    if (phase.loop)
      check_table(block.tables[2], room);
  }
}

void Layout::check_loop(const PhaseLayout &phase) const {
  const LoopLayout &loop = *phase.loop;
  check(!loop.widths.empty() && std::all_of(loop.widths.begin(), loop.widths.end(), [](Index w) { return w > 0; }),
        "a loop has widths");
  check(loop.edge_rows.size() == arenas_.size() && loop.pair_rows.size() == arenas_.size() &&
            loop.arenas.size() == arenas_.size() && (!loop.is_static() || loop.pair_trips.size() == arenas_.size()),
        "a loop says something of each arena");
  const std::size_t steps = positive(loop.rounds) * phase.blocks.size();
  check_table(loop.rounds_table, 1);
  check_table(loop.ends_table, steps * (1 + loop.widths.size()));
  for (const BlockLayout &block : phase.blocks) {
    check(block.edges.size() == block.reads.size(), "every operand has cotangent rows or none");
    check(!block.widths.empty() && block.widths.size() <= loop.widths.size() &&
              std::equal(block.widths.begin(), block.widths.end(), loop.widths.begin()),
          "a block has the first widths of its loop");
    check(block.chunks.size() == static_cast<std::size_t>(block.widths.back()) * block.widths.size(),
          "there are chunks for every number of nodes");
    for (std::size_t slot = 0; slot < block.edges.size(); ++slot)
      check(block.edges[slot] == no_table ||
                positive(block.edges[slot]) + positive(block.capacity) + 2 * positive(loop.margin) <=
                    positive(loop.edge_rows[block.reads[slot]]),
            "cotangent rows lie among those of their arena");
  }
  for (std::size_t arena = 0; arena < arenas_.size(); ++arena)
    check_arena(arena, phase);
}

void Layout::check_arena(std::size_t arena, const PhaseLayout &phase) const {
  const LoopLayout &loop = *phase.loop;
  const ArenaTables &tables = loop.arenas[arena];
  const std::size_t edges = positive(loop.edge_rows[arena]), pairs = positive(loop.pair_rows[arena]);
  if (!edges)
    return;
  check_table(tables.edge_of_row, positive(arenas_[arena].capacity));
  check_table(tables.row_of_edge, edges + pairs);
  std::size_t terms = 0;
  for (const BlockLayout &block : phase.blocks)
    if (table_->types()[block.type].is_variadic && block.edges[0] != no_table &&
        static_cast<std::size_t>(block.reads[0]) == arena)
      terms += block.terms;
  if (terms) {
    check_table(tables.edge_of_term, terms);
    check_table(tables.row_of_term, terms);
  }
  if (pairs) {
    for (Index offset : {tables.pair_left, tables.pair_right, tables.pair_start})
      check_table(offset, pairs);
    check_table(tables.pair_span, positive(loop.rounds) * phase.blocks.size() * 2);
  }
}

} // namespace jitbatch
