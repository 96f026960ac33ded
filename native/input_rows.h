// The input rows of a batch: the leaves of all samples, class by class, equal rows once.
#pragma once

#include <Python.h>

#include "numbers.h"

namespace jitbatch {

// The kind of dtype that a buffer's format stands for, as NumPy's; 0 for others, and for another order of bytes.
char kind_of(const char *format);

// How the values of a class lie in memory.
struct ClassFormat {
  char kind;        // of its dtype, as NumPy's; 0 for what is not to be read here
  std::size_t item; // bytes of an element
  std::size_t row;  // bytes of a value

  // Whether elements of a buffer can be read as this class: NumPy's default dtypes have twice the bytes of JAX's.
  bool reads(char other, std::size_t other_item) const {
    return kind && kind == other &&
           (other_item == item || (other_item == 2 * item && (kind == 'c' ? item == 8 : item == 4)));
  }
};

// Copies elements that have twice the bytes of those of the class, as NumPy converts them.
void narrow(char kind, const char *data, std::size_t bytes, char *out);

// Arrays of the right dtype are read here. Others are left to the caller, who puts an array of all rows of the class,
// or says that they cannot be looked at.
class InputRows {
public:
  // `samples` is a list; each sample is a sequence of pairs of a class and a sequence of arrays of type `array_type`.
  InputRows(PyObject *samples, const std::vector<ClassFormat> &formats, PyTypeObject *array_type);
  // Without rows, for `add`.
  explicit InputRows(const std::vector<ClassFormat> &formats);
  ~InputRows();
  InputRows(const InputRows &) = delete;
  InputRows &operator=(const InputRows &) = delete;

  // Rows of a class in memory that `owner` keeps, with elements of `item` bytes, which the class can read.
  void add(Index value_class, const char *data, std::size_t bytes, std::size_t item) {
    add(rows_of(value_class), data, bytes, item);
  }
  void keep(std::shared_ptr<const void> owner) { owner_ = std::move(owner); }

  // The classes that are left to the caller, ascending.
  Ints unread() const;
  // All rows of a class, in `array`, which is kept.
  void put(Index value_class, PyObject *array);
  // The rows of a class are not compared.
  void put_opaque(Index value_class);

  // Finds the distinct rows of a class that has `count` rows.
  void merge(Index value_class, Index count, bool dedupe);
  // For each row of a class which distinct row it is.
  const Ints &which(Index value_class) const { return classes_[value_class].which; }
  Index count(Index value_class) const;
  Index class_count() const { return static_cast<Index>(classes_.size()); }
  // Writes the distinct rows of a class, and zeros behind them.
  void write(Index value_class, PyObject *out) const;

private:
  struct Chunk {
    const char *data;
    std::size_t bytes;
  };

  struct Rows {
    ClassFormat format;
    std::vector<Chunk> chunks;
    bool is_unread = false;
    bool is_opaque = false;
    Index count = 0; // distinct ones
    Ints which;
    std::vector<const char *> distinct;
  };

  void read_sample(PyObject *sample);
  bool read_array(Rows &rows, PyObject *array);
  void add(Rows &rows, const char *data, std::size_t bytes, std::size_t item);
  Rows &rows_of(Index value_class);
  static void merge_equal(Rows &rows, Index count);
  template <typename Word> static void merge_words(Rows &rows, Index count);
  static void keep_all(Rows &rows, Index count);

  PyTypeObject *array_type_;
  std::vector<Rows> classes_;
  std::vector<Py_buffer> buffers_; // held as long as rows are read
  std::vector<std::unique_ptr<char[]>> narrowed_;
  std::shared_ptr<const void> owner_;
};

} // namespace jitbatch
