#include "lab/measure/machine/dram_counter.h"

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string_view>

#include "cuda/common/host/gpus.h"
#include "lab/terminal/errors.h"
#include "lab/terminal/text.h"

#if TESSERA_HAVE_CUDA && __has_include(<cupti_range_profiler.h>)
#define TESSERA_LAB_CUPTI 1
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>

#include <array>
#include <cstdint>
#include <vector>

#include "core/base/dynamic_library.h"
#include "cuda/common/host/device.h"
#else
#define TESSERA_LAB_CUPTI 0
#endif

namespace tessera::lab {
namespace {

// Why nothing can be counted.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

#if TESSERA_LAB_CUPTI

constexpr std::array<const char*, 2> kMetrics = {"dram__bytes_read.sum", "dram__bytes_write.sum"};

// The parameters of a function of CUPTI. They carry their size, so that a newer CUPTI of the same
// major version can tell what this one knew.
#define TESSERA_LAB_PARAMETERS(Name)                   \
  [] {                                                 \
    Name##_Params parameters{};                        \
    parameters.structSize = Name##_Params_STRUCT_SIZE; \
    return parameters;                                 \
  }()

// CUPTI's functions, by their own types.
struct Cupti {
  decltype(&cuptiGetErrorMessage) error_message = nullptr;
  decltype(&cuptiProfilerInitialize) initialize = nullptr;
  decltype(&cuptiProfilerDeInitialize) deinitialize = nullptr;
  decltype(&cuptiProfilerGetCounterAvailability) availability = nullptr;
  decltype(&cuptiDeviceGetChipName) chip_name = nullptr;
  decltype(&cuptiProfilerHostInitialize) host_initialize = nullptr;
  decltype(&cuptiProfilerHostDeinitialize) host_deinitialize = nullptr;
  decltype(&cuptiProfilerHostConfigAddMetrics) add_metrics = nullptr;
  decltype(&cuptiProfilerHostGetConfigImageSize) config_size = nullptr;
  decltype(&cuptiProfilerHostGetConfigImage) config = nullptr;
  decltype(&cuptiProfilerHostEvaluateToGpuValues) evaluate = nullptr;
  decltype(&cuptiRangeProfilerEnable) enable = nullptr;
  decltype(&cuptiRangeProfilerDisable) disable = nullptr;
  decltype(&cuptiRangeProfilerGetCounterDataSize) data_size = nullptr;
  decltype(&cuptiRangeProfilerCounterDataImageInitialize) data_initialize = nullptr;
  decltype(&cuptiRangeProfilerSetConfig) set_config = nullptr;
  decltype(&cuptiRangeProfilerStart) start = nullptr;
  decltype(&cuptiRangeProfilerStop) stop = nullptr;
  decltype(&cuptiRangeProfilerPushRange) push = nullptr;
  decltype(&cuptiRangeProfilerPopRange) pop = nullptr;
  decltype(&cuptiRangeProfilerDecodeData) decode = nullptr;
  std::string missing;
};

Cupti load_cupti() {
  Cupti cupti;
  const std::string name = fmt::format("libcupti.so.{}", CUDART_VERSION / 1000);  // what this was built with
  core::DynamicLibrary file;
  if (!file.open(name, {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/",
                        "/usr/local/cuda/extras/CUPTI/lib64/", "/opt/cuda/extras/CUPTI/lib64/"})) {
    cupti.missing = fmt::format("CUPTI ({}) is not installed, or not where the loader looks for it", name);
    return cupti;
  }
  file.find(cupti.error_message, "cuptiGetErrorMessage");
  file.find(cupti.initialize, "cuptiProfilerInitialize");
  file.find(cupti.deinitialize, "cuptiProfilerDeInitialize");
  file.find(cupti.availability, "cuptiProfilerGetCounterAvailability");
  file.find(cupti.chip_name, "cuptiDeviceGetChipName");
  file.find(cupti.host_initialize, "cuptiProfilerHostInitialize");
  file.find(cupti.host_deinitialize, "cuptiProfilerHostDeinitialize");
  file.find(cupti.add_metrics, "cuptiProfilerHostConfigAddMetrics");
  file.find(cupti.config_size, "cuptiProfilerHostGetConfigImageSize");
  file.find(cupti.config, "cuptiProfilerHostGetConfigImage");
  file.find(cupti.evaluate, "cuptiProfilerHostEvaluateToGpuValues");
  file.find(cupti.enable, "cuptiRangeProfilerEnable");
  file.find(cupti.disable, "cuptiRangeProfilerDisable");
  file.find(cupti.data_size, "cuptiRangeProfilerGetCounterDataSize");
  file.find(cupti.data_initialize, "cuptiRangeProfilerCounterDataImageInitialize");
  file.find(cupti.set_config, "cuptiRangeProfilerSetConfig");
  file.find(cupti.start, "cuptiRangeProfilerStart");
  file.find(cupti.stop, "cuptiRangeProfilerStop");
  file.find(cupti.push, "cuptiRangeProfilerPushRange");
  file.find(cupti.pop, "cuptiRangeProfilerPopRange");
  file.find(cupti.decode, "cuptiRangeProfilerDecodeData");
  cupti.missing = file.missing();
  return cupti;
}

const Cupti& cupti() {
  static const Cupti loaded = load_cupti();
  return loaded;
}

// In CUPTI's own words, with what a user can do about the usual one.
void check(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return;
  const char* words = nullptr;
  cupti().error_message(result, &words);
  std::string text = fmt::format("{}: {}", what, words == nullptr ? "unknown error" : words);
  if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
    text +=
        " (counters are for root, or for all with the driver option NVreg_RestrictProfilingToAdminUsers=0)";
  throw Refusal(text);
}

// What must be undone, last first, whatever happens.
class Undo {
 public:
  Undo() = default;
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  ~Undo() {
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) (*step)();
  }
  void add(std::function<void()> step) { steps_.push_back(std::move(step)); }

