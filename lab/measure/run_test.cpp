// The experiments end to end, on sizes that take no time: the sweeps themselves, sixteen times
// shorter.
#include "lab/measure/run.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "core/base/environment.h"
#include "lab/commands/application.h"
#include "lab/problem/operation.h"
#include "lab/terminal/terminal.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

using Json = nlohmann::ordered_json;

const Stamp kStamp{"abc123", "quick"};

std::vector<Measurement> tiny_measurements(const std::vector<std::string>& names) {
  std::vector<Measurement> all = measurements_of(find_experiments(names), {.scale = Scale::quick});
  for (Measurement& one : all) {
    one.problem.seq /= 16;
    one.problem.block_size /= 16;
    if (one.memory_budget) *one.memory_budget /= 64;
    one.repetitions = {.warmup = 1, .repetitions = 1};
  }
  return all;
}

std::size_t rows_of(const std::vector<Measurement>& measurements) {
  std::size_t rows = 0;
  for (const Measurement& one : measurements) rows += one.methods.size();
  return rows;
}

std::set<std::string> keys_of(const std::vector<Measurement>& measurements) {
  std::set<std::string> keys;
  for (const Measurement& one : measurements) {
    for (const Method& method : one.methods) {
      keys.insert(key_of(to_json(row_before(one, method), one.experiment, kStamp, "")));
    }
  }
  return keys;
}

std::set<std::string> keys_in(const std::string& path) {
  std::set<std::string> keys;
  for (const Json& row : read_rows(path)) keys.insert(key_of(row));
  return keys;
}

std::string read(const std::string& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

std::string fresh_directory(const std::string& name) {
  const std::string directory = ::testing::TempDir() + "tessera_lab_" + name + "_" + std::to_string(getpid());
  std::filesystem::remove_all(directory);
  return directory;
}

TEST(Experiments, EverySweepCanBeReadAtEveryScale) {
  for (const Device device : {Device::cpu(), Device::cuda()}) {
    for (const Scale scale : {Scale::quick, Scale::normal, Scale::full}) {
      for (const Experiment* experiment : find_own_experiments({})) {
        const std::vector<Measurement> measurements =
            measurements_of({experiment}, {.scale = scale, .device = device});
        EXPECT_EQ(measurements.empty(), experiment->levels && device.type == DeviceType::cuda)
            << experiment->name;
        EXPECT_EQ(keys_of(measurements).size(), rows_of(measurements))
            << experiment->name << ": a measurement twice";
        for (const Measurement& one : measurements) {
          if (one.level.empty()) {
            EXPECT_NO_THROW(Operation(one.problem));
          }
        }
      }
    }
  }
}

TEST(Experiments, AreThoseOfTheStudies) {
  for (const char* name :
       {"sequence", "batch",    "causal",        "heads",   "embedding",  "direction", "head_dim",
        "heatmap",  "summary",  "out_of_memory", "traffic", "block_size", "sparsity",  "long",
        "minimal",  "accuracy", "training",      "gpt",     "peers",      "steps",     "hierarchy"}) {
    EXPECT_EQ(find_experiments({name}).size(), 1U);
  }
  EXPECT_EQ(find_experiments({}).size(), experiments().size());
  EXPECT_EQ(find_experiments({"long", "batch", "long"}).size(), 2U);
  try {
    find_experiments({"sequense"});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("experiment 'sequense': did you mean sequence?"),
              std::string::npos);
  }
}

TEST(Experiments, ThoseOfOtherProgramsAreNamedAndLeftToThem) {
  EXPECT_EQ(find_own_experiments({}).size() + python_experiments().size(), experiments().size());
  EXPECT_EQ(find_own_experiments({"long", "batch"}).size(), 2U);
  for (const Experiment& experiment : python_experiments()) {
    EXPECT_TRUE(experiment.problems.empty());
    EXPECT_FALSE(experiment.figures.empty());
    try {
      find_own_experiments({"batch", experiment.name});
      FAIL();
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("python -m tessera.lab " + experiment.name),
                std::string::npos);
    }
  }
}

