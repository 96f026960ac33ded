// What Python sees of the core. Everything that comes in is checked here, or where it is stored.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "assembler.h"
#include "calls.h"
#include "fill.h"
#include "numbering.h"
#include "ranks.h"
#include "refill.h"
#include "samples.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jitbatch {
namespace {

using Array = nb::ndarray<const Index, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const Index, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Buffer = nb::ndarray<Index, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using View = nb::ndarray<nb::numpy, const Index, nb::ndim<1>>;

IntSpan span_of(const Array &array) { return {array.data(), array.shape(0)}; }

IntSpan row_of(const Table &table, std::size_t row) {
  check(table.shape(0) == 2, "a table of two rows");
  return {table.data() + row * table.shape(1), table.shape(1)};
}

// An array of Python's own.
View array_of(Ints numbers) {
  auto *own = new Ints(std::move(numbers));
  nb::capsule owner(own, [](void *pointer) noexcept { delete static_cast<Ints *>(pointer); });
  return View(own->data(), {own->size()}, owner);
}

// A property that is an array of the object, which it keeps alive.
template <typename Object> auto view_of(Ints Object::*member) {
  return [member](const Object &self) { return View((self.*member).data(), {(self.*member).size()}); };
}

template <typename Number = Ints> Number attribute(nb::handle object, const char *name) {
  return nb::cast<Number>(object.attr(name));
}

// Types

using RecipeArgument = std::pair<std::vector<std::pair<Index, std::vector<std::tuple<Index, Index, Index>>>>,
                                 std::vector<std::pair<Index, Index>>>;

Recipe recipe_of(const RecipeArgument &argument) {
  Recipe recipe;
  for (const auto &[type, operands] : argument.first) {
    Part part{type, {}};
    for (const auto &[from, first, output] : operands) {
      check(from >= 0 && from <= 2, "an operand comes from a row, a shared value or a part");
      part.operands.push_back({static_cast<From>(from), first, output});
    }
    recipe.parts.push_back(std::move(part));
  }
  for (const auto &[part, output] : argument.second)
    recipe.outputs.push_back({part, output});
  return recipe;
}

std::shared_ptr<TypeTable> make_table(const std::vector<std::tuple<Index, Index, bool, bool>> &types,
                                      std::vector<Ints> loops, const std::map<Index, RecipeArgument> &recipes) {
  std::vector<Type> own;
  for (const auto &[outputs, rows, is_variadic, may_merge] : types)
    own.push_back({outputs, rows, is_variadic, may_merge});
  std::vector<std::pair<Index, Recipe>> all;
  for (const auto &[kind, argument] : recipes)
    all.emplace_back(kind, recipe_of(argument));
  return std::make_shared<TypeTable>(std::move(own), std::move(loops), std::move(all));
}

// Layouts

BlockLayout block_of(nb::handle block) {
  return {
      attribute<Index>(block, "type"),    attribute<Index>(block, "capacity"), attribute<Index>(block, "terms"),
      attribute<Index>(block, "longest"), attribute(block, "starts"),          attribute(block, "reads"),
      attribute(block, "writes"),         attribute(block, "edges"),           attribute(block, "widths"),
      attribute(block, "chunks"),         attribute(block, "tables"),
  };
}

ArenaTables tables_of(nb::handle arena) {
  const auto offset = [&](const char *name) { return attribute<Index>(arena, name); };
  return {offset("edge_of_row"), offset("row_of_edge"), offset("edge_of_term"), offset("row_of_term"),
          offset("pair_left"),   offset("pair_right"),  offset("pair_start"),   offset("pair_span")};
}

LoopLayout loop_of(nb::handle loop) {
  LoopLayout layout{
      attribute<Index>(loop, "margin"),
      attribute<Index>(loop, "rounds"),
      attribute<Index>(loop, "most"),
      attribute(loop, "pair_trips"),
      attribute(loop, "widths"),
      attribute(loop, "edge_rows"),
      attribute(loop, "pair_rows"),
      attribute<Index>(loop, "rounds_table"),
      attribute<Index>(loop, "ends_table"),
      {},
  };
  for (nb::handle arena : loop.attr("arenas"))
    layout.arenas.push_back(tables_of(arena));
  return layout;
}

std::shared_ptr<Layout> make_layout(std::shared_ptr<TypeTable> table, nb::sequence phases, nb::sequence arenas,
                                    Index size) {
  std::vector<PhaseLayout> own;
  for (nb::handle phase : phases) {
    PhaseLayout layout{{}, attribute<Index>(phase, "total_table"), std::nullopt};
    for (nb::handle block : phase.attr("blocks"))
      layout.blocks.push_back(block_of(block));
    if (nb::object loop = phase.attr("loop"); !loop.is_none())
      layout.loop = loop_of(loop);
    own.push_back(std::move(layout));
  }
  std::vector<ArenaLayout> rows;
  for (nb::handle arena : arenas)
    rows.push_back({attribute<Index>(arena, "value_class"), attribute<Index>(arena, "shared"),
                    attribute<Index>(arena, "inputs"), attribute<Index>(arena, "capacity")});
  return std::make_shared<Layout>(std::move(table), std::move(own), std::move(rows), size);
}

// Graphs and batches

std::shared_ptr<TypedGraph> make_graph(std::shared_ptr<TypeTable> table, Array kind, Array operand_start,
                                       Array operands, Array shared_rows, Array outputs, Table of_input,
                                       Table class_rows) {
  return retype(std::move(table), {
                                      .kind = span_of(kind),
                                      .operand_start = span_of(operand_start),
                                      .operands = span_of(operands),
                                      .shared_rows = span_of(shared_rows),
                                      .outputs = span_of(outputs),
                                      .input_class = row_of(of_input, 0),
                                      .input_row = row_of(of_input, 1),
                                      .classes = row_of(class_rows, 0),
                                      .class_rows = row_of(class_rows, 1),
                                  });
}

std::map<Index, Index> type_counts(const TypedGraph &graph) {
  std::map<Index, Index> counts;
  for (const TypeRanks &own : graph.ranks)
    if (own.nodes)
      counts[own.type] = own.nodes;
  return counts;
}

std::shared_ptr<InputRows> make_inputs(const TypeTable &, nb::sequence samples,
                                       const std::vector<std::tuple<std::string, std::size_t, std::size_t>> &classes) {
  std::vector<ClassFormat> formats;
  for (const auto &[kind, item, row] : classes)
    formats.push_back({kind.empty() ? '\0' : kind[0], item, row});
  const nb::object array_type = nb::module_::import_("numpy").attr("ndarray");
  return std::make_shared<InputRows>(samples.ptr(), formats, reinterpret_cast<PyTypeObject *>(array_type.ptr()));
}

std::shared_ptr<Batch> make_batch(std::shared_ptr<TypeTable> table,
                                  const std::vector<std::shared_ptr<TypedGraph>> &graphs, InputRows &inputs,
                                  Array shared_class, Array shared_row, Array shared_count, bool dedupe) {
  std::vector<std::shared_ptr<const TypedGraph>> all(graphs.begin(), graphs.end());
  const SharedRows shared{span_of(shared_class), span_of(shared_row), span_of(shared_count)};
  for (Index count : shared.counts)
    check(count >= 0, "counts of shared values are not negative");
  return std::make_shared<Batch>(std::move(table), std::move(all), inputs, shared, dedupe);
}

nb::tuple edges_of(const Batch &batch) {
  Ints distinct(batch.type.size(), -1), reader, read;
  for (Index node = 0; node < size_of(batch.nodes); ++node)
    distinct[batch.nodes[node]] = node;
  for (Index node = 0; node < size_of(batch.nodes); ++node) {
    for (Index value : batch.reads(batch.nodes[node])) {
      if (batch.producer[value] < 0)
        continue;
      reader.push_back(node);
      read.push_back(distinct[batch.leader[batch.producer[value]]]);
    }
  }
  return nb::make_tuple(array_of(std::move(reader)), array_of(std::move(read)));
}

// Recordings

using Given = std::vector<std::tuple<Row, Row, Row>>;

// The integers of a list, in a fraction of the time that a cast takes.
Rows rows_of(nb::handle numbers) {
  const nb::object sequence = nb::steal(PySequence_Fast(numbers.ptr(), "a sequence of integers"));
  if (!sequence.is_valid())
    throw nb::python_error();
  Rows rows(static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.ptr())));
  for (std::size_t at = 0; at < rows.size(); ++at) {
    PyObject *number = PySequence_Fast_GET_ITEM(sequence.ptr(), static_cast<Py_ssize_t>(at));
    if (!PyLong_Check(number)) // others may run code of their own, which changes the list
      throw nb::type_error("integers");
    rows[at] = PyLong_AsLongLong(number);
    if (rows[at] == -1 && PyErr_Occurred())
      throw nb::python_error();
  }
  return rows;
}

