// The binary interface of DLPack 1.x, as its specification lays it out: what
// distributions ship as <dlpack/dlpack.h> is often older and knows neither versions
// nor the C exchange table. The library itself reads the DLTensor.
#pragma once

#include <cstdint>

namespace tessera::python::dlpack {

struct Device {
  std::int32_t type;
  std::int32_t index;
};

inline constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13;

struct Type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

inline constexpr std::uint8_t kInt = 0, kUInt = 1, kFloat = 2, kOpaque = 3, kBfloat = 4, kComplex = 5,
                              kBool = 6;

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  Type dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: no gaps
  std::uint64_t byte_offset;
};

// What a capsule named "dltensor" holds.
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

inline constexpr std::uint64_t kReadOnly = 1;  // in ManagedVersioned::flags

// What a capsule named "dltensor_versioned" holds.
struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

// What `type(array).__dlpack_c_exchange_api__`, a capsule named "dlpack_exchange_api", holds:
// functions instead of Python calls. They return 0, or -1 with a Python exception set.
struct Exchange {
  Version version;
  Exchange* previous;
  int (*allocate)(Tensor* prototype, ManagedVersioned** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*from_object)(void* object, ManagedVersioned** out);
  int (*to_object)(ManagedVersioned* tensor, void** out);
  int (*view_of_object)(void* object, Tensor* out);  // borrowed; may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device_index, void** out);
};

}  // namespace tessera::python::dlpack
