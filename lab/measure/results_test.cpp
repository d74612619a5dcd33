#include "lab/measure/results.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "lab/terminal/errors.h"
#include "lab/terminal/text.h"

namespace tessera::lab {
namespace {

using Json = nlohmann::ordered_json;

// A directory of its own for each test, gone afterwards.
class ResultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    directory_ = ::testing::TempDir() + "tessera_results_" + test + "_" + std::to_string(getpid());
    std::filesystem::remove_all(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  [[nodiscard]] std::string path() const { return directory_ + "/results.jsonl"; }
  [[nodiscard]] static std::string read(const std::string& file) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }
  void write(const std::string& text) const { std::ofstream(path()) << text; }

  // Two rows, as a run leaves them.
  void two_rows() {
    Results results(directory_, stamp_, Device::cpu(), false);
    for (const Algorithm algorithm : {Algorithm::standard, Algorithm::flash2}) {
      Row row{.method = {algorithm}};
      row.seconds = {.count = 3, .median = algorithm == Algorithm::standard ? 0.5 : 0.25};
      results.write(row, "sequence");
    }
  }

  // What is said about a file whose second line was changed.
  std::string complaint(const std::function<void(Json&)>& change) {
    two_rows();
    const std::vector<std::string> lines = split(read(path()), '\n');
    Json second = Json::parse(lines[1]);
    change(second);
    write(lines[0] + "\n" + second.dump() + "\n");
    return refusal();
  }
  std::string refusal() {
    try {
      Results again(directory_, stamp_, Device::cpu(), true);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  }

  std::string directory_;
  Stamp stamp_{"abc123", "quick"};
};

TEST_F(ResultsTest, RoundTrip) {
  two_rows();
  const std::vector<Json> rows = read_rows(path());
  ASSERT_EQ(rows.size(), 2U);
  std::vector<std::string> names;
  for (const auto& [field, value] : rows[0].items()) names.push_back(field);
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.begin() + 5),
            (std::vector<std::string>{"schema", "commit", "experiment", "date", "scale"}));
  EXPECT_EQ(rows[0]["schema"], kSchema);
  EXPECT_EQ(rows[0]["commit"], "abc123");
  EXPECT_EQ(rows[1]["median_ms"], 250.0);
  EXPECT_EQ(rows[1]["speedup_over_standard"], 2.0) << "filled in from the row before";

  const std::vector<std::string> csv = split(read(directory_ + "/results.csv"), '\n');
  ASSERT_EQ(csv.size(), 4U) << "names, two rows, and nothing after the last line end";
  EXPECT_EQ(split(csv[0], ','), names);

  const std::string before = read(path());
  Results again(directory_, stamp_, Device::cpu(), true);
  EXPECT_EQ(again.rows(), 2U);
  EXPECT_TRUE(again.has({.method = {Algorithm::flash2}}, "sequence"));
  EXPECT_FALSE(again.has({.method = {Algorithm::flash2}}, "batch"));
  EXPECT_FALSE(again.has({.method = {Algorithm::flash1}}, "sequence"));
  EXPECT_EQ(read(path()), before);
}

