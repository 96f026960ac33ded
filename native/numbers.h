// Integers: how everything in the core is numbered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace jitbatch {

using Index = std::int32_t;

// Leaves numbers as they are in memory where a vector is resized and no value is given.
template <typename Number> struct Unset : std::allocator<Number> {
  template <typename Other> struct rebind {
    using other = Unset<Other>;
  };
  template <typename Other> void construct(Other *place) noexcept { ::new (static_cast<void *>(place)) Other; }
  template <typename Other, typename... Args> void construct(Other *place, Args &&...args) {
    ::new (static_cast<void *>(place)) Other(std::forward<Args>(args)...);
  }
};

using Ints = std::vector<Index, Unset<Index>>;
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
