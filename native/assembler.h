// Assembling a sync of samples in flight: rows for what nodes make, and buffers that list chunks of nodes of one type.
#pragma once

#include "numbers.h"

#include <map>

namespace jitbatch {

// The nodes of a sample between two syncs, `operands` reads and `outputs` values each.
class SyncNodes {
public:
  SyncNodes(IntSpan steps, IntSpan reads, IntSpan makes, Index operands, Index outputs);

  Ints steps, reads, makes;
  Index operands, outputs;
  Index last_step = -1, last_value = -1, least = -1; // the largest step and value, and the least value
};

// A table of integers, row after row.
struct SlotTable {
  std::span<Index> entries;
  Index columns;

  Index &at(Index slot, Index value) const { return entries[static_cast<std::size_t>(slot) * columns + value]; }
};

class Assembler {
public:
  Assembler(Ints operands, std::vector<Ints> writes, std::vector<Ints> widths, Index size);

  std::map<Index, Index> rows_needed(const std::vector<std::shared_ptr<const SyncNodes>> &samples) const;

  std::vector<Ints> buffers(const std::vector<std::shared_ptr<const SyncNodes>> &samples, IntSpan slots, SlotTable rows,
                            SlotTable classes, IntSpan pinned, std::span<Index> free) const;

private:
  Ints operands, heads;
  std::vector<Ints> writes, widths;
  Index size, most_operands = 0, most_outputs = 0;
};

} // namespace jitbatch
