#include "cpu/kernels.h"

#include "cpu/baselines/flash1/kernel.h"
#include "cpu/baselines/standard/kernel.h"
#include "cpu/decode/kernel.h"
#include "cpu/flash2/kernel.h"
#include "cpu/packed/kernel.h"

namespace tessera::cpu {
namespace {

using core::Features;
using core::Kernel;

constexpr std::string_view kHardware = "the CPU";

// A CPU kernel supports every feature.
constexpr Kernel kKernels[] = {
    {
        .name = "cpu.decode",
        .algorithm = Algorithm::flash2,
        .direction = Direction::forward,
        .device = DeviceType::cpu,
        .hardware = kHardware,
        .priority = 110,
        .features = Features::all(),
        .choose = choose_decode,
        .details = decode_details,
        .run = run_decode,
        .prefers_another = decode_prefers_another,
    },
    {
        .name = "cpu.packed",
        .algorithm = Algorithm::flash2,
        .direction = Direction::forward,
        .device = DeviceType::cpu,
        .hardware = kHardware,
        .priority = 105,
        .features = Features::all(),
        .choose = choose_packed,
        .details = packed_details,
        .run = run_packed,
    },
    {
        .name = "cpu.flash2",
        .algorithm = Algorithm::flash2,
        .direction = Direction::forward,
        .device = DeviceType::cpu,
        .hardware = kHardware,
        .priority = 100,
        .features = Features::all(),
        .choose = choose_flash2_forward,
        .details = flash2_forward_details,
        .run = run_flash2_forward,
    },
    {
        .name = "cpu.flash2",
        .algorithm = Algorithm::flash2,
        .direction = Direction::backward,
        .device = DeviceType::cpu,
        .hardware = kHardware,
        .priority = 100,
        .features = Features::all(),
        .choose = choose_flash2_backward,
        .details = flash2_backward_details,
        .run = run_flash2_backward,
    },
    {
        .name = "cpu.flash1",
        .algorithm = Algorithm::flash1,
        .direction = Direction::forward,
        .device = DeviceType::cpu,
        .hardware = kHardware,
        .priority = 50,
        .features = Features::all(),
        .choose = choose_flash1_forward,
        .details = flash1_forward_details,
        .run = run_flash1_forward,
    },
    {
        .name = "cpu.flash1",
        .algorithm = Algorithm::flash1,
        .direction = Direction::backward,
        .device = DeviceType::cpu,
        .hardware = kHardware,
        .priority = 50,
        .features = Features::all(),
        .choose = choose_flash1_backward,
        .details = flash1_backward_details,
        .run = run_flash1_backward,
    },
    {
        .name = "cpu.standard",
        .algorithm = Algorithm::standard,
        .direction = Direction::forward,
        .device = DeviceType::cpu,
        .hardware = kHardware,
        .priority = 10,
        .features = Features::all(),
        .choose = choose_standard,
        .details = standard_details,
        .run = run_standard,
    },
    {
        .name = "cpu.standard",
        .algorithm = Algorithm::standard,
        .direction = Direction::backward,
        .device = DeviceType::cpu,
        .hardware = kHardware,
        .priority = 10,
        .features = Features::all(),
        .choose = choose_standard,
        .details = standard_details,
        .run = run_standard,
    },
};

}  // namespace

std::span<const Kernel> kernels() { return kKernels; }

}  // namespace tessera::cpu
