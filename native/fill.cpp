#include "fill.h"

#include <algorithm>

namespace jitbatch {
namespace {

struct DoesNotFit {};

void need(bool fits) {
  if (!fits)
    throw DoesNotFit();
}

// Cotangent rows of the rows that a loop makes, and sums of pairs of them, for one arena.
struct Cotangents {
  Ints due;   // when the cotangent of each row is due, -1 if the loop does not make it
  Ints begin; // where the cotangent rows of each row begin below; [rows + 1]
  Ints edges;

  Index readers(Index row) const { return begin[row + 1] - begin[row]; }
};

class Filling {
public:
  Filling(const Schedule &schedule, const Layout &layout, std::span<Index> tables)
      : schedule_(schedule), layout_(layout), batch_(schedule.batch()), out_(tables), order_(schedule.ordered()) {}

  Filled run() {
    check_given_rows();
    for (const PhaseLayout &phase : layout_.phases())
      for (const BlockLayout &block : phase.blocks)
        place(block, phase.margin());
    place_merged();
    find_reads();
    for (const PhaseLayout &phase : layout_.phases()) {
      for (std::size_t place = 0; place < phase.blocks.size(); ++place)
        out_[phase.total_table + place] = count(phase.blocks[place].type);
      if (phase.loop)
        fill_loop(phase.blocks, *phase.loop);
      else
        fill_single(phase.blocks[0]);
    }
    result_.value_row = std::move(rows_);
    for (Index value : batch_.outputs)
      result_.output_rows.push_back(result_.value_row[value]);
    return std::move(result_);
  }

private:
  Index count(Index type) const { return order_.type_start[type + 1] - order_.type_start[type]; }
  Index *table(Index offset) { return out_.data() + offset; }
  bool is_variadic(const BlockLayout &block) const { return layout_.table().types()[block.type].is_variadic; }

  // The rows that the nodes of a type read, node after node.
  IntSpan reads_of_type(Index type) const {
    const Index begin = read_start_[order_.type_start[type]], end = read_start_[order_.type_start[type + 1]];
    return IntSpan(reads_).subspan(begin, end - begin);
  }
  Index arity(Index place) const { return read_start_[place + 1] - read_start_[place]; }

  // Inputs and shared values lie in front of what nodes make.
  void check_given_rows() const {
    Ints room;
    for (const ArenaLayout &arena : layout_.arenas()) {
      if (arena.value_class >= size_of(room))
        room.resize(arena.value_class + 1, 0);
      room[arena.value_class] = arena.shared + arena.inputs;
    }
    for (std::size_t value = 0; value < batch_.given_class.size(); ++value) {
      const Index value_class = batch_.given_class[value], row = batch_.value_row[value];
      if (value_class >= 0)
        need(value_class < size_of(room) && row >= 0 && row < room[value_class]);
    }
  }

  // Rows for what nodes make.
  void place(const BlockLayout &block, Index margin) {
    if (rows_.empty())
      rows_ = batch_.value_row;
    const IntSpan nodes = order_.of(block.type);
    need(static_cast<Index>(nodes.size()) <= block.capacity);
    std::size_t terms = 0, longest = 0;
    for (std::size_t place = 0; place < nodes.size(); ++place) {
      const Index first = batch_.first_value[batch_.nodes[nodes[place]]];
      const std::size_t arity = schedule_.reads(nodes[place]).size();
      terms += arity;
      longest = std::max(longest, arity);
      for (std::size_t output = 0; output < block.starts.size(); ++output)
        rows_[first + output] = block.starts[output] + margin + static_cast<Index>(place);
    }
    if (is_variadic(block)) {
      need(terms <= static_cast<std::size_t>(block.terms));
      need(!block.longest || longest <= static_cast<std::size_t>(block.longest));
    }
  }

  // Merged values lie where those of their leaders do.
  void place_merged() {
    if (rows_.empty())
      rows_ = batch_.value_row;
    for (Index value = 0; value < size_of(rows_); ++value)
      rows_[value] = rows_[batch_.stands_for(value)];
  }

  void find_reads() {
    reads_.reserve(batch_.operands.size());
    read_start_.reserve(order_.nodes.size() + 1);
    for (Index node : order_.nodes) {
      read_start_.push_back(size_of(reads_));
      for (Index value : schedule_.reads(node))
        reads_.push_back(rows_[value]);
    }
    read_start_.push_back(size_of(reads_));
  }