// Whether some row gives the figure something to draw, or says why it cannot: counters of the
// machine.
bool fills(const Figure& figure, const std::vector<Json>& rows) {
  return std::any_of(rows.begin(), rows.end(), [&](const Json& row) {
    std::vector<std::string> needed = {figure.x, figure.value};
    for (const auto* more : {&figure.series, &figure.facets, &figure.bounds}) {
      needed.insert(needed.end(), more->begin(), more->end());
    }
    if (figure.kind != FigureKind::table) needed.push_back(figure.y.front());
    return std::all_of(needed.begin(), needed.end(), [&](const std::string& field) {
      if (field == "measured_traffic_bytes" && row.at(field).is_null())
        return row.at("measured_traffic_note").get<std::string>().rfind("not measured: ", 0) == 0;
      return field.empty() || !row.at(field).is_null();
    });
  });
}

class EveryExperiment : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryExperiment, FillsItsFigures) {
  const Experiment& experiment = *find_experiments({GetParam()}).front();
  const std::vector<Measurement> measurements = tiny_measurements({GetParam()});
  const std::string directory = fresh_directory(GetParam());
  {
    Results results(directory, kStamp, Device::cpu(), false);
    results.describe({&experiment});
    const RunTally tally = run_all(measurements, results, {});
    EXPECT_EQ(tally.failed, 0U) << tally.first_failure;
    EXPECT_EQ(tally.measured, rows_of(measurements));
  }
  const std::vector<Json> rows = read_rows(directory + "/results.jsonl");
  EXPECT_EQ(keys_in(directory + "/results.jsonl"), keys_of(measurements));
  for (const Json& row : rows) {
    if (row["status"] == "ok") {
      EXPECT_GT(row["median_ms"].get<double>(), 0) << row.dump();
    }
    // Going forward every exact algorithm is compared with the oracle.
    const bool compared = row["status"] == "ok" && row["direction"] == "forward" &&
                          row["algorithm"] != "linformer" && row["level"].is_null();
    EXPECT_EQ(row["max_error"].is_number(), compared) << row.dump();
    if (compared) {
      EXPECT_LT(row["rms_error"].get<double>(), 0.02 * row["rms_reference"].get<double>()) << row.dump();
    }
  }
  for (const Figure& figure : experiment.figures) {
    EXPECT_TRUE(fills(figure, rows)) << figure.title;
    for (const std::string& column : figure.y) EXPECT_TRUE(rows.front().contains(column)) << column;
  }
  const Json described = Json::parse(read(directory + "/experiments.json"));
  EXPECT_EQ(described["experiments"][0]["name"], GetParam());
  EXPECT_EQ(described["experiments"][0]["figures"].size(), experiment.figures.size());
  std::filesystem::remove_all(directory);
}

