#include "cpu/kernels.h"

#include "cpu/baselines/flash1/kernel.h"
#include "cpu/baselines/standard/kernel.h"
#include "cpu/decode/kernel.h"
#include "cpu/flash2/kernel.h"
#include "cpu/packed/kernel.h"

namespace tessera::cpu {
namespace {

using registry::Features;
using registry::Kernel;

constexpr Kernel kKernels[] = {
    {
        .name = "cpu.decode",
        .algorithm = Algorithm::flash2,
        .direction = Direction::forward,
        .device = DeviceType::cpu,
        .priority = 110,
        .features = Features::all(),
        .limits = decode_limits,
        .configure = decode_configuration,
        .details = decode_details,
        .run = decode_forward,
        .yields = decode_yields,
    },
    {
        .name = "cpu.packed",
        .algorithm = Algorithm::flash2,
        .direction = Direction::forward,
        .device = DeviceType::cpu,
        .priority = 105,
        .features = Features::all(),
        .limits = packed_limits,
        .configure = packed_configuration,
        .details = packed_details,
        .run = packed_forward,
    },
    {
        .name = "cpu.flash2",
        .algorithm = Algorithm::flash2,
        .direction = Direction::forward,
        .device = DeviceType::cpu,
        .priority = 100,
        .features = Features::all(),
        .limits = nullptr,
        .configure = flash2_forward_configuration,
        .details = flash2_forward_details,
        .run = flash2_forward,
    },
    {
        .name = "cpu.flash2",
        .algorithm = Algorithm::flash2,
        .direction = Direction::backward,
        .device = DeviceType::cpu,
        .priority = 100,
        .features = Features::all(),
        .limits = nullptr,
        .configure = flash2_backward_configuration,
        .details = flash2_backward_details,
        .run = flash2_backward,
    },
    {
        .name = "cpu.flash1",
        .algorithm = Algorithm::flash1,
        .direction = Direction::forward,
        .device = DeviceType::cpu,
        .priority = 50,
        .features = Features::all(),
        .limits = flash1_limits,
        .configure = flash1_forward_configuration,
        .details = flash1_details,
        .run = flash1_forward,
    },
    {
        .name = "cpu.flash1",
        .algorithm = Algorithm::flash1,
        .direction = Direction::backward,
        .device = DeviceType::cpu,
        .priority = 50,
        .features = Features::all(),
        .limits = flash1_limits,
        .configure = flash1_backward_configuration,
        .details = flash1_details,
        .run = flash1_backward,
    },
    {
        .name = "cpu.standard",
        .algorithm = Algorithm::standard,
        .direction = Direction::forward,
        .device = DeviceType::cpu,
        .priority = 10,
        .features = Features::all(),
        .limits = standard_limits,
        .configure = standard_configuration,
        .details = standard_details,
        .run = standard_forward,
    },
    {
        .name = "cpu.standard",
        .algorithm = Algorithm::standard,
        .direction = Direction::backward,
        .device = DeviceType::cpu,
        .priority = 10,
        .features = Features::all(),
        .limits = standard_limits,
        .configure = standard_configuration,
        .details = standard_details,
        .run = standard_backward,
    },
};

}  // namespace

std::span<const Kernel> kernels() { return kKernels; }

}  // namespace tessera::cpu
