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
#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

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

// CUPTI's functions, by their own types. Parameters of all of them carry their size, so that a
// newer CUPTI of the same major version can tell what this one knew.
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

void* open_cupti() {
  constexpr int kBuiltWith = CUDART_VERSION / 1000;
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/",
                             "/usr/local/cuda/extras/CUPTI/lib64/", "/opt/cuda/extras/CUPTI/lib64/"}) {
    const std::string path = fmt::format("{}libcupti.so.{}", folder, kBuiltWith);
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  }
  return nullptr;
}

Cupti load_cupti() {
  Cupti cupti;
  void* handle = open_cupti();
  if (handle == nullptr) {
    cupti.missing =
        fmt::format("CUPTI (libcupti.so.{}) is not installed, or not where the loader looks for it",
                    CUDART_VERSION / 1000);
    return cupti;
  }
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr) cupti.missing = fmt::format("libcupti.so has no {}", name);
  };
  find(cupti.error_message, "cuptiGetErrorMessage");
  find(cupti.initialize, "cuptiProfilerInitialize");
  find(cupti.deinitialize, "cuptiProfilerDeInitialize");
  find(cupti.availability, "cuptiProfilerGetCounterAvailability");
  find(cupti.chip_name, "cuptiDeviceGetChipName");
  find(cupti.host_initialize, "cuptiProfilerHostInitialize");
  find(cupti.host_deinitialize, "cuptiProfilerHostDeinitialize");
  find(cupti.add_metrics, "cuptiProfilerHostConfigAddMetrics");
  find(cupti.config_size, "cuptiProfilerHostGetConfigImageSize");
  find(cupti.config, "cuptiProfilerHostGetConfigImage");
  find(cupti.evaluate, "cuptiProfilerHostEvaluateToGpuValues");
  find(cupti.enable, "cuptiRangeProfilerEnable");
  find(cupti.disable, "cuptiRangeProfilerDisable");
  find(cupti.data_size, "cuptiRangeProfilerGetCounterDataSize");
  find(cupti.data_initialize, "cuptiRangeProfilerCounterDataImageInitialize");
  find(cupti.set_config, "cuptiRangeProfilerSetConfig");
  find(cupti.start, "cuptiRangeProfilerStart");
  find(cupti.stop, "cuptiRangeProfilerStop");
  find(cupti.push, "cuptiRangeProfilerPushRange");
  find(cupti.pop, "cuptiRangeProfilerPopRange");
  find(cupti.decode, "cuptiRangeProfilerDecodeData");
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
  CUpti_Profiler_GetCounterAvailability_Params ask{};
  ask.structSize = CUpti_Profiler_GetCounterAvailability_Params_STRUCT_SIZE;
  ask.ctx = context;
  check(cupti().availability(&ask), "asking for counters");
  Image image(ask.counterAvailabilityImageSize);
  ask.pCounterAvailabilityImage = image.data();
  check(cupti().availability(&ask), "asking for counters");
  return image;
}

CUpti_Profiler_Host_Object* open_host(int device, const Image& available, Undo& undo) {
  CUpti_Device_GetChipName_Params chip{};
  chip.structSize = CUpti_Device_GetChipName_Params_STRUCT_SIZE;
  chip.deviceIndex = static_cast<std::size_t>(device);
  check(cupti().chip_name(&chip), "asking for the chip");
  CUpti_Profiler_Host_Initialize_Params open{};
  open.structSize = CUpti_Profiler_Host_Initialize_Params_STRUCT_SIZE;
  open.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
  open.pChipName = chip.pChipName;
  open.pCounterAvailabilityImage = available.data();
  check(cupti().host_initialize(&open), "opening the profiler's host side");
  undo.add([host = open.pHostObject] {
    CUpti_Profiler_Host_Deinitialize_Params close{};
    close.structSize = CUpti_Profiler_Host_Deinitialize_Params_STRUCT_SIZE;
    close.pHostObject = host;
    cupti().host_deinitialize(&close);
  });
  return open.pHostObject;
}

// The configuration that makes the hardware count the metrics.
Image config_of(CUpti_Profiler_Host_Object* host) {
  auto names = kMetrics;
  CUpti_Profiler_Host_ConfigAddMetrics_Params add{};
  add.structSize = CUpti_Profiler_Host_ConfigAddMetrics_Params_STRUCT_SIZE;
  add.pHostObject = host;
  add.ppMetricNames = names.data();
  add.numMetrics = names.size();
  check(cupti().add_metrics(&add), "choosing the counters of DRAM");
  CUpti_Profiler_Host_GetConfigImageSize_Params size{};
  size.structSize = CUpti_Profiler_Host_GetConfigImageSize_Params_STRUCT_SIZE;
  size.pHostObject = host;
  check(cupti().config_size(&size), "configuring the counters");
  Image image(size.configImageSize);
  CUpti_Profiler_Host_GetConfigImage_Params get{};
  get.structSize = CUpti_Profiler_Host_GetConfigImage_Params_STRUCT_SIZE;
  get.pHostObject = host;
  get.configImageSize = image.size();
  get.pConfigImage = image.data();
  check(cupti().config(&get), "configuring the counters");
  return image;
}