std::vector<std::string> experiment_names() {
  std::vector<std::string> names;
  for (const Experiment* experiment : find_own_experiments({})) names.push_back(experiment->name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Lab, EveryExperiment, ::testing::ValuesIn(experiment_names()),
                         [](const auto& test) { return test.param; });

TEST(Run, AreContinuedWhereverTheyStopped) {
  const std::vector<Measurement> measurements = tiny_measurements({"causal", "minimal"});
  std::mt19937 random(20261115);
  for (int attempt = 0; attempt < 8; ++attempt) {
    const std::string directory = fresh_directory("resume");
    const std::string path = directory + "/results.jsonl";
    {
      Results results(directory, kStamp, Device::cpu(), false);
      std::size_t left = random() % 60;
      const RunTally tally =
          run_all(measurements, results, {.proceed = [&](const Measurement&, double) { return left-- > 0; }});
      EXPECT_TRUE(tally.stopped);
    }
    // As if it had been killed: the file ends anywhere.
    const std::size_t size = read(path).size();
    if (size > 0) std::filesystem::resize_file(path, size - random() % std::min<std::size_t>(size, 4000));
    const std::string before = read(path);
    const std::string kept = before.substr(0, before.rfind('\n') + 1);

    Results results(directory, kStamp, Device::cpu(), true);
    const std::size_t there = results.rows();
    const RunTally tally = run_all(measurements, results, {});
    EXPECT_EQ(tally.kept, there);
    EXPECT_EQ(tally.kept + tally.measured, rows_of(measurements));
    EXPECT_EQ(read(path).substr(0, kept.size()), kept) << "finished rows are as they were";
    EXPECT_EQ(keys_in(path), keys_of(measurements));
    for (const Json& row : read_rows(path)) {
      EXPECT_TRUE(row["speedup_over_standard"].is_number())
          << "standard may be of the first run: " << row.dump();
    }
    std::ifstream csv(directory + "/results.csv");
    EXPECT_EQ(std::count(std::istreambuf_iterator<char>(csv), {}, '\n'),
              static_cast<std::ptrdiff_t>(rows_of(measurements) + 1));
    std::filesystem::remove_all(directory);
  }
}

// Runs `work` in another process and sends it a signal once the file has a row and some time has
// passed.
template <typename Work>
int signalled(int signal, const std::string& path, int milliseconds, const Work& work) {
  std::fflush(nullptr);  // or the child writes it again
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(99);
    _exit(work());
  }
  for (int i = 0; i < 6000 && read(path).empty(); ++i) usleep(10'000);
  usleep(static_cast<useconds_t>(milliseconds) * 1000);
  kill(child, signal);
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(Run, SurviveBeingKilled) {
  if (std::getenv("QEMU_CPU") != nullptr) GTEST_SKIP() << "qemu-user cannot start threads in a forked child";
  const std::vector<Measurement> measurements = tiny_measurements({"long"});
  std::mt19937 random(std::random_device{}());
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::string directory = fresh_directory("killed");
    const std::string path = directory + "/results.jsonl";
    const int status = signalled(SIGKILL, path, static_cast<int>(random() % 100), [&] {
      Results results(directory, kStamp, Device::cpu(), false);
      return run_all(measurements, results, {}).failed == 0 ? 0 : 1;
    });
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    Results results(directory, kStamp, Device::cpu(), true);
    EXPECT_GT(results.rows(), 0U);
    run_all(measurements, results, {});
    EXPECT_EQ(keys_in(path), keys_of(measurements));
    std::filesystem::remove_all(directory);
  }
}

TEST(Run, TooLargeIsAResult) {
  std::vector<Measurement> measurements = tiny_measurements({"summary", "minimal"});
  for (Measurement& one : measurements) one.memory_budget = 1000;
  const std::string directory = fresh_directory("memory");
  Results results(directory, kStamp, Device::cpu(), false);
  const RunTally tally = run_all(measurements, results, {});
  EXPECT_EQ(tally.failed, 0U);
  EXPECT_EQ(tally.measured, rows_of(measurements));
  for (const Json& row : read_rows(results.path())) {
    EXPECT_EQ(row["status"], "out_of_memory");
    EXPECT_NE(row["reason"].get<std::string>().find("the budget is 1000 B"), std::string::npos);
    EXPECT_TRUE(row["median_ms"].is_null());
    EXPECT_EQ(row["memory_budget_bytes"], 1000);
  }
  std::filesystem::remove_all(directory);
}

TEST(Run, TheFrontierHasTwoSides) {
  const std::string directory = fresh_directory("frontier");
  Results results(directory, kStamp, Device::cpu(), false);
  std::vector<Measurement> measurements = tiny_measurements({"out_of_memory"});
  run_all(measurements, results, {});
  std::map<std::string, int> seen;
  for (const Json& row : read_rows(results.path())) ++seen[row["status"].get<std::string>()];
  EXPECT_GT(seen["ok"], 0);
  EXPECT_GT(seen["out_of_memory"], 0);
  std::filesystem::remove_all(directory);
}

TEST(Run, ABaselineIsComparedWithStandard) {
  const std::string directory = fresh_directory("speedup");
  Results results(directory, kStamp, Device::cpu(), false);
  run_all(tiny_measurements({"minimal"}), results, {});
  std::map<std::int64_t, double> standard;
  for (const Json& row : read_rows(results.path())) {
    const auto length = row["q_length"].get<std::int64_t>();
    if (row["algorithm"] == "standard") standard[length] = row["median_ms"];
    if (row["algorithm"] != "minimal") continue;
    EXPECT_EQ(row["kernel"], "lab.minimal");
    EXPECT_DOUBLE_EQ(row["speedup_over_standard"].get<double>(),
                     standard.at(length) / row["median_ms"].get<double>());
  }
  std::filesystem::remove_all(directory);
}

TEST(Run, TilesAreForced) {
  for (Measurement one : tiny_measurements({"block_size"})) {
    const std::int64_t block_k = one.methods.front().block_k;
    if (block_k > 64) continue;
    const auto rows = run(one, [](double) { return true; });
    ASSERT_TRUE(rows);
    if (rows->front().status == Status::unsupported) GTEST_SKIP() << rows->front().reason;
    EXPECT_EQ(rows->front().plan->block_k, block_k);
    ASSERT_TRUE(rows->front().theory);
    EXPECT_GE(rows->front().theory->tile_bytes, rows->front().plan->minimum_bytes);
    one.methods.front().algorithm = Algorithm::standard;  // has no such tile
    const auto fixed = run(one, [](double) { return true; });
    EXPECT_EQ(fixed->front().status, Status::unsupported);
    EXPECT_NE(fixed->front().reason.find("fixed tiles"), std::string::npos) << fixed->front().reason;
  }
  EXPECT_FALSE(core::environment().block_k) << "nothing stays behind";
}

TEST(Lab, ListExplains) {
  auto output = [](std::vector<const char*> words) {
    ::testing::internal::CaptureStdout();
    const int code = run_application(static_cast<int>(words.size()), words.data());
    EXPECT_EQ(code, 0);
    return ::testing::internal::GetCapturedStdout();
  };
  const std::string all = output({"tessera", "lab", "--list"});
  for (const Experiment& experiment : experiments()) {
    EXPECT_NE(("\n" + all).find("\n" + experiment.name + " "), std::string::npos) << experiment.name;
    const std::string one = output({"tessera", "lab", experiment.name.c_str(), "--list"});
    const std::string how = !experiment.program.empty() ? experiment.program
                            : experiment.levels         ? "reads"
                                                        : "quick";
    for (const std::string& word : {experiment.title, how, std::string("figures")}) {
      EXPECT_NE(one.find(word), std::string::npos) << one;
    }
  }
}

TEST(Lab, WrongArgumentsAreNamed) {
  auto code = [](std::vector<const char*> words) {
    ::testing::internal::CaptureStderr();
    const int result = run_application(static_cast<int>(words.size()), words.data());
    EXPECT_FALSE(::testing::internal::GetCapturedStderr().empty());
    return result;
  };
  EXPECT_EQ(code({"tessera", "lab", "sequense"}), 2);
  EXPECT_EQ(code({"tessera", "lab", "--quick", "--full"}), 2);
  EXPECT_EQ(code({"tessera", "lab", "--resume"}), 2);
  EXPECT_EQ(code({"tessera", "lab", "--memory-budget", "lots"}), 2);
  EXPECT_EQ(code({"tessera", "lab", "--device", "tpu"}), 2);
  EXPECT_EQ(code({"tessera", "lab", "--study", "t5"}), 2);
  EXPECT_EQ(code({"tessera", "lab", "--study", "t4", "--quick"}), 2);
  EXPECT_EQ(code({"tessera", "lab", "batch", "--batch", "4"}), 2);
  EXPECT_EQ(code({"tessera", "lab", "--resume", "--out", "/no/such/run"}), 2);
}

TEST(Lab, InterruptedRunsSayHowToGoOn) {
  if (std::getenv("QEMU_CPU") != nullptr) GTEST_SKIP() << "qemu-user cannot start threads in a forked child";
  const std::string directory = fresh_directory("interrupt"), messages = directory + ".txt";
  const int status = signalled(SIGINT, directory + "/results.jsonl", 10, [&] {
    if (std::freopen(messages.c_str(), "w", stderr) == nullptr) return 99;
    install_signal_handlers();
    const std::vector<const char*> words = {"tessera", "lab",   "--quick",        "--device",
                                            "cpu",     "--out", directory.c_str()};
    const int code = run_application(static_cast<int>(words.size()), words.data());
    std::fflush(stderr);
    return code;
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_NE(read(messages).find("tessera lab --quick --device cpu --out '" + directory + "' --resume"),
            std::string::npos)
      << read(messages);
  EXPECT_FALSE(read_rows(directory + "/results.jsonl").empty());
  std::filesystem::remove_all(directory);
  std::filesystem::remove(messages);
}

}  // namespace
}  // namespace tessera::lab
