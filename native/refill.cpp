#include "refill.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

namespace nb = nanobind;
using namespace nb::literals;

namespace jitbatch {

Joined::Joined(std::shared_ptr<const Refill> refill, std::shared_ptr<const KnownBatch> samples, bool dedupe)
    : refill_(std::move(refill)), samples_(checked_count(samples->size())) {
  check(samples->typed().size() == samples->size(), "every sample has a typed graph");
  const auto &table = refill_->layout->shared_table();
  auto graphs = samples->typed();
  inputs_ = KnownBatch::inputs(std::move(samples), refill_->formats);
  batch_ = std::make_shared<Batch>(table, std::move(graphs), *inputs_, refill_->shared(), dedupe);
  schedule_ = std::make_shared<Schedule>(batch_);
}

bool Joined::by_ranks() {
  for (Index loop = 0; loop < schedule_->loop_count(); ++loop) {
    const Index least = schedule_->least_steps(loop);
    if (!schedule_->by_ranks(loop) || (schedule_->most_steps(loop) > least && schedule_->steps(loop) > least))
      return false;
  }
  return true;
}

bool Joined::has_room() const {
  const std::vector<ArenaLayout> &arenas = refill_->layout->arenas();
  return std::all_of(arenas.begin(), arenas.end(),
                     [&](const ArenaLayout &arena) { return inputs_->count(arena.value_class) <= arena.inputs; });
}

void Joined::write_inputs(PyObject *inputs) const {
  const std::vector<ArenaLayout> &arenas = refill_->layout->arenas();
  const nb::object all = nb::steal(PySequence_Fast(inputs, "an array for each arena"));
  if (!all.is_valid())
    throw nb::python_error();
  check(static_cast<std::size_t>(PySequence_Fast_GET_SIZE(all.ptr())) == arenas.size(), "an array for each arena");
  for (std::size_t arena = 0; arena < arenas.size(); ++arena) {
    PyObject *out = PySequence_Fast_GET_ITEM(all.ptr(), static_cast<Py_ssize_t>(arena));
    if (out != Py_None)
      inputs_->write(arenas[arena].value_class, out);
    else
      check(!inputs_->count(arenas[arena].value_class), "an arena with input rows has an array of them");
  }
}

bool Joined::fill(std::span<Index> tables, PyObject *inputs, std::span<Index> outputs, std::span<Index> counts) const {
  check(outputs.size() == batch_->outputs.size() && counts.size() == 10, "there is room for outputs and counts");
  if (!has_room())
    return false;
  const std::optional<Filled> filled = jitbatch::fill(*schedule_, *refill_->layout, tables);
  if (!filled)
    return false;
  write_inputs(inputs);
  std::copy(filled->output_rows.begin(), filled->output_rows.end(), outputs.begin());
  const Index nodes = size_of(batch_->type), distinct = size_of(batch_->nodes);
  const Index types = refill_->layout->table().type_count();
  const Index numbers[] = {
      samples_,         nodes,    distinct,           batch_->levels, types, filled->steps, schedule_->bound(),
      filled->launches, distinct, filled->padded_rows};
  std::copy(std::begin(numbers), std::end(numbers), counts.begin());
  return true;
}

namespace {

using Array = nb::ndarray<const Index, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Buffer = nb::ndarray<Index, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Ints ints_of(const Array &array) { return {array.data(), array.data() + array.shape(0)}; }
std::span<Index> span_of(const Buffer &buffer) { return {buffer.data(), buffer.shape(0)}; }

std::shared_ptr<Refill> make_refill(std::shared_ptr<Layout> layout,
                                    const std::vector<std::tuple<std::string, std::size_t, std::size_t>> &classes,
                                    Array shared_class, Array shared_row, Array shared_count) {
  auto refill = std::make_shared<Refill>(
      Refill{std::move(layout), {}, ints_of(shared_class), ints_of(shared_row), ints_of(shared_count)});
  for (const auto &[kind, item, row] : classes)
    refill->formats.push_back({kind.empty() ? '\0' : kind[0], item, row});
  for (Index count : refill->shared_count)
    check(count >= 0, "counts of shared values are not negative");
  return refill;
}

} // namespace

void add_refill(nb::module_ &m) {
  nb::class_<Joined>(m, "Joined")
      .def_prop_ro("batch", [](const Joined &joined) { return std::const_pointer_cast<Batch>(joined.batch()); })
      .def_prop_ro("schedule", &Joined::schedule)
      .def("by_ranks", &Joined::by_ranks)
      .def(
          "fill",
          [](const Joined &joined, Buffer tables, nb::handle inputs, Buffer outputs, Buffer counts) {
            return joined.fill(span_of(tables), inputs.ptr(), span_of(outputs), span_of(counts));
          },
          nb::arg("tables").noconvert(), "inputs"_a, nb::arg("outputs").noconvert(), nb::arg("counts").noconvert());
  nb::class_<Refill>(m, "Refill")
      .def(nb::new_(&make_refill), "layout"_a, "classes"_a, "shared_class"_a, "shared_row"_a, "shared_count"_a)
      .def("join", [](std::shared_ptr<Refill> refill, std::shared_ptr<KnownBatch> samples, bool dedupe) {
        return std::make_shared<Joined>(std::move(refill), std::move(samples), dedupe);
      });
}

} // namespace jitbatch
