#include "input_rows.h"

#include <cstring>
#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace jitbatch {
namespace {

std::uint64_t hash_of(const char *row, std::size_t bytes) {
  std::uint64_t digest = bytes;
  const auto mix = [&](std::uint64_t word) {
    digest = (digest ^ word) * 0x9E3779B97F4A7C15ull;
    digest ^= digest >> 29;
  };
  std::size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    std::uint64_t word;
    std::memcpy(&word, row + at, 8);
    mix(word);
  }
  if (at < bytes) {
    std::uint64_t word = 0;
    std::memcpy(&word, row + at, bytes - at);
    mix(word);
  }
  return digest ^ digest >> 32;
}

// The size of a hash table of so many rows.
std::size_t slots_for(Index count) {
  std::size_t slots = 16;
  while (slots < 2 * static_cast<std::size_t>(count))
    slots *= 2;
  return slots;
}

// A sequence as a list or tuple, which it mostly is.
nb::object fast_sequence(PyObject *sequence) {
  PyObject *fast = PySequence_Fast(sequence, "the inputs of samples are sequences");
  if (!fast)
    throw nb::python_error();
  return nb::steal(fast);
}

template <typename From, typename To> void convert(const char *data, std::size_t bytes, char *out) {
  for (std::size_t at = 0; at < bytes; at += sizeof(From), out += sizeof(To)) {
    From from;
    std::memcpy(&from, data + at, sizeof(From));
    const To to = static_cast<To>(from);
    std::memcpy(out, &to, sizeof(To));
  }
}

} // namespace

void narrow(char kind, const char *data, std::size_t bytes, char *out) {
  if (kind == 'i' || kind == 'u') // the lower half, whatever the sign
    convert<std::uint64_t, std::uint32_t>(data, bytes, out);
  else // a complex number is two floats
    convert<double, float>(data, bytes, out);
}

char kind_of(const char *format) {
  if (!format)
    return 0;
  if (format[0] == '=') // this machine's order of bytes
    ++format;
  switch (format[0]) {
  case '?':
    return format[1] ? 0 : 'b';
  case 'b':
  case 'h':
  case 'i':
  case 'l':
  case 'q':
    return format[1] ? 0 : 'i';
  case 'B':
  case 'H':
  case 'I':
  case 'L':
  case 'Q':
    return format[1] ? 0 : 'u';
  case 'e':
  case 'f':
  case 'd':
    return format[1] ? 0 : 'f';
  case 'Z':
    return (format[1] == 'f' || format[1] == 'd') && !format[2] ? 'c' : 0;
  default:
    return 0;
  }
}

InputRows::InputRows(const std::vector<ClassFormat> &formats) : array_type_(nullptr), classes_(formats.size()) {
  for (std::size_t number = 0; number < formats.size(); ++number)
    classes_[number].format = formats[number];
}

InputRows::InputRows(PyObject *samples, const std::vector<ClassFormat> &formats, PyTypeObject *array_type)
    : array_type_(array_type), classes_(formats.size()) {
  for (std::size_t number = 0; number < formats.size(); ++number)
    classes_[number].format = formats[number];
  try {
    const nb::object all = fast_sequence(samples);
    for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(all.ptr()); ++place)
      read_sample(PySequence_Fast_GET_ITEM(all.ptr(), place));
  } catch (...) {
    for (Py_buffer &buffer : buffers_)
      PyBuffer_Release(&buffer);
    throw;
  }
}

InputRows::~InputRows() {
  for (Py_buffer &buffer : buffers_)
    PyBuffer_Release(&buffer);
}

InputRows::Rows &InputRows::rows_of(Index value_class) {
  check(value_class >= 0 && value_class < class_count(), "inputs are of value classes that exist");
  return classes_[value_class];
}

void InputRows::read_sample(PyObject *sample) {
  const nb::object pairs = fast_sequence(sample);
  for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(pairs.ptr()); ++place) {
    const nb::object pair = fast_sequence(PySequence_Fast_GET_ITEM(pairs.ptr(), place));
    check(PySequence_Fast_GET_SIZE(pair.ptr()) == 2, "the inputs of a sample are pairs of a class and arrays");
    Rows &rows = rows_of(nb::cast<Index>(nb::handle(PySequence_Fast_GET_ITEM(pair.ptr(), 0))));
    if (rows.is_unread)
      continue;
    const nb::object arrays = fast_sequence(PySequence_Fast_GET_ITEM(pair.ptr(), 1));
    for (Py_ssize_t array = 0; array < PySequence_Fast_GET_SIZE(arrays.ptr()); ++array)
      if (!read_array(rows, PySequence_Fast_GET_ITEM(arrays.ptr(), array))) {
        rows.is_unread = true;
        rows.chunks.clear();
        break;
      }
  }
}

