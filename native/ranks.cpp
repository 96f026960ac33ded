#include "ranks.h"

#include <algorithm>

namespace jitbatch {

Ints find_ranks(IntSpan type, IntSpan order, IntSpan reader, IntSpan read) {
  const Index nodes = checked_count(type.size());
  check(order.size() == type.size() && reader.size() == read.size(), "nodes have types and edges two ends");
  Index types = 0;
  for (Index own : type) {
    check(own >= 0 && own < 1 << 24, "a type is a small number");
    types = std::max(types, own + 1);
  }
  Ints begin(nodes + 1, 0), reads(read.size());
  for (std::size_t edge = 0; edge < reader.size(); ++edge) {
    check(reader[edge] >= 0 && reader[edge] < nodes && read[edge] >= 0 && read[edge] < nodes, "edges join nodes");
    ++begin[reader[edge] + 1];
  }
  for (Index node = 0; node < nodes; ++node)
    begin[node + 1] += begin[node];
  Ints next(begin);
  for (std::size_t edge = 0; edge < reader.size(); ++edge)
    reads[next[reader[edge]]++] = read[edge];

  // For each node and type, how many nodes of that type lie on a path up to this node, itself included.
  Ints below(static_cast<std::size_t>(nodes) * types, 0), ranks(nodes, 0);
  for (Index node : order) {
    check(node >= 0 && node < nodes, "the order is one of nodes");
    Index *own = below.data() + static_cast<std::size_t>(node) * types;
    for (Index edge = begin[node]; edge < begin[node + 1]; ++edge) {
      const Index *other = below.data() + static_cast<std::size_t>(reads[edge]) * types;
      for (Index place = 0; place < types; ++place)
        own[place] = std::max(own[place], other[place]);
    }
    ranks[node] = own[type[node]]++;
  }
  return ranks;
}

} // namespace jitbatch
