// Integers: how everything in the core is numbered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace jitbatch {

using Index = std::int32_t;
using Ints = std::vector<Index>;
using IntSpan = std::span<const Index>;

// Raises ValueError in Python. What comes from Python is checked once, where it comes in.
inline void check(bool holds, const char *law) {
  if (!holds)
    throw std::invalid_argument(law);
}

inline Index checked_count(std::size_t count) {
  if (count > static_cast<std::size_t>(std::numeric_limits<Index>::max()))
    throw std::length_error("a minibatch has more than 2^31 - 1 values: plan smaller ones");
  return static_cast<Index>(count);
}

inline Index size_of(const Ints &numbers) { return static_cast<Index>(numbers.size()); }

} // namespace jitbatch