CUpti_RangeProfiler_Object* enable(CUcontext context, Undo& undo) {
  CUpti_RangeProfiler_Enable_Params on{};
  on.structSize = CUpti_RangeProfiler_Enable_Params_STRUCT_SIZE;
  on.ctx = context;
  check(cupti().enable(&on), "enabling the range profiler");
  undo.add([profiler = on.pRangeProfilerObject] {
    CUpti_RangeProfiler_Disable_Params off{};
    off.structSize = CUpti_RangeProfiler_Disable_Params_STRUCT_SIZE;
    off.pRangeProfilerObject = profiler;
    cupti().disable(&off);
  });
  return on.pRangeProfilerObject;
}

// Where the counts of one range are put.
Image data_for(CUpti_RangeProfiler_Object* profiler) {
  auto names = kMetrics;
  CUpti_RangeProfiler_GetCounterDataSize_Params size{};
  size.structSize = CUpti_RangeProfiler_GetCounterDataSize_Params_STRUCT_SIZE;
  size.pRangeProfilerObject = profiler;
  size.pMetricNames = names.data();
  size.numMetrics = names.size();
  size.maxNumOfRanges = 1;
  size.maxNumRangeTreeNodes = 1;
  check(cupti().data_size(&size), "making room for the counts");
  Image image(size.counterDataSize);
  CUpti_RangeProfiler_CounterDataImage_Initialize_Params clear{};
  clear.structSize = CUpti_RangeProfiler_CounterDataImage_Initialize_Params_STRUCT_SIZE;
  clear.pRangeProfilerObject = profiler;
  clear.counterDataSize = image.size();
  clear.pCounterData = image.data();
  check(cupti().data_initialize(&clear), "making room for the counts");
  return image;
}

// One pass over the call, within one range of our own. Whether it was the last one.
bool count_pass(CUpti_RangeProfiler_Object* profiler, const std::function<void()>& call) {
  CUpti_RangeProfiler_Start_Params start{};
  start.structSize = CUpti_RangeProfiler_Start_Params_STRUCT_SIZE;
  start.pRangeProfilerObject = profiler;
  check(cupti().start(&start), "starting the counters");
  CUpti_RangeProfiler_PushRange_Params push{};
  push.structSize = CUpti_RangeProfiler_PushRange_Params_STRUCT_SIZE;
  push.pRangeProfilerObject = profiler;
  push.pRangeName = "call";
  check(cupti().push(&push), "beginning a range");
  call();
  cuda::check(cudaDeviceSynchronize(), "waiting for a counted call");
  CUpti_RangeProfiler_PopRange_Params pop{};
  pop.structSize = CUpti_RangeProfiler_PopRange_Params_STRUCT_SIZE;
  pop.pRangeProfilerObject = profiler;
  check(cupti().pop(&pop), "ending a range");
  CUpti_RangeProfiler_Stop_Params stop{};
  stop.structSize = CUpti_RangeProfiler_Stop_Params_STRUCT_SIZE;
  stop.pRangeProfilerObject = profiler;
  check(cupti().stop(&stop), "stopping the counters");
  return stop.isAllPassSubmitted != 0;
}

double total_of(CUpti_Profiler_Host_Object* host, const Image& data) {
  auto names = kMetrics;
  std::array<double, kMetrics.size()> values{};
  CUpti_Profiler_Host_EvaluateToGpuValues_Params ask{};
  ask.structSize = CUpti_Profiler_Host_EvaluateToGpuValues_Params_STRUCT_SIZE;
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
  CUpti_Profiler_Initialize_Params initialize{};
  initialize.structSize = CUpti_Profiler_Initialize_Params_STRUCT_SIZE;
  check(cupti().initialize(&initialize), "starting CUPTI");
  undo.add([] {
    CUpti_Profiler_DeInitialize_Params end{};
    end.structSize = CUpti_Profiler_DeInitialize_Params_STRUCT_SIZE;
    cupti().deinitialize(&end);
  });
  CUcontext const context = current_context();
  const Image available = available_counters(context);
  CUpti_Profiler_Host_Object* const host = open_host(device, available, undo);
  const Image config = config_of(host);
  CUpti_RangeProfiler_Object* const profiler = enable(context, undo);
  Image data = data_for(profiler);

  CUpti_RangeProfiler_SetConfig_Params set{};
  set.structSize = CUpti_RangeProfiler_SetConfig_Params_STRUCT_SIZE;
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
  CUpti_RangeProfiler_DecodeData_Params decode{};
  decode.structSize = CUpti_RangeProfiler_DecodeData_Params_STRUCT_SIZE;
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
