// Calls of decorated functions: what is recorded of a call that has a template, without Python's code.
//
// The state of a recording stays in Python's objects: lists of integers that grow, and a `Value` for each array. The
// core reads and fills their slots. It knows a call by its words: integers that say which function is called on
// arguments of which forms. All that it does not know it leaves to `Recorder.call`, and learns from that.
#pragma once

#include <nanobind/nanobind.h>

namespace jitbatch {

void add_calls(nanobind::module_ &m);

} // namespace jitbatch
