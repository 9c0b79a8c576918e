#include "anchorstream/cpu.h"

#include <stdexcept>

#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#endif

namespace anchorstream {

std::vector<const Kernels *> runnable_kernels() {
    std::vector<const Kernels *> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
        found.push_back(&avx512_kernels());
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) found.push_back(&avx2_kernels());
#elif defined(__aarch64__)
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) found.push_back(&neon_kernels());
#endif
    found.push_back(&portable_kernels());
    return found;
}

const Kernels &choose_kernels(const std::string &name) {
    const auto found = runnable_kernels();
    std::string names;
    for (const Kernels *kernels : found) {
        if (name.empty() || std::string(kernels->name).rfind(name, 0) == 0) return *kernels;
        names += (names.empty() ? "" : ", ") + std::string(kernels->name);
    }
    throw std::invalid_argument("this machine has no instruction set named '" + name + "'; it can run: " + names);
}

} // namespace anchorstream
