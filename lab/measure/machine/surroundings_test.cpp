#include "lab/measure/machine/surroundings.h"

#include <gtest/gtest.h>

#include <thread>

namespace tessera::lab {
namespace {

TEST(Surroundings, ReadsTheVersionOfADriver) {
  EXPECT_EQ(driver_version(
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
                "GCC version:  gcc version 12.2.0"),
            "550.54.15");
  EXPECT_EQ(driver_version(""), "");
}

TEST(Surroundings, AreThoseOfTheDevice) {
  const Surroundings& cpu = surroundings(Device::cpu());
  EXPECT_GE(cpu.usable_cpus, 1);
  EXPECT_LE(cpu.usable_cpus, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_TRUE(cpu.driver.empty() && cpu.cuda.empty()) << "those of a GPU do not concern a CPU's rows";
  EXPECT_TRUE(surroundings(Device::cuda()).libraries.empty());
  EXPECT_GE(load_average().value_or(0), 0);
}

}  // namespace
}  // namespace tessera::lab
