#include "cuda/common/host/images.h"

#include <gtest/gtest.h>

#include <string_view>

#include "cuda/common/host/device.h"

namespace tessera::cuda {
namespace {

void expect_image(std::string_view architectures, int gpu, int capability, bool ptx = false) {
  const Image image = image_for(architectures, gpu);
  EXPECT_EQ(image.capability, capability) << architectures << " on " << gpu;
  EXPECT_EQ(image.ptx, capability != 0 && ptx) << architectures << " on " << gpu;
}

TEST(Images, MachineCodeOfTheSameMajorVersionComesFirst) {
  constexpr std::string_view kUsual = "80-real;90-real;90-virtual";
  expect_image(kUsual, 75, 0);
  expect_image(kUsual, 80, 80);
  expect_image(kUsual, 86, 80);
  expect_image(kUsual, 89, 80);
  expect_image(kUsual, 90, 90);
  expect_image(kUsual, 100, 90, true);
  expect_image(kUsual, 120, 90, true);
  expect_image("80-real;86-real;80-virtual", 89, 86);
}

TEST(Images, ElseTheNewestPtxThatIsNotNewerThanTheGpu) {
  expect_image("80-real;86-virtual", 90, 86, true);
  expect_image("80-real;86-virtual", 80, 80);
  expect_image("80-real", 90, 0);
  expect_image("80-real;100-real;100-virtual", 90, 0);
  expect_image("75-real;75-virtual", 90, 75, true);
  expect_image("80", 80, 80);  // both
  expect_image("80", 90, 80, true);
  expect_image("", 90, 0);
}

TEST(Images, CodeWithAnAIsForOneGpuAlone) {
  expect_image("90a-real", 90, 90);
  expect_image("90a-real", 89, 0);
  expect_image("90a-real", 100, 0);
}

// Code for an older GPU has no kernels that take more shared memory than that one
// has; a GPU without code is refused.
TEST(Images, LimitsFollowTheCode) {
  const DeviceLimits hopper{.capability = 90, .multiprocessors = 132, .shared_memory = 227 * 1024};
  EXPECT_EQ(limits_with_code(hopper, 0, "80-real;90-real;90-virtual").shared_memory, 227 * 1024);
  EXPECT_EQ(limits_with_code(hopper, 0, "80-real;86-virtual").shared_memory, kSharedMemoryBefore90);
  EXPECT_EQ(limits_with_code(hopper, 0, "80-real;86-virtual").failure, "");
  EXPECT_EQ(limits_with_code(hopper, 3, "80-real;100-real").failure,
            "cuda:3 has compute capability 9.0; this build has code for 80-real;100-real");
  const DeviceLimits unusable{.failure = "no driver"};
  EXPECT_EQ(limits_with_code(unusable, 0, "").failure, "no driver");
}

// Every Code of this build has machine code or PTX for the GPUs that its kernels' limits name.
TEST(Images, ThisBuildHasCodeForTheGpusItNames) {
  EXPECT_NE(image_for(architectures_of(Code::any), 75).capability, 0);
  EXPECT_NE(image_for(architectures_of(Code::any), 80).capability, 0);
  EXPECT_NE(image_for(architectures_of(Code::sm75), 75).capability, 0);
  EXPECT_NE(image_for(architectures_of(Code::sm75), 120).capability, 0);
  EXPECT_NE(image_for(architectures_of(Code::from80), 89).capability, 0);
  EXPECT_EQ(image_for(architectures_of(Code::sm90), 90).capability, 90);
}

}  // namespace
}  // namespace tessera::cuda
