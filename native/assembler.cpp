#include "assembler.h"

#include <algorithm>

namespace jitbatch {
namespace {

// A node of a sample.
struct Entry {
  const SyncNodes *sample;
  Index slot, node;

  Index read(Index operand) const { return sample->reads[static_cast<std::size_t>(node) * sample->operands + operand]; }
  Index made(Index output) const { return sample->makes[static_cast<std::size_t>(node) * sample->outputs + output]; }
};

// All nodes in the order of their steps, those of one step in the order of samples.
std::vector<Entry> in_order(const std::vector<std::shared_ptr<const SyncNodes>> &samples, IntSpan slots, Ints &begin) {
  for (const auto &sample : samples)
    for (Index step : sample->steps)
      ++begin[step + 1];
  for (std::size_t step = 1; step < begin.size(); ++step)
    begin[step] += begin[step - 1];
  std::vector<Entry> entries(begin.back());
  Ints next(begin);
  for (std::size_t place = 0; place < samples.size(); ++place)
    for (Index node = 0; node < size_of(samples[place]->steps); ++node)
      entries[next[samples[place]->steps[node]]++] = {samples[place].get(), slots[place], node};
  return entries;
}

// Writes buffers, chunk after chunk.
class Writer {
public:
  Writer(Index size, Index head_size) : size(size), head_size(head_size), at(size) {}

  // The place of a chunk of a round, which the head counts.
  Index *chunk(Index round, Index head_place, Index length) {
    bool is_new = round != here;
    if (at + length + (is_new ? head_size : 0) > size) {
      buffers.emplace_back(static_cast<std::size_t>(size), 0);
      at = 1;
      is_new = true;
    }
    Index *buffer = buffers.back().data();
    if (is_new) {
      head = at;
      here = round;
      ++buffer[0];
      at += head_size;
    }
    ++buffer[head + head_place];
    at += length;
    return buffer + at - length;
  }

  std::vector<Ints> buffers;

private:
  Index size, head_size, at, head = 0, here = -1;
};

} // namespace

SyncNodes::SyncNodes(IntSpan steps, IntSpan reads, IntSpan makes, Index operands, Index outputs)
    : steps(steps.begin(), steps.end()), reads(reads.begin(), reads.end()), makes(makes.begin(), makes.end()),
      operands(operands), outputs(outputs) {
  const auto nodes = static_cast<std::size_t>(checked_count(steps.size()));
  check(reads.size() == nodes * operands && makes.size() == nodes * outputs, "each node has reads and values");
  for (Index step : steps) {
    check(step >= 0 && step < 1 << 28, "a step is a small number");
    last_step = std::max(last_step, step);
  }
  for (IntSpan values : {reads, makes}) {
    for (Index value : values) {
      last_value = std::max(last_value, value);
      least = std::min(least, value);
    }
  }
  for (Index value : makes)
    check(value >= -1, "a node makes values of its sample");
}

Assembler::Assembler(Ints operands, std::vector<Ints> writes, std::vector<Ints> widths, Index size)
    : operands(std::move(operands)), writes(std::move(writes)), widths(std::move(widths)), size(size) {
  const std::size_t types = this->operands.size();
  check(this->writes.size() == types && this->widths.size() == types, "each type has operands, outputs and widths");
  heads.push_back(0);
  for (const Ints &own : this->widths)
    heads.push_back(heads.back() + size_of(own));
  for (std::size_t type = 0; type < types; ++type) {
    most_operands = std::max(most_operands, this->operands[type]);
    most_outputs = std::max(most_outputs, size_of(this->writes[type]));
    check(!this->widths[type].empty() && this->operands[type] >= 0, "a type has widths");
    for (Index width : this->widths[type]) {
      check(width > 0 && width < 1 << 16, "a width is a small number");
      check(1 + heads[types] + std::int64_t(this->operands[type]) * width + size_of(this->writes[type]) <= size,
            "a chunk fits into a buffer");
    }
    for (Index value_class : this->writes[type])
      check(value_class >= 0, "an output has a value class");
  }
}

std::map<Index, Index> Assembler::rows_needed(const std::vector<std::shared_ptr<const SyncNodes>> &samples) const {
  Ints nodes(operands.size(), 0);
  for (const auto &sample : samples)
    for (Index step : sample->steps)
      ++nodes[step % nodes.size()];
  std::map<Index, Index> needed;
  for (std::size_t type = 0; type < nodes.size(); ++type)
    if (nodes[type])
      for (Index value_class : writes[type])
        needed[value_class] += nodes[type];
  return needed;
}

std::vector<Ints> Assembler::buffers(const std::vector<std::shared_ptr<const SyncNodes>> &samples, IntSpan slots,
                                     SlotTable rows, SlotTable classes, IntSpan pinned, std::span<Index> free) const {
  const Index types = size_of(operands);
  check(samples.size() == slots.size(), "each sample has a slot");
  check(rows.columns == classes.columns && rows.entries.size() == classes.entries.size(), "tables of the same size");
  Index last_step = -1;
  for (const auto &sample : samples) {
    check(sample->operands == most_operands && sample->outputs == most_outputs,
          "nodes have the columns of their types");
    check(sample->last_value < rows.columns, "there is room for all values");
    check(-1 - sample->least < static_cast<Index>(pinned.size()), "pinned rows have rows");
    last_step = std::max(last_step, sample->last_step);
  }
  for (Index slot : slots)
    check(slot >= 0 && (slot + std::size_t(1)) * rows.columns <= rows.entries.size(), "a slot is one of the table");
  for (const Ints &own : writes)
    for (Index value_class : own)
      check(value_class < static_cast<Index>(free.size()), "each value class has free rows");

  Ints begin(static_cast<std::size_t>(last_step) + 2, 0);
  const std::vector<Entry> entries = in_order(samples, slots, begin);
  Writer writer(size, heads[types]);
  for (Index step = 0; step <= last_step; ++step) {
    const Index type = step % types;
    const Entry *entry = entries.data() + begin[step], *last = entries.data() + begin[step + 1];
    for (Index place = 0; place < size_of(widths[type]); ++place) {
      // At most a quarter of a wide chunk is padding.
      const Index width = widths[type][place], rest = static_cast<Index>(last - entry) % width;
      const bool is_last = place + 1 == size_of(widths[type]);
      const Index chunks = static_cast<Index>(last - entry) / width + (rest && (is_last || 4 * rest > 3 * width));
      for (Index chunk = 0; chunk < chunks; ++chunk) {
        const Index count = std::min(width, static_cast<Index>(last - entry));
        Index *out = writer.chunk(step / types, heads[type] + place, operands[type] * width + size_of(writes[type]));
        for (Index operand = 0; operand < operands[type]; ++operand) {
          for (Index own = 0; own < count; ++own) {
            const Index value = entry[own].read(operand);
            *out++ = value >= 0 ? rows.at(entry[own].slot, value) : pinned[-1 - value];
          }
          const Index padding = out[-1];
          out = std::fill_n(out, width - count, padding);
        }
        for (Index output = 0; output < size_of(writes[type]); ++output) {
          const Index value_class = writes[type][output];
          *out++ = free[value_class];
          for (Index own = 0; own < count; ++own, ++free[value_class]) {
            const Index value = entry[own].made(output);
            if (value >= 0) {
              rows.at(entry[own].slot, value) = free[value_class];
              classes.at(entry[own].slot, value) = value_class;
            }
          }
        }
        entry += count;
      }
    }
  }
  return std::move(writer.buffers);
}

} // namespace jitbatch
