// From known samples to the tables of a program that is there already.
#pragma once

#include <nanobind/nanobind.h>

#include "fill.h"
#include "samples.h"

namespace jitbatch {

// What batches of known samples have in common that are planned for one program.
struct Refill {
  std::shared_ptr<const Layout> layout;
  std::vector<ClassFormat> formats; // of all value classes
  Ints shared_class, shared_row, shared_count;

  SharedRows shared() const { return {shared_class, shared_row, shared_count}; }
};

// Known samples as one batch, whose nodes have the rounds of their ranks, if these are an order of the fewest steps.
class Joined {
public:
  Joined(std::shared_ptr<const Refill> refill, std::shared_ptr<const KnownBatch> samples, bool dedupe);

  std::shared_ptr<const Batch> batch() const { return batch_; }
  std::shared_ptr<Schedule> schedule() const { return schedule_; }
  // Gives all nodes the rounds of their ranks; whether that has the fewest steps of all orders.
  bool by_ranks();
  // Writes the tables, the input rows of each arena, the rows of all outputs, and the numbers of a `Summary`; false if
  // the batch does not fit. `inputs` has None for an arena that the batch has no input rows for.
  bool fill(std::span<Index> tables, PyObject *inputs, std::span<Index> outputs, std::span<Index> counts) const;

private:
  bool has_room() const;
  void write_inputs(PyObject *inputs) const;

  std::shared_ptr<const Refill> refill_;
  std::shared_ptr<InputRows> inputs_;
  std::shared_ptr<const Batch> batch_;
  std::shared_ptr<Schedule> schedule_;
  Index samples_;
};

void add_refill(nanobind::module_ &m);

} // namespace jitbatch