 private:
  std::vector<std::function<void()>> steps_;
};

using Image = std::vector<std::uint8_t>;

CUcontext current_context() {
  using Get = CUresult (*)(CUcontext*);
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cuda::check(
      cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, 12000, cudaEnableDefault, &found),
      "cuCtxGetCurrent");
  CUcontext context = nullptr;
  if (found != cudaDriverEntryPointSuccess || reinterpret_cast<Get>(function)(&context) != CUDA_SUCCESS ||
      context == nullptr)
    throw Refusal("the driver has no current context");
  return context;
}

// Which counters may be read here; fails where they are not permitted.
Image available_counters(CUcontext context) {
  auto ask = TESSERA_LAB_PARAMETERS(CUpti_Profiler_GetCounterAvailability);
  ask.ctx = context;
  check(cupti().availability(&ask), "asking for counters");
  Image image(ask.counterAvailabilityImageSize);
  ask.pCounterAvailabilityImage = image.data();
  check(cupti().availability(&ask), "asking for counters");
  return image;
}

CUpti_Profiler_Host_Object* open_host(int device, const Image& available, Undo& undo) {
  auto chip = TESSERA_LAB_PARAMETERS(CUpti_Device_GetChipName);
  chip.deviceIndex = static_cast<std::size_t>(device);
  check(cupti().chip_name(&chip), "asking for the chip");
  auto open = TESSERA_LAB_PARAMETERS(CUpti_Profiler_Host_Initialize);
  open.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
  open.pChipName = chip.pChipName;
  open.pCounterAvailabilityImage = available.data();
  check(cupti().host_initialize(&open), "opening the profiler's host side");
  undo.add([host = open.pHostObject] {
    auto close = TESSERA_LAB_PARAMETERS(CUpti_Profiler_Host_Deinitialize);
    close.pHostObject = host;
    cupti().host_deinitialize(&close);
  });
  return open.pHostObject;
}

// The configuration that makes the hardware count the metrics.
Image config_of(CUpti_Profiler_Host_Object* host) {
  auto names = kMetrics;
  auto add = TESSERA_LAB_PARAMETERS(CUpti_Profiler_Host_ConfigAddMetrics);
  add.pHostObject = host;
  add.ppMetricNames = names.data();
  add.numMetrics = names.size();
  check(cupti().add_metrics(&add), "choosing the counters of DRAM");
  auto size = TESSERA_LAB_PARAMETERS(CUpti_Profiler_Host_GetConfigImageSize);
  size.pHostObject = host;
  check(cupti().config_size(&size), "configuring the counters");
  Image image(size.configImageSize);
  auto get = TESSERA_LAB_PARAMETERS(CUpti_Profiler_Host_GetConfigImage);
  get.pHostObject = host;
  get.configImageSize = image.size();
  get.pConfigImage = image.data();
  check(cupti().config(&get), "configuring the counters");
  return image;
}

CUpti_RangeProfiler_Object* enable(CUcontext context, Undo& undo) {
  auto on = TESSERA_LAB_PARAMETERS(CUpti_RangeProfiler_Enable);
  on.ctx = context;
  check(cupti().enable(&on), "enabling the range profiler");
  undo.add([profiler = on.pRangeProfilerObject] {
    auto off = TESSERA_LAB_PARAMETERS(CUpti_RangeProfiler_Disable);
    off.pRangeProfilerObject = profiler;
    cupti().disable(&off);
  });
  return on.pRangeProfilerObject;
}

// Where the counts of one range are put.
Image data_for(CUpti_RangeProfiler_Object* profiler) {
  auto names = kMetrics;
  auto size = TESSERA_LAB_PARAMETERS(CUpti_RangeProfiler_GetCounterDataSize);
  size.pRangeProfilerObject = profiler;
  size.pMetricNames = names.data();
  size.numMetrics = names.size();
  size.maxNumOfRanges = 1;
  size.maxNumRangeTreeNodes = 1;
  check(cupti().data_size(&size), "making room for the counts");
  Image image(size.counterDataSize);
  auto clear = TESSERA_LAB_PARAMETERS(CUpti_RangeProfiler_CounterDataImage_Initialize);
  clear.pRangeProfilerObject = profiler;
  clear.counterDataSize = image.size();
  clear.pCounterData = image.data();
  check(cupti().data_initialize(&clear), "making room for the counts");
  return image;
}

