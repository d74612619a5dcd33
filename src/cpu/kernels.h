// The CPU kernels, as the registry sees them.
#pragma once

#include <span>

#include "core/kernel.h"

namespace tessera::cpu {

std::span<const core::Kernel> kernels();

}  // namespace tessera::cpu
