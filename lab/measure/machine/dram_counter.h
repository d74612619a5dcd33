// DRAM traffic of a GPU, counted by its own counters through CUPTI's range profiler. CUPTI is
// loaded for the first count, so nothing is linked. When it is missing or not permitted, the result
// is the reason.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace tessera::lab {

struct DramCount {
  std::optional<double> bytes{};  // read and written; none: not counted
  std::string note;               // by what it was counted, or "not measured: " and why
};

// Bytes that go to and from the GPU's memory while it does what `call` puts on its streams. The
// call is made as often as the counters need passes, with the cache as the call before left it:
// dirty lines of something else would count. Never throws: what the call throws is a reason, too.
// TESSERA_COUNTERS=0 in the environment leaves the profiler alone.
DramCount count_dram_bytes(int device, const std::function<void()>& call);

}  // namespace tessera::lab