Given given_of(nb::handle numbers) {
  const nb::object sequence = nb::steal(PySequence_Fast(numbers.ptr(), "a sequence of triples"));
  if (!sequence.is_valid())
    throw nb::python_error();
  Given given;
  given.reserve(static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.ptr())));
  for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(sequence.ptr()); ++at) {
    const Rows triple = rows_of(PySequence_Fast_GET_ITEM(sequence.ptr(), at));
    check(triple.size() == 3, "a given row is a leaf, a depth and a row");
    given.emplace_back(triple[0], triple[1], triple[2]);
  }
  return given;
}

nb::tuple number_recording(const std::tuple<Array, Array, Array, Array, Array> &kinds, nb::handle node_kinds,
                           nb::handle counts, nb::handle operands, nb::handle made, nb::handle outputs,
                           nb::handle given, nb::handle given_class, nb::sequence leaf_shapes) {
  const auto &[first_output, out_class, first_slot, is_variadic, has_effects] = kinds;
  const Ends ends{span_of(first_output), span_of(out_class), span_of(first_slot), span_of(is_variadic),
                  span_of(has_effects)};
  ends.check();
  const Numbered graph = number(ends, {rows_of(node_kinds), rows_of(counts), rows_of(operands), rows_of(made),
                                       rows_of(outputs), given_of(given), rows_of(given_class)});
  const InputPlaces places = find_input_places(graph, [&](Index leaf, Index depth) {
    std::int64_t rows = 1;
    if (depth) {
      const auto shape = nb::cast<std::vector<std::int64_t>>(leaf_shapes[leaf]);
      check(static_cast<std::size_t>(depth) <= shape.size(), "a leaf has the axes that are indexed");
      for (Index axis = 0; axis < depth; ++axis) {
        check(shape[axis] >= 0 && shape[axis] < std::int64_t(1) << 31, "axes have small sizes");
        rows = checked_count(static_cast<std::size_t>(rows * shape[axis]));
      }
    }
    return static_cast<std::size_t>(rows);
  });
  Ints numbers;
  nb::list bounds;
  for (const Ints *own :
       {&graph.inputs, &graph.shared_rows, &graph.kind, &graph.operand_start, &graph.operands, &graph.value_class,
        &graph.outputs, &graph.level, &graph.node_values, &graph.kinds_present, &places.of_input, &places.class_rows}) {
    numbers.insert(numbers.end(), own->begin(), own->end());
    bounds.append(numbers.size());
  }
  return nb::make_tuple(array_of(std::move(numbers)), bounds, graph.edges, places.leaves);
}

