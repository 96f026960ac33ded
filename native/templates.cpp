#include "templates.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

namespace nb = nanobind;

namespace jitbatch {

namespace {

constexpr std::size_t most = 4096; // templates in a table; past that it begins anew

std::size_t hash_of(Words words) {
  std::uint64_t hash = words.size();
  for (Word word : words) {
    hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return static_cast<std::size_t>(hash ^ hash >> 32);
}

std::vector<nb::object> objects_of(nb::handle sequence) {
  std::vector<nb::object> objects;
  for (nb::handle item : sequence) {
    if (!PyLong_CheckExact(item.ptr()))
      throw nb::type_error("a template is made of integers");
    objects.push_back(nb::borrow(item));
  }
  return objects;
}

} // namespace

Template::Template(nb::handle given) : made(nb::borrow(given)) {
  row_count = nb::cast<std::size_t>(given.attr("row_count"));
  if (!given.attr("any_result").is_none() || !nb::cast<bool>(given.attr("has_fixed_rows")))
    return;
  further_count = nb::len(nb::object(given.attr("further")));
  kinds = objects_of(given.attr("kinds"));
  counts = objects_of(given.attr("counts"));
  operands = nb::cast<std::vector<std::size_t>>(given.attr("places"));
  output_count = nb::cast<std::size_t>(given.attr("output_count"));
  make = given.attr("make");
  tuple = given.attr("tuple_type");
  for (nb::handle result : given.attr("results"))
    results.push_back({nb::cast<std::size_t>(result[0]), nb::borrow(result[1]), nb::borrow(result[2])});
  for (std::size_t place : operands)
    if (place >= row_count + output_count + further_count)
      throw std::invalid_argument("an operand is the row of an argument or of an output, or a further one");
  for (const Result &result : results)
    if (result.place >= output_count)
      throw std::invalid_argument("a result is an output");
  if (kinds.size() != counts.size() || results.empty() || (make.is_none() && results.size() != 1))
    throw std::invalid_argument("a template has kinds, counts and results");
  if (!tuple.is_none() &&
      !(PyType_Check(tuple.ptr()) && PyType_IsSubtype(reinterpret_cast<PyTypeObject *>(tuple.ptr()), &PyTuple_Type)))
    throw nb::type_error("a class of tuples");
  is_plain = true;
}

std::size_t Templates::place_of(std::size_t hash, Words words) const {
  const std::size_t mask = places_.size() - 1;
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    if (!places_[at])
      return at;
    const Entry &entry = entries_[places_[at] - 1];
    if (entry.hash == hash && std::ranges::equal(entry.words, words))
      return at;
  }
}

std::shared_ptr<const Template> Templates::find(Words words) const {
  const std::uint32_t found = places_[place_of(hash_of(words), words)];
  return found ? entries_[found - 1].found : nullptr;
}

void Templates::grow() {
  places_.assign(2 * places_.size(), 0);
  for (std::size_t entry = 0; entry < entries_.size(); ++entry)
    places_[place_of(entries_[entry].hash, entries_[entry].words)] = static_cast<std::uint32_t>(entry + 1);
}

void Templates::learn(Words words, std::vector<nb::object> kept, std::shared_ptr<const Template> found) {
  std::vector<Entry> dropped; // freed last: objects that die may run code of anyone's
  if (entries_.size() >= most) {
    dropped.swap(entries_);
    std::ranges::fill(places_, 0u);
  }
  if (2 * (entries_.size() + 1) > places_.size())
    grow();
  const std::size_t hash = hash_of(words);
  std::uint32_t &place = places_[place_of(hash, words)];
  if (place)
    return;
  entries_.push_back({hash, {words.begin(), words.end()}, std::move(kept), std::move(found)});
  place = static_cast<std::uint32_t>(entries_.size());
}

} // namespace jitbatch