  // A phase that is not a loop. Padding repeats the last node.
  void fill_single(const BlockLayout &block) {
    const Index nodes = count(block.type), first = order_.type_start[block.type];
    const IntSpan reads = reads_of_type(block.type);
    result_.steps += nodes > 0;
    result_.launches += nodes > 0;
    result_.padded_rows += block.capacity;
    if (is_variadic(block)) {
      Index *terms = table(block.tables[0]), *segments = table(block.tables[1]);
      std::fill(std::copy(reads.begin(), reads.end(), terms), terms + block.terms, 0);
      for (Index node = 0; node < nodes; ++node)
        segments = std::fill_n(segments, arity(first + node), node);
      std::fill(segments, table(block.tables[1]) + block.terms, block.capacity);
      return;
    }
    const std::size_t slots = block.reads.size();
    for (std::size_t slot = 0; slot < slots; ++slot) {
      Index *own = table(block.tables[0]) + slot * block.capacity;
      for (Index node = 0; node < nodes; ++node)
        own[node] = reads[node * slots + slot];
      std::fill(own + nodes, own + block.capacity, nodes ? own[nodes - 1] : 0);
    }
  }

  void fill_loop(const std::vector<BlockLayout> &blocks, const LoopLayout &loop) {
    Index rounds = 0;
    for (const BlockLayout &block : blocks)
      if (const IntSpan nodes = order_.of(block.type); !nodes.empty())
        rounds = std::max(rounds, schedule_.round()[nodes.back()] + 1);
    need(rounds <= loop.rounds);
    out_[loop.rounds_table] = rounds;
    for (std::size_t place = 0; place < blocks.size(); ++place) {
      fill_ends(place, blocks, loop);
      fill_operands(blocks[place], loop.margin);
    }
    for (std::size_t arena = 0; arena < layout_.arenas().size(); ++arena)
      if (loop.edge_rows[arena])
        fill_arena(static_cast<Index>(arena), blocks, loop, rounds);
  }

  // Where the chunks of a type begin in each round, and where those of each width end, the widest first.
  void fill_ends(std::size_t place, const std::vector<BlockLayout> &blocks, const LoopLayout &loop) {
    const BlockLayout &block = blocks[place];
    const IntSpan nodes = order_.of(block.type);
    const std::size_t stride = (1 + loop.widths.size()) * blocks.size();
    Index *ends = table(loop.ends_table) + place * (1 + loop.widths.size());
    std::size_t done = 0;
    for (Index now = 0; now < loop.rounds; ++now, ends += stride) {
      const std::size_t begin = done;
      while (done < nodes.size() && schedule_.round()[nodes[done]] == now)
        ++done;
      const Index many = static_cast<Index>(done - begin);
      need(many <= loop.most);
      result_.steps += many > 0;
      Index end = loop.margin + static_cast<Index>(begin);
      Index *own = ends;
      *own++ = end;
      for (std::size_t width = loop.widths.size(); width-- > 0;) {
        const Index chunks = chunks_of(many, width, block, loop);
        result_.launches += chunks;
        result_.padded_rows += chunks * loop.widths[width];
        end += chunks * loop.widths[width];
        *own++ = end;
      }
    }
  }

  // How many chunks of a width run so many nodes.
  static Index chunks_of(Index nodes, std::size_t width, const BlockLayout &block, const LoopLayout &loop) {
    if (loop.is_static())
      return 1;
    const std::size_t widths = block.widths.size();
    if (width >= widths)
      return 0;
    const Index largest = block.widths.back();
    return block.chunks[nodes % largest * widths + width] + (width == widths - 1 ? nodes / largest : 0);
  }

  // Before the first node and behind the last one, these are repeated.
  void fill_operands(const BlockLayout &block, Index margin) {
    const Index nodes = count(block.type), first = order_.type_start[block.type];
    const Index room = block.capacity + 2 * margin;
    const IntSpan reads = reads_of_type(block.type);
    Index *out = table(block.tables[0]);
    if (is_variadic(block)) {
      std::fill(std::copy(reads.begin(), reads.end(), out), out + block.terms, 0);
      Index *firsts = table(block.tables[1]), *counts = table(block.tables[2]);
      std::fill_n(firsts, room, 0);
      std::fill_n(counts, room, 0);
      for (Index node = 0; node < nodes; ++node) {
        firsts[margin + node] = read_start_[first + node] - read_start_[first];
        counts[margin + node] = arity(first + node);
      }
      return;
    }
    const std::size_t slots = block.reads.size();
    if (!nodes) {
      std::fill_n(out, room * slots, 0);
      return;
    }
    for (Index before = 0; before < margin; ++before)
      out = std::copy_n(reads.begin(), slots, out);
    out = std::copy(reads.begin(), reads.end(), out);
    for (Index behind = margin + nodes; behind < room; ++behind)
      out = std::copy_n(reads.end() - slots, slots, out);
  }

