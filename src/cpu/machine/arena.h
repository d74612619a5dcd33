// Workspace in host memory, cut into arrays that begin at cache lines.
#pragma once

#include "core/base/arena.h"

namespace tessera::cpu {

using Arena = core::Arena<64>;

}  // namespace tessera::cpu