TEST_F(ResultsTest, AKeyHoldsEverythingThatTellsRowsApart) {
  const Row plain;
  auto key = [&](const Row& row) { return key_of(to_json(row, "x", stamp_, date_text())); };
  EXPECT_EQ(key(plain), key_of(to_json(plain, "x", stamp_, "another day")));
  Row measured = plain;
  measured.seconds.median = 1;
  measured.plan.emplace().kernel = "cpu.flash2";
  EXPECT_EQ(key(plain), key(measured)) << "known before it is measured";
  const std::vector<std::function<void(Row&)>> changes = {
      [](Row& r) { r.problem.seq = 7; },
      [](Row& r) { r.problem.batch = 7; },
      [](Row& r) { r.problem.heads = 16; },
      [](Row& r) { r.problem.dim = 7; },
      [](Row& r) { r.problem.causal = true; },
      [](Row& r) { r.problem.dtype = DType::bf16; },
      [](Row& r) { r.problem.dropout = 0.5; },
      [](Row& r) { r.problem.direction = Pass::backward; },
      [](Row& r) { r.method.label = "linformer"; },
      [](Row& r) { r.method.algorithm = Algorithm::flash1; },
      [](Row& r) { r.method.block_k = 32; },
      [](Row& r) { r.memory_budget = 1 << 20; },
      [](Row& r) { r.problem.block_mask = {"local", {2}}; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Row other = plain;
    changes[i](other);
    EXPECT_NE(key(plain), key(other)) << "change " << i;
  }
}

TEST_F(ResultsTest, NothingIsWrittenOver) {
  two_rows();
  EXPECT_THROW(Results(directory_, stamp_, Device::cpu(), false), UsageError);
  EXPECT_EQ(read_rows(path()).size(), 2U);
  Results writing(directory_, stamp_, Device::cpu(), true);
  EXPECT_THROW(Results(directory_, stamp_, Device::cpu(), true), UsageError) << "two at a time";
  EXPECT_THROW(Results("/proc/no/such/place", stamp_, Device::cpu(), false), UsageError);
}

TEST_F(ResultsTest, APartOfARowAtTheEndIsTakenAway) {
  two_rows();
  const std::string whole = read(path());
  write(whole + R"({"schema":1,"commit":"abc)");
  EXPECT_EQ(read_rows(path()).size(), 2U);
  Results again(directory_, stamp_, Device::cpu(), true);
  EXPECT_EQ(read(path()), whole);
  again.write({.method = {Algorithm::flash1}}, "sequence");
  EXPECT_EQ(read_rows(path()).size(), 3U);
}

TEST_F(ResultsTest, ForeignRowsAreNamed) {
  EXPECT_NE(complaint([](Json& row) {
              row["machine"] = "Another, 64 CPUs";
            }).find("its rows have 'machine' \"Another, 64 CPUs\", this run has"),
            std::string::npos);
  std::filesystem::remove_all(directory_);
  EXPECT_NE(complaint([](Json& row) {
              row["commit"] = "def456";
            }).find("its rows have 'commit' \"def456\", this run has \"abc123\""),
            std::string::npos);
  std::filesystem::remove_all(directory_);
  EXPECT_NE(complaint([](Json& row) { row["scale"] = "full"; }).find("its rows have 'scale'"),
            std::string::npos);
  std::filesystem::remove_all(directory_);
  EXPECT_NE(complaint([](Json& row) {
              row["schema"] = 2;
            }).find("line 2: schema 2 is unknown; this version reads schema 1"),
            std::string::npos);
}

TEST_F(ResultsTest, OtherSettingsAreNamed) {
  two_rows();
  stamp_.settings = "--threads 1";
  EXPECT_NE(
      refusal().find("its rows have 'settings' \"\", this run has \"--threads 1\"; give the same options"),
      std::string::npos)
      << refusal();
  stamp_.settings.clear();
  stamp_.study_factor = 4;
  EXPECT_NE(refusal().find("its rows have 'study_factor' null, this run has 4"), std::string::npos)
      << refusal();
}

TEST_F(ResultsTest, CorruptedRowsAreNamed) {
  EXPECT_NE(complaint([](Json& row) { row.erase("batch"); }).find("line 2: has no field 'batch'"),
            std::string::npos);
  std::filesystem::remove_all(directory_);
  EXPECT_NE(complaint([](Json& row) {
              row["batch"] = "four";
            }).find("line 2: field 'batch' is \"four\"; it must be a number"),
            std::string::npos);
  std::filesystem::remove_all(directory_);
  EXPECT_NE(complaint([](Json& row) {
              row["dtype"] = nullptr;
            }).find("line 2: field 'dtype' is null; it must be a string"),
            std::string::npos);
  std::filesystem::remove_all(directory_);
  EXPECT_NE(complaint([](Json& row) { row["algorithm"] = "standard"; }).find("line 2: repeats "),
            std::string::npos);
  const std::string first = split(read(path()), '\n')[0];
  write(first + "\n{\"schema\":1,\n");
  EXPECT_NE(refusal().find("line 2: is not JSON: '{\"schema\":1,'"), std::string::npos);
  write(first + "\n[1]\n");
  EXPECT_NE(refusal().find("line 2: has no field 'schema'"), std::string::npos);
  write(first + "\n{\"time\":1}\n");
  EXPECT_NE(refusal().find("line 2: has no field 'schema'"), std::string::npos);
  EXPECT_THROW(read_rows(directory_ + "/none.jsonl"), UsageError);
}

}  // namespace
}  // namespace tessera::lab
