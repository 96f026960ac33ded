// The tables of a fused program.
#pragma once

#include <optional>

#include "layout.h"
#include "schedule.h"

namespace jitbatch {

struct Filled {
  Ints value_row;   // of every value
  Ints output_rows; // of the values that are results
  Index steps = 0, launches = 0, padded_rows = 0;
};

// Writes the tables of a program into a buffer of the size of the layout; none if the batch does not fit.
std::optional<Filled> fill(const Schedule &schedule, const Layout &layout, std::span<Index> tables);

} // namespace jitbatch
