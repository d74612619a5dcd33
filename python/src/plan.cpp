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

Plan plan_for(const Options& options, nb::handle batch, nb::handle q_length, nb::handle k_length,
              nb::handle q_heads, nb::handle kv_heads, nb::handle qk_dim, nb::handle v_dim, nb::handle dtype,
              nb::handle lse, bool bias, bool alibi, nb::handle packed, nb::handle device,
              nb::handle direction, nb::handle threads) {
  Attention attention = options.attention;
  static constexpr float slope = 0;  // a plan asks whether there are slopes, and reads none
  if (alibi) attention.alibi.slopes = &slope;
  const Shapes shapes{.batch = integer("batch", batch),
                      .q_length = integer("q_length", q_length),
                      .k_length = integer("k_length", k_length),
                      .q_heads = integer("q_heads", q_heads),
                      .kv_heads = integer("kv_heads", kv_heads),
                      .qk_dim = integer("qk_dim", qk_dim),
                      .v_dim = integer("v_dim", v_dim),
                      .dtype = dtype_of(word("dtype", dtype)),
                      .lse = truth("return_lse", lse),
                      .bias = bias};
  if (truth("packed", packed)) {
    attention.mask.lengths = {.count = shapes.batch, .max_q = shapes.q_length, .max_k = shapes.k_length};
  }
  return plan(attention, shapes, device_of(word("device", device)),
              direction_of(word("direction", direction)), {.threads = thread_count(threads)});
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

  module.def("plan", &plan_for, "options"_a, nb::kw_only(), "batch"_a.none() = 1, "q_length"_a.none(),
             "k_length"_a.none(), "q_heads"_a.none() = 1, "kv_heads"_a.none() = 0, "qk_dim"_a.none() = 64,
             "v_dim"_a.none() = 0, "dtype"_a.none() = "fp32", "lse"_a.none() = true, "bias"_a = false,
             "alibi"_a = false, "packed"_a.none() = false, "device"_a.none() = "cpu",
             "direction"_a.none() = "forward", "threads"_a.none() = 0,
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
