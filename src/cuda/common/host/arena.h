// Workspace in device memory, cut into arrays that are aligned for every kind of access.
#pragma once

#include "core/base/arena.h"

namespace tessera::cuda {

using Arena = core::Arena<256>;

}  // namespace tessera::cuda