// Samples in flight

using SlotArray = nb::ndarray<Index, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

SlotTable table_of(const SlotArray &array) {
  return {{array.data(), array.shape(0) * array.shape(1)}, checked_count(array.shape(1))};
}

std::shared_ptr<SyncNodes> make_nodes(Array steps, Table reads, Table makes) {
  check(reads.shape(0) == steps.shape(0) && makes.shape(0) == steps.shape(0), "each node has reads and values");
  return std::make_shared<SyncNodes>(span_of(steps), IntSpan(reads.data(), reads.shape(0) * reads.shape(1)),
                                     IntSpan(makes.data(), makes.shape(0) * makes.shape(1)),
                                     checked_count(reads.shape(1)), checked_count(makes.shape(1)));
}

using Samples = std::vector<std::shared_ptr<SyncNodes>>;

std::map<Index, Index> rows_needed(const Assembler &assembler, const Samples &samples) {
  return assembler.rows_needed({samples.begin(), samples.end()});
}

std::vector<View> make_buffers(const Assembler &assembler, const Samples &samples, Array slots, SlotArray rows,
                               SlotArray classes, Array pinned, Buffer free) {
  const std::vector<std::shared_ptr<const SyncNodes>> all(samples.begin(), samples.end());
  std::vector<View> views;
  for (Ints &buffer : assembler.buffers(all, span_of(slots), table_of(rows), table_of(classes), span_of(pinned),
                                        {free.data(), free.shape(0)}))
    views.push_back(array_of(std::move(buffer)));
  return views;
}

} // namespace
} // namespace jitbatch