  // Calls `visit(row, edge, term)` for all that a loop reads of an arena and that has cotangent rows: operands, for
  // which the term is -1, and then terms, numbered over all variadic types with the room that they have.
  template <typename Visit>
  void each_read(Index arena, const std::vector<BlockLayout> &blocks, const LoopLayout &loop, Visit visit) const {
    for (const BlockLayout &block : blocks) {
      const std::size_t slots = block.reads.size();
      const IntSpan reads = reads_of_type(block.type);
      for (std::size_t slot = 0; !is_variadic(block) && slot < slots; ++slot)
        if (block.reads[slot] == arena && block.edges[slot] != no_table)
          for (Index node = 0; node < count(block.type); ++node)
            visit(reads[node * slots + slot], block.edges[slot] + loop.margin + node, -1);
    }
    Index first_term = 0;
    for (const BlockLayout &block : blocks) {
      if (!is_variadic(block) || block.reads[0] != arena || block.edges[0] == no_table)
        continue;
      Index term = first_term;
      const Index first = order_.type_start[block.type];
      for (Index node = 0; node < count(block.type); ++node)
        for (Index at = read_start_[first + node]; at < read_start_[first + node + 1]; ++at)
          visit(reads_[at], block.edges[0] + loop.margin + node, term++);
      first_term += block.terms;
    }
  }

  void fill_arena(Index arena, const std::vector<BlockLayout> &blocks, const LoopLayout &loop, Index rounds) {
    const ArenaTables &tables = loop.arenas[arena];
    const Index none = layout_.arenas()[arena].capacity;
    Cotangents cotangents = find_due(arena, blocks, loop, rounds);
    Ints &begin = cotangents.begin;
    std::fill_n(table(tables.row_of_edge), loop.edge_rows[arena] + loop.pair_rows[arena], none);
    fill_terms(arena, blocks, loop);
    begin.assign(none + 2, 0);
    each_read(arena, blocks, loop, [&](Index row, Index edge, Index term) {
      check(row >= 0 && row < none, "what is read lies in its arena");
      const bool is_inside = cotangents.due[row] >= 0;
      if (is_inside)
        ++begin[row + 2];
      if (term >= 0) {
        out_[tables.edge_of_term + term] = edge;
        out_[tables.row_of_term + term] = is_inside ? none : row;
      } else if (!is_inside) {
        out_[tables.row_of_edge + edge] = row;
      }
    });
    for (Index row = 0; row < none; ++row)
      begin[row + 2] += begin[row + 1];
    cotangents.edges.resize(begin[none + 1]);
    each_read(arena, blocks, loop, [&](Index row, Index edge, Index) {
      if (cotangents.due[row] >= 0)
        cotangents.edges[begin[row + 1]++] = edge;
    });
    fill_pairs(arena, static_cast<Index>(blocks.size()), loop, rounds, cotangents);
  }

  // When the cotangent of each row is due that a loop makes: in the transposed order of rounds and types.
  Cotangents find_due(Index arena, const std::vector<BlockLayout> &blocks, const LoopLayout &loop, Index rounds) const {
    Cotangents cotangents;
    cotangents.due.assign(layout_.arenas()[arena].capacity, -1);
    const Index types = static_cast<Index>(blocks.size());
    for (Index place = 0; place < types; ++place) {
      const BlockLayout &block = blocks[place];
      const IntSpan nodes = order_.of(block.type);
      for (std::size_t output = 0; output < block.writes.size(); ++output)
        for (std::size_t node = 0; block.writes[output] == arena && node < nodes.size(); ++node)
          cotangents.due[block.starts[output] + loop.margin + node] =
              (rounds - 1 - schedule_.round()[nodes[node]]) * types + types - 1 - place;
    }
    return cotangents;
  }

  // Terms that are not there.
  void fill_terms(Index arena, const std::vector<BlockLayout> &blocks, const LoopLayout &loop) {
    Index terms = 0;
    for (const BlockLayout &block : blocks)
      if (is_variadic(block) && block.reads[0] == arena && block.edges[0] != no_table)
        terms += block.terms;
    if (terms) {
      std::fill_n(table(loop.arenas[arena].edge_of_term), terms, 0);
      std::fill_n(table(loop.arenas[arena].row_of_term), terms, layout_.arenas()[arena].capacity);
    }
  }

