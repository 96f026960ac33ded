// A list that needs no memory of its own while it is short.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace jitbatch {

template <typename Item, std::size_t Short> class Small {
public:
  void push_back(Item item) {
    if (size_ < Short)
      short_[size_] = item;
    else
      spill(item);
    ++size_;
  }
  std::size_t size() const { return size_; }
  Item *begin() { return size_ <= Short ? short_.data() : long_.data(); }
  Item *end() { return begin() + size_; }
  const Item *begin() const { return size_ <= Short ? short_.data() : long_.data(); }
  const Item *end() const { return begin() + size_; }
  Item &operator[](std::size_t place) { return begin()[place]; }
  Item operator[](std::size_t place) const { return begin()[place]; }

private:
  void spill(Item item) {
    if (size_ == Short)
      long_.assign(short_.begin(), short_.end());
    long_.push_back(item);
  }

  std::array<Item, Short> short_;
  std::vector<Item> long_;
  std::size_t size_ = 0;
};

} // namespace jitbatch
