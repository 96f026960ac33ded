// How many nodes of its own type lie on a path below a node, at most.
#pragma once

#include "numbers.h"

namespace jitbatch {

// The rank of each node, given the edges between nodes; every node comes after those that it reads in `order`.
Ints find_ranks(IntSpan type, IntSpan order, IntSpan reader, IntSpan read);

} // namespace jitbatch