// One pass over the call, within one range of our own. Whether it was the last one.
bool count_pass(CUpti_RangeProfiler_Object* profiler, const std::function<void()>& call) {
  auto start = TESSERA_LAB_PARAMETERS(CUpti_RangeProfiler_Start);
  start.pRangeProfilerObject = profiler;
  check(cupti().start(&start), "starting the counters");
  auto push = TESSERA_LAB_PARAMETERS(CUpti_RangeProfiler_PushRange);
  push.pRangeProfilerObject = profiler;
  push.pRangeName = "call";
  check(cupti().push(&push), "beginning a range");
  call();
  cuda::check(cudaDeviceSynchronize(), "waiting for a counted call");
  auto pop = TESSERA_LAB_PARAMETERS(CUpti_RangeProfiler_PopRange);
  pop.pRangeProfilerObject = profiler;
  check(cupti().pop(&pop), "ending a range");
  auto stop = TESSERA_LAB_PARAMETERS(CUpti_RangeProfiler_Stop);
  stop.pRangeProfilerObject = profiler;
  check(cupti().stop(&stop), "stopping the counters");
  return stop.isAllPassSubmitted != 0;
}

double total_of(CUpti_Profiler_Host_Object* host, const Image& data) {
  auto names = kMetrics;
  std::array<double, kMetrics.size()> values{};
  auto ask = TESSERA_LAB_PARAMETERS(CUpti_Profiler_Host_EvaluateToGpuValues);
  ask.pHostObject = host;
  ask.pCounterDataImage = data.data();
  ask.counterDataImageSize = data.size();
  ask.rangeIndex = 0;
  ask.ppMetricNames = names.data();
  ask.numMetrics = names.size();
  ask.pMetricValues = values.data();
  check(cupti().evaluate(&ask), "reading the counts");
  double total = 0;
  for (const double value : values) total += value;
  return total;
}

double count(int device, const std::function<void()>& call) {
  constexpr int kMostPasses = 16;
  if (!cupti().missing.empty()) throw Refusal(cupti().missing);
  const cuda::DeviceScope scope(device);
  cuda::check(cudaDeviceSynchronize(), "waiting for the GPU");  // makes the context, too
  Undo undo;
  auto initialize = TESSERA_LAB_PARAMETERS(CUpti_Profiler_Initialize);
  check(cupti().initialize(&initialize), "starting CUPTI");
  undo.add([] {
    auto end = TESSERA_LAB_PARAMETERS(CUpti_Profiler_DeInitialize);
    cupti().deinitialize(&end);
  });
  CUcontext const context = current_context();
  const Image available = available_counters(context);
  CUpti_Profiler_Host_Object* const host = open_host(device, available, undo);
  const Image config = config_of(host);
  CUpti_RangeProfiler_Object* const profiler = enable(context, undo);
  Image data = data_for(profiler);

  auto set = TESSERA_LAB_PARAMETERS(CUpti_RangeProfiler_SetConfig);
  set.pRangeProfilerObject = profiler;
  set.configSize = config.size();
  set.pConfig = config.data();
  set.counterDataImageSize = data.size();
  set.pCounterDataImage = data.data();
  set.range = CUPTI_UserRange;
  set.replayMode = CUPTI_UserReplay;
  set.maxRangesPerPass = 1;
  set.numNestingLevels = set.minNestingLevel = set.targetNestingLevel = 1;
  check(cupti().set_config(&set), "configuring the range profiler");
  for (int pass = 0; !count_pass(profiler, call); ++pass) {
    if (pass == kMostPasses) throw Refusal("the counters ask for more passes than make sense");
  }
  auto decode = TESSERA_LAB_PARAMETERS(CUpti_RangeProfiler_DecodeData);
  decode.pRangeProfilerObject = profiler;
  check(cupti().decode(&decode), "collecting the counts");
  if (decode.numOfRangeDropped > 0) throw Refusal("the range was dropped");
  return total_of(host, data);
}

#else

double count(int /*device*/, const std::function<void()>& /*call*/) {
  throw Refusal(TESSERA_HAVE_CUDA ? "this build was made without CUPTI's headers" : "this build has no CUDA");
}

#endif

}  // namespace

DramCount count_dram_bytes(int device, const std::function<void()>& call) {
  try {
    const char* wanted = std::getenv("TESSERA_COUNTERS");
    if (wanted != nullptr && std::string_view(wanted) == "0") throw Refusal("TESSERA_COUNTERS=0");
    if (const std::string reason = cuda::unusable(device); !reason.empty()) throw Refusal(reason);
    return {count(device, call), "DRAM bytes read and written, counted by CUPTI's range profiler"};
  } catch (const std::exception& error) {
    return {{}, "not measured: " + one_line(error.what())};
  }
}

}  // namespace tessera::lab