NB_MODULE(native, m) {
  using namespace jitbatch;
  nb::set_leak_warnings(false); // caches keep graphs until the interpreter ends
  m.doc() = "The compiled core of planning; `jitbatch.core.reference` says what it computes.";

  m.attr("version") = 1; // of the interface to Python, as in `jitbatch/core/choice.py`

  add_calls(m);
  add_samples(m);
  add_refill(m);
  m.def("number", number_recording);
  m.def("find_ranks", [](Array types, Array order, Array reader, Array read) {
    return array_of(find_ranks(span_of(types), span_of(order), span_of(reader), span_of(read)));
  });

  nb::class_<InputRows>(m, "InputRows")
      .def_prop_ro("unread", &InputRows::unread)
      .def("put", [](InputRows &rows, Index number, nb::handle array) { rows.put(number, array.ptr()); })
      .def("put_opaque", &InputRows::put_opaque)
      .def("count", &InputRows::count)
      .def("write", [](const InputRows &rows, Index number, nb::handle out) { rows.write(number, out.ptr()); });

  nb::class_<TypedGraph>(m, "TypedGraph")
      .def_prop_ro("node_count", [](const TypedGraph &graph) { return graph.nodes.size(); })
      .def_prop_ro("type_counts", type_counts)
      .def_prop_ro("shared", [](const TypedGraph &graph) { return Ints(graph.shared.begin(), graph.shared.end()); });

  nb::class_<Layout>(m, "Layout").def_prop_ro("size", &Layout::size);

  nb::class_<Filled>(m, "Filled")
      .def_prop_ro("value_row", view_of(&Filled::value_row))
      .def_prop_ro("output_rows", view_of(&Filled::output_rows))
      .def_ro("steps", &Filled::steps)
      .def_ro("launches", &Filled::launches)
      .def_ro("padded_rows", &Filled::padded_rows);

  nb::class_<Measured>(m, "Measured")
      .def_ro("nodes", &Measured::nodes)
      .def_ro("terms", &Measured::terms)
      .def_ro("longest", &Measured::longest)
      .def_ro("widest", &Measured::widest)
      .def_ro("rounds", &Measured::rounds)
      .def_ro("pairs", &Measured::pairs)
      .def_ro("pair_trips", &Measured::pair_trips);

  nb::class_<Schedule>(m, "Schedule")
      .def_prop_ro("bound", &Schedule::bound)
      .def_prop_ro(
          "round", [](const Schedule &schedule) { return array_of(schedule.round()); }, nb::rv_policy::reference)
      .def("members", [](const Schedule &schedule, Index loop) { return array_of(schedule.members(loop)); })
      .def("least_steps", &Schedule::least_steps)
      .def("steps", &Schedule::steps)
      .def("by_ranks", &Schedule::by_ranks)
      .def("put", [](Schedule &schedule, Index loop, Array rounds) { schedule.put(loop, span_of(rounds)); })
      .def("measure", &Schedule::measure)
      .def(
          "fill",
          [](const Schedule &schedule, const Layout &layout, Buffer tables) {
            return fill(schedule, layout, {tables.data(), tables.shape(0)});
          },
          "layout"_a, nb::arg("tables").noconvert());

  nb::class_<Batch>(m, "Batch")
      .def_prop_ro("type", view_of(&Batch::type))
      .def_prop_ro("level", view_of(&Batch::level))
      .def_prop_ro("rank", view_of(&Batch::rank))
      .def_prop_ro("operand_start", view_of(&Batch::operand_start))
      .def_prop_ro("operands", view_of(&Batch::operands))
      .def_prop_ro("first_value", view_of(&Batch::first_value))
      .def_prop_ro("leader", view_of(&Batch::leader))
      .def_prop_ro("nodes", view_of(&Batch::nodes))
      .def_prop_ro("outputs", view_of(&Batch::outputs))
      .def_prop_ro("value_row", view_of(&Batch::value_row))
      .def_prop_ro("given_class", view_of(&Batch::given_class))
      .def_prop_ro("producer", view_of(&Batch::producer))
      .def_prop_ro("values", [](const Batch &batch) { return batch.key.size(); })
      .def_prop_ro("node_count", [](const Batch &batch) { return batch.type.size(); })
      .def_prop_ro("distinct_count", [](const Batch &batch) { return batch.nodes.size(); })
      .def_ro("levels", &Batch::levels)
      .def("edges", edges_of)
      .def("schedule", [](std::shared_ptr<Batch> batch) { return std::make_shared<Schedule>(std::move(batch)); });

  nb::class_<SyncNodes>(m, "Nodes").def(nb::new_(&make_nodes));

  nb::class_<Assembler>(m, "Assembler")
      .def(nb::init<Ints, std::vector<Ints>, std::vector<Ints>, Index>())
      .def("rows_needed", rows_needed)
      .def("buffers", make_buffers, "samples"_a, "slots"_a, nb::arg("rows").noconvert(), nb::arg("classes").noconvert(),
           "pinned"_a, nb::arg("free").noconvert());

  nb::class_<TypeTable>(m, "TypeTable")
      .def(nb::new_(&make_table), "types"_a, "loops"_a, "recipes"_a)
      .def("graph", make_graph)
      .def("inputs", make_inputs)
      .def("batch", make_batch)
      .def("layout", make_layout);
}