bool InputRows::read_array(Rows &rows, PyObject *array) {
  if (!rows.format.kind || Py_TYPE(array) != array_type_)
    return false;
  Py_buffer buffer;
  if (PyObject_GetBuffer(array, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  buffers_.push_back(buffer);
  const std::size_t item = static_cast<std::size_t>(buffer.itemsize);
  if (!rows.format.reads(kind_of(buffer.format), item))
    return false;
  add(rows, static_cast<const char *>(buffer.buf), static_cast<std::size_t>(buffer.len), item);
  return true;
}

void InputRows::add(Rows &rows, const char *data, std::size_t bytes, std::size_t item) {
  if (item != rows.format.item) {
    narrowed_.push_back(std::make_unique_for_overwrite<char[]>(bytes / 2));
    narrow(rows.format.kind, data, bytes, narrowed_.back().get());
    data = narrowed_.back().get();
    bytes /= 2;
  }
  rows.chunks.push_back({data, bytes});
}

Ints InputRows::unread() const {
  Ints numbers;
  for (Index number = 0; number < class_count(); ++number)
    if (classes_[number].is_unread)
      numbers.push_back(number);
  return numbers;
}

void InputRows::put(Index value_class, PyObject *array) {
  Rows &rows = rows_of(value_class);
  Py_buffer buffer;
  if (PyObject_GetBuffer(array, &buffer, PyBUF_C_CONTIGUOUS) != 0)
    throw nb::python_error();
  buffers_.push_back(buffer);
  check(buffer.ndim >= 1, "rows are an array with an axis of rows");
  const std::size_t count = static_cast<std::size_t>(buffer.shape[0]);
  rows.format.row = count ? static_cast<std::size_t>(buffer.len) / count : 0;
  rows.chunks = {{static_cast<const char *>(buffer.buf), static_cast<std::size_t>(buffer.len)}};
  rows.is_unread = false;
}

void InputRows::put_opaque(Index value_class) {
  Rows &rows = rows_of(value_class);
  rows.is_unread = false;
  rows.is_opaque = true;
}

void InputRows::merge(Index value_class, Index count, bool dedupe) {
  Rows &rows = rows_of(value_class);
  check(!rows.is_unread, "the rows of a class were not put");
  if (rows.is_opaque) {
    keep_all(rows, count);
    return;
  }
  std::size_t bytes = 0;
  for (const Chunk &chunk : rows.chunks) {
    check(rows.format.row ? chunk.bytes % rows.format.row == 0 : chunk.bytes == 0, "an array has whole rows");
    bytes += chunk.bytes;
  }
  check(bytes == static_cast<std::size_t>(count) * rows.format.row, "samples have as many rows as their graphs read");
  rows.distinct.clear();
  if (!count) {
    rows.which.clear();
    rows.count = 0;
    return;
  }
  if (dedupe) {
    merge_equal(rows, count);
    return;
  }
  keep_all(rows, count);
  for (const Chunk &chunk : rows.chunks)
    for (std::size_t at = 0; at < chunk.bytes; at += rows.format.row)
      rows.distinct.push_back(chunk.data + at);
}

void InputRows::keep_all(Rows &rows, Index count) {
  rows.count = count;
  rows.which.resize(count);
  for (Index row = 0; row < count; ++row)
    rows.which[row] = row;
}

// Equal rows have equal hashes; which of those with equal hashes are equal is found out by comparing them.
void InputRows::merge_equal(Rows &rows, Index count) {
  const std::size_t size = rows.format.row;
  if (size == 4) {
    merge_words<std::uint32_t>(rows, count);
    return;
  }
  if (size == 8) {
    merge_words<std::uint64_t>(rows, count);
    return;
  }
  rows.which.assign(count, 0);
  if (!size) {
    rows.count = count ? 1 : 0;
    return;
  }
  const std::size_t slots = slots_for(count);
  Ints table(slots, -1);
  Index row = 0;
  for (const Chunk &chunk : rows.chunks) {
    for (std::size_t at = 0; at < chunk.bytes; at += size, ++row) {
      const char *data = chunk.data + at;
      std::size_t slot = hash_of(data, size) & (slots - 1);
      while (table[slot] >= 0 && std::memcmp(rows.distinct[table[slot]], data, size) != 0)
        slot = (slot + 1) & (slots - 1);
      if (table[slot] < 0) {
        table[slot] = static_cast<Index>(rows.distinct.size());
        rows.distinct.push_back(data);
      }
      rows.which[row] = table[slot];
    }
  }
  rows.count = static_cast<Index>(rows.distinct.size());
}

// Rows of the size of a machine word, of which most are one number: compared without a look at where they came from.
template <typename Word> void InputRows::merge_words(Rows &rows, Index count) {
  struct Slot {
    Word word;
    Index row; // -1 for none
  };
  rows.which.resize(count);
  const std::size_t slots = slots_for(count);
  std::vector<Slot> table(slots, Slot{0, -1});
  Index row = 0;
  for (const Chunk &chunk : rows.chunks) {
    for (std::size_t at = 0; at < chunk.bytes; at += sizeof(Word), ++row) {
      Word word;
      std::memcpy(&word, chunk.data + at, sizeof(Word));
      std::size_t slot = (word * 0x9E3779B97F4A7C15ull >> 32) & (slots - 1);
      while (table[slot].row >= 0 && table[slot].word != word)
        slot = (slot + 1) & (slots - 1);
      if (table[slot].row < 0) {
        table[slot] = {word, static_cast<Index>(rows.distinct.size())};
        rows.distinct.push_back(chunk.data + at);
      }
      rows.which[row] = table[slot].row;
    }
  }
  rows.count = static_cast<Index>(rows.distinct.size());
}

Index InputRows::count(Index value_class) const {
  return value_class >= 0 && value_class < class_count() ? classes_[value_class].count : 0;
}

void InputRows::write(Index value_class, PyObject *out) const {
  check(value_class >= 0 && value_class < class_count() && !classes_[value_class].is_opaque,
        "the rows of a class can be written");
  const Rows &rows = classes_[value_class];
  Py_buffer buffer;
  if (PyObject_GetBuffer(out, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0)
    throw nb::python_error();
  const std::size_t size = rows.format.row, used = rows.distinct.size() * size;
  const bool fits = used <= static_cast<std::size_t>(buffer.len);
  if (fits) {
    char *to = static_cast<char *>(buffer.buf);
    for (const char *row : rows.distinct) {
      std::memcpy(to, row, size);
      to += size;
    }
    std::memset(to, 0, static_cast<std::size_t>(buffer.len) - used);
  }
  PyBuffer_Release(&buffer);
  check(fits, "the rows of a class fit where they are written");
}

} // namespace jitbatch
