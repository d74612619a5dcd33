// Plan, and what this build and this machine offer.
#include "tessera/plan.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "arguments.h"
#include "options.h"

namespace tessera::python {
namespace {

using namespace nb::literals;

// What a plan is for, besides the options.
struct Request {
  Shapes shapes{};
  bool alibi = false, packed = false;
  Device device{};
  Direction direction = Direction::forward;
  int threads = 0;
};

// Every argument of `plan`, once: its name in Python and its place.
template <typename Visit>
void for_each_argument(Request& r, Visit&& visit) {
  visit("batch", r.shapes.batch);
  visit("q_length", r.shapes.q_length);
  visit("k_length", r.shapes.k_length);
  visit("q_heads", r.shapes.q_heads);
  visit("kv_heads", r.shapes.kv_heads);
  visit("qk_dim", r.shapes.qk_dim);
  visit("v_dim", r.shapes.v_dim);
  visit("dtype", r.shapes.dtype);
  visit("return_lse", r.shapes.lse);
  visit("bias", r.shapes.bias);
  visit("visible", r.shapes.visible);
  visit("alibi", r.alibi);
  visit("packed", r.packed);
  visit("device", r.device);
  visit("direction", r.direction);
  visit("threads", r.threads);
}

void read(const char* name, nb::handle value, std::int64_t& field) { field = integer(name, value); }
void read(const char* name, nb::handle value, bool& field) { field = truth(name, value); }
void read(const char* name, nb::handle value, DType& field) { field = dtype_of(word(name, value)); }
void read(const char* name, nb::handle value, Device& field) { field = device_of(word(name, value)); }
void read(const char* name, nb::handle value, Direction& field) { field = direction_of(word(name, value)); }
void read(const char* /*name*/, nb::handle value, int& field) { field = thread_count(value); }

Plan plan_for(const Options& options, const nb::kwargs& arguments) {
  Request request;
  std::size_t known = 0;
  std::string names;
  for_each_argument(request, [&](const char* name, auto& field) {
    names += (names.empty() ? "" : ", ") + std::string(name);
    if (!arguments.contains(name)) return;
    read(name, nb::object(arguments[name]), field);
    ++known;
  });
  if (known != arguments.size()) {
    throw nb::type_error(("plan has an unknown argument; it takes " + names).c_str());
  }
  Attention attention = options.attention;
  static constexpr float slope = 0;  // a plan asks whether there are slopes, and reads none
  if (request.alibi) attention.alibi.slopes = &slope;
  const Shapes& shapes = request.shapes;
  if (request.packed) {
    attention.mask.lengths = {.count = shapes.batch, .max_q = shapes.q_length, .max_k = shapes.k_length};
  }
  return plan(attention, shapes, request.device, request.direction, {.threads = request.threads});
}

nb::list rejected(const Plan& plan) {
  nb::list list;
  for (const Rejection& r : plan.rejected) list.append(nb::make_tuple(r.kernel, r.reason));
  return list;
}

nb::list all_devices() {
  nb::list list;
  for (const DeviceInfo& info : devices()) {
    nb::dict row;
    row["device"] = to_string(info.device);
    row["name"] = info.name;
    row["description"] = info.description;
    list.append(row);
  }
  return list;
}

nb::list all_kernels() {
  nb::list list;
  for (const KernelInfo& info : kernels()) {
    nb::dict row;
    row["name"] = info.name;
    row["algorithm"] = name(info.algorithm);
    row["direction"] = name(info.direction);
    row["device"] = name(info.device);
    row["features"] = info.features;
    row["missing"] = info.missing;
    list.append(row);
  }
  return list;
}

}  // namespace

void add_plan(nb::module_& module) {
  nb::class_<Plan>(module, "Plan", "The kernel that a call would run, and its cost; str() prints it.")
      .def_ro("kernel", &Plan::kernel, "Name of the kernel, as TESSERA_KERNEL expects it.")
      .def_prop_ro("algorithm", [](const Plan& p) { return name(p.algorithm); })
      .def_prop_ro("direction", [](const Plan& p) { return name(p.direction); })
      .def_prop_ro("device", [](const Plan& p) { return to_string(p.device); })
      .def_ro("threads", &Plan::threads, "CPU threads that it would use.")
      .def_ro("block_q", &Plan::block_q, "Queries per tile.")
      .def_ro("block_k", &Plan::block_k, "Keys per tile.")
      .def_ro("shared_memory_bytes", &Plan::shared_memory_bytes, "Shared memory per thread block (GPU).")
      .def_ro("workspace_bytes", &Plan::workspace_bytes, "Temporary memory of the call.")
      .def_ro("details", &Plan::details, "Further facts about the kernel, one per line.")
      .def_ro("flops", &Plan::flops, "Floating-point operations, by FlashAttention's convention.")
      .def_ro("visible_pairs", &Plan::visible_pairs, "(query, key) pairs that the mask leaves visible.")
      .def_ro("minimum_bytes", &Plan::minimum_bytes, "Size of all arrays: no algorithm moves less.")
      .def_ro("traffic_bytes", &Plan::traffic_bytes, "Predicted memory traffic of this kernel.")
      .def_ro("standard_traffic_bytes", &Plan::standard_traffic_bytes,
              "Predicted memory traffic of `standard`.")
      .def_ro("standard_workspace_bytes", &Plan::standard_workspace_bytes, "Temporary memory of `standard`.")
      .def_prop_ro("rejected", &rejected, "The other kernels for this direction, with reasons.")
      .def("__str__", [](const Plan& p) { return to_string(p); })
      .def("__repr__", [](const Plan& p) { return "<Plan " + p.kernel + " " + name(p.direction) + ">"; });

  module.def("plan", &plan_for, "options"_a, "arguments"_a,
             "The plan that forward or backward would follow.");
  module.def(
      "alibi_slopes", [](nb::handle heads) { return alibi_slopes(integer("heads", heads)); },
      "heads"_a.none(), "The slopes of the ALiBi paper.");
  module.def("build_info", &build_info, "How the library was built; one fact per line.");
  module.def("devices", &all_devices, "Each device of this machine: device, name, description.");
  module.def("kernels", &all_kernels,
             "Each kernel of this build: name, algorithm, direction, device, features, missing.");
}

}  // namespace tessera::python
