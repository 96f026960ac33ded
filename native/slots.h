// Slots of Python's objects, by their place in memory.
#pragma once

#include <nanobind/nanobind.h>

#include <structmember.h>

#include <stdexcept>
#include <string>

namespace jitbatch {

// Where instances of a class hold the slot of this name. Raises TypeError where it is no slot that Python made.
inline Py_ssize_t slot_of(nanobind::handle type, const char *name) {
  const nanobind::object found = nanobind::getattr(type, name, nanobind::none());
  if (Py_TYPE(found.ptr()) == &PyMemberDescr_Type) {
    const PyMemberDef *member = reinterpret_cast<PyMemberDescrObject *>(found.ptr())->d_member;
    if (member->type == T_OBJECT_EX && !(member->flags & READONLY))
      return member->offset;
  }
  throw nanobind::type_error((std::string(name) + " is no slot").c_str());
}

inline PyObject *&slot(PyObject *object, Py_ssize_t place) {
  return *reinterpret_cast<PyObject **>(reinterpret_cast<char *>(object) + place);
}

// Fill a slot with an object that the caller gives up.
inline void fill_slot(PyObject *object, Py_ssize_t place, PyObject *content) {
  PyObject *before = slot(object, place);
  slot(object, place) = content;
  Py_XDECREF(before);
}

} // namespace jitbatch