  // Sums the cotangent rows of each row two by two. Those of a row and the sums of pairs of them are a binary heap: of
  // k rows, pair p (0 is the whole sum) adds the items 2p + 1 and 2p + 2, of which the first k - 1 are pairs. Pairs are
  // numbered in the order in which they are due, and of one moment by depth: a pair reads only pairs of lower depth.
  void fill_pairs(Index arena, Index types, const LoopLayout &loop, Index rounds, const Cotangents &cotangents) {
    const ArenaTables &tables = loop.arenas[arena];
    const Index rows = layout_.arenas()[arena].capacity, first_pair = loop.edge_rows[arena];
    const Index room = loop.pair_rows[arena], moments = rounds * types;
    Index most = 0, pairs = 0;
    Ints first_of_row(rows, 0); // where the pairs of a row begin among all pairs, before they are sorted
    for (Index row = 0; row < rows; ++row) {
      const Index own = std::max(cotangents.readers(row) - 1, 0);
      first_of_row[row] = pairs;
      pairs += own;
      most = std::max(most, own);
    }
    need(!pairs || pairs + pair_width <= room);
    const Index depths = std::max(bit_length(most), 1);

    // The pairs sorted by moment and depth, by counting.
    Ints begin(static_cast<std::size_t>(moments) * depths + 1, 0), number(pairs);
    const auto each_pair = [&](auto &&visit) {
      for (Index row = 0, at = 0; row < rows; ++row)
        for (Index pair = 0; pair + 1 < cotangents.readers(row); ++pair, ++at)
          visit(row, pair, at, cotangents.due[row] * depths + bit_length(most) - bit_length(pair + 1));
    };
    each_pair([&](Index, Index, Index, Index group) { ++begin[group + 1]; });
    for (std::size_t group = 1; group < begin.size(); ++group)
      begin[group] += begin[group - 1];
    Ints next(begin);
    each_pair([&](Index, Index, Index at, Index group) { number[at] = next[group]++; });

    const auto item = [&](Index row, Index place) {
      const Index own = cotangents.readers(row) - 1;
      return place < own ? first_pair + number[first_of_row[row] + place]
                         : cotangents.edges[cotangents.begin[row] + place - own];
    };
    Index *edge_of_row = table(tables.edge_of_row);
    for (Index row = 0; row < rows; ++row)
      edge_of_row[row] = cotangents.readers(row) ? item(row, 0) : 0;
    if (!room)
      return;
    Index *left = table(tables.pair_left), *right = table(tables.pair_right), *start = table(tables.pair_start);
    std::fill_n(left, room, 0);
    std::fill_n(right, room, 0);
    std::fill_n(start, room, 0);
    each_pair([&](Index row, Index pair, Index at, Index) {
      left[number[at]] = item(row, 2 * pair + 1);
      right[number[at]] = item(row, 2 * pair + 2);
    });
    fill_chunks(arena, types, loop, moments, depths, begin);
  }

  // Pairs of one moment and depth are summed in chunks. Moments go backwards through rounds and types.
  void fill_chunks(Index arena, Index types, const LoopLayout &loop, Index moments, Index depths, const Ints &begin) {
    Index *start = table(loop.arenas[arena].pair_start), *span = table(loop.arenas[arena].pair_span);
    std::fill_n(span, 2 * static_cast<std::size_t>(loop.rounds) * types, 0);
    Index chunks = 0;
    for (Index moment = 0; moment < moments; ++moment) {
      Index *own = span + 2 * (moments - 1 - moment);
      own[0] = chunks;
      for (Index group = moment * depths; group < (moment + 1) * depths; ++group)
        for (Index pair = begin[group]; pair < begin[group + 1]; pair += pair_width)
          start[chunks++] = pair;
      own[1] = chunks;
      need(!loop.is_static() || own[1] - own[0] <= loop.pair_trips[arena]);
    }
  }

  const Schedule &schedule_;
  const Layout &layout_;
  const Batch &batch_;
  std::span<Index> out_;
  const Order order_;
  Ints rows_;               // of every value
  Ints reads_, read_start_; // the rows that nodes read, in the order of nodes
  Filled result_;
};

} // namespace

std::optional<Filled> fill(const Schedule &schedule, const Layout &layout, std::span<Index> tables) {
  check(&schedule.table() == &layout.table(), "a layout is of the types of the batch");
  check(tables.size() == static_cast<std::size_t>(layout.size()), "the tables have the size of the layout");
  try {
    return Filling(schedule, layout, tables).run();
  } catch (const DoesNotFit &) {
    return std::nullopt;
  }
}

} // namespace jitbatch
