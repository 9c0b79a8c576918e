// What this machine can run.
#pragma once

#include <string>
#include <vector>

#include "anchorstream/kernels.h"

namespace anchorstream {

// The kernel tables that this machine can run, best first; the last is always portable.
std::vector<const Kernels *> runnable_kernels();

// The table of that name (or its beginning: "avx512"); empty: the best. Throws std::invalid_argument with the choices.
const Kernels &choose_kernels(const std::string &name);

} // namespace anchorstream
