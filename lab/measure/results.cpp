#include "lab/measure/results.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "lab/commit.h"
#include "lab/measure/machine/gpu_timer.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/terminal/terminal.h"

namespace tessera::lab {
namespace {

using Json = nlohmann::ordered_json;

// The fields that identify a measurement; known before it is made.
constexpr std::array kKeyFields = {"experiment",
                                   "scale",
                                   "device",
                                   "algorithm",
                                   "direction",
                                   "dtype",
                                   "batch",
                                   "q_length",
                                   "k_length",
                                   "q_heads",
                                   "kv_heads",
                                   "qk_dim",
                                   "v_dim",
                                   "mask",
                                   "bias",
                                   "alibi",
                                   "softcap",
                                   "dropout",
                                   "seed",
                                   "requested_block_k",
                                   "memory_budget_bytes"};

// The fields in which all rows of a file agree.
constexpr std::array kRunFields = {"machine", "gpu", "device", "version", "commit", "scale"};

// An empty row: what fields there are, and of what kind.
const Json& pattern() {
  static const Json kRow = to_json(Row{}, "", Stamp{"", ""}, "");
  return kRow;
}

bool alike(const Json& a, const Json& b) { return (a.is_number() && b.is_number()) || a.type() == b.type(); }

// Throws ResultsError unless `row` has the schema of this program.
void check_row(const Json& row, const std::string& where) {
  if (!row.is_object()) throw ResultsError(fmt::format("{}: is {}, not a row", where, row.type_name()));
  const auto schema = row.find("schema");
  if (schema == row.end())
    throw ResultsError(fmt::format("{}: has no \"schema\": not a row of tessera lab", where));
  if (*schema != kSchema) {
    throw ResultsError(fmt::format("{}: has schema {}; this version of tessera knows schema {}", where,
                                   schema->dump(), kSchema));
  }
  for (const auto& [field, value] : pattern().items()) {
    const auto found = row.find(field);
    if (found == row.end()) throw ResultsError(fmt::format("{}: has no \"{}\"", where, field));
    // Null stands for unknown; where the empty row has a value, every row has one.
    if (!value.is_null() && !found->is_null() && !alike(*found, value)) {
      throw ResultsError(
          fmt::format("{}: \"{}\" is {}; it must be a {}", where, field, found->dump(), value.type_name()));
    }
  }
  for (const char* field : kKeyFields) {
    if (row[field].is_null() && !pattern()[field].is_null()) {
      throw ResultsError(
          fmt::format("{}: \"{}\" is null; it must be a {}", where, field, pattern()[field].type_name()));
    }
  }
}

struct ResultsText {
  std::string text;         // whole lines
  bool unfinished = false;  // there was a part of another one
};

ResultsText read_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ResultsError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  std::stringstream all;
  all << file.rdbuf();
  ResultsText result{all.str()};
  const std::size_t end = result.text.rfind('\n');
  const std::size_t whole = end == std::string::npos ? 0 : end + 1;
  result.unfinished = whole < result.text.size();
  result.text.resize(whole);
  return result;
}

std::vector<Json> parse_lines(const std::string& path, const std::string& text) {
  std::vector<Json> rows;
  std::map<std::string, std::size_t> lines;
  std::istringstream stream(text);
  std::size_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    const std::string where = fmt::format("{}, line {}", path, ++number);
    Json row = Json::parse(line, nullptr, false);
    if (row.is_discarded()) {
      throw ResultsError(fmt::format("{}: is not JSON: '{}'", where, line.substr(0, 60)));
    }
    check_row(row, where);
    const auto [known, fresh] = lines.emplace(key_of(row), number);
    if (!fresh) throw ResultsError(fmt::format("{}: repeats line {}", where, known->second));
    rows.push_back(std::move(row));
  }
  return rows;
}

void write_line(std::FILE* file, const std::string& path, const std::string& line) {
  const std::string text = line + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (!written || std::fflush(file) != 0) {
    throw OutputError(fmt::format("cannot write '{}': {}", path, std::strerror(errno)));
  }
}

std::optional<double> median_seconds(const Json& row) {
  const Json& median = row["median_ms"];
  if (!median.is_number()) return {};
  return median.get<double>() / 1e3;
}

}  // namespace

std::string commit_text() { return TESSERA_COMMIT; }

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

Json to_json(const Row& row, const std::string& experiment, const Stamp& stamp, const std::string& date) {
  Json all = {{"schema", kSchema},
              {"commit", stamp.commit},
              {"experiment", experiment},
              {"date", date},
              {"scale", stamp.scale}};
  const Json fields = to_json(row);
  for (const auto& [field, value] : fields.items()) all[field] = value;
  return all;
}

std::string key_of(const Json& row) {
  std::string key;
  for (const char* field : kKeyFields) key += row.at(field).dump() + " ";
  return key;
}

std::vector<Json> read_results(const std::string& path) { return parse_lines(path, read_lines(path).text); }

Results::Results(const std::string& directory, const Stamp& stamp, Device device, bool resume)
    : stamp_(stamp), directory_(directory), json_path_(directory + "/results.jsonl") {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw UsageError(fmt::format("--out '{}': cannot be made: {}", directory, error.message()));
  json_ = open(json_path_, "a");
  if (flock(fileno(json_.get()), LOCK_EX | LOCK_NB) != 0) {
    throw UsageError(fmt::format("--out '{}': another tessera lab is writing there", directory));
  }
  if (!resume && std::filesystem::file_size(json_path_) > 0) {
    throw UsageError(fmt::format(
        "--out '{}': has results already; --resume continues them, or choose another directory", directory));
  }
  const std::string csv_path = directory + "/results.csv";
  keep_rows(device);
  csv_ = open(csv_path, "w");
  write_line(csv_.get(), csv_path, csv_header(pattern()));
  for (const Json& row : read_results(json_path_)) {
    add(row);
    write_line(csv_.get(), csv_path, to_csv(row));
  }
}

Results::File Results::open(const std::string& path, const char* mode) {
  File file(std::fopen(path.c_str(), mode));
  if (!file) throw UsageError(fmt::format("--out: '{}' cannot be written: {}", path, std::strerror(errno)));
  return file;
}

// Checks that the rows in the file are those of this run, and takes away the part of a row at its end.
void Results::keep_rows(Device device) {
  Row here;
  here.device = device;
  const Json wanted = to_json(here, "", stamp_, "");
  const ResultsText kept = read_lines(json_path_);
  std::size_t line = 0;
  for (const Json& row : parse_lines(json_path_, kept.text)) {
    ++line;
    for (const char* field : kRunFields) {
      if (row[field] == wanted[field]) continue;
      throw ResultsError(fmt::format(
          "{}, line {}: \"{}\" is {}, here it is {}; one file holds one run: choose another --out",
          json_path_, line, field, row[field].dump(), wanted[field].dump()));
    }
  }
  if (kept.unfinished && ftruncate(fileno(json_.get()), static_cast<off_t>(kept.text.size())) != 0) {
    throw OutputError(fmt::format("cannot write '{}': {}", json_path_, std::strerror(errno)));
  }
}

void Results::add(const Json& row) { medians_.emplace(key_of(row), median_seconds(row)); }

bool Results::has(const Row& row, const std::string& experiment) const {
  return medians_.count(key_of(to_json(row, experiment, stamp_, ""))) > 0;
}

std::optional<double> Results::standard_seconds(const Row& row, const std::string& experiment) const {
  Row standard = row;
  standard.algorithm = Algorithm::standard;
  standard.label.clear();
  const auto found = medians_.find(key_of(to_json(standard, experiment, stamp_, "")));
  return found == medians_.end() ? std::nullopt : found->second;
}

void Results::write(Row row, const std::string& experiment) {
  if (row.status == Status::ok && !row.speedup && row.seconds.median > 0) {
    if (const auto standard = standard_seconds(row, experiment)) row.speedup = *standard / row.seconds.median;
  }
  const Json json = to_json(row, experiment, stamp_, date_text());
  // Text of the system that is not UTF-8 must not end a run.
  write_line(json_.get(), json_path_, json.dump(-1, ' ', false, Json::error_handler_t::replace));
  write_line(csv_.get(), directory_ + "/results.csv", to_csv(json));
  add(json);
}

void Results::describe(const std::vector<const Experiment*>& chosen) const {
  const std::string path = directory_ + "/experiments.json";
  const File file = open(path, "w");
  write_line(file.get(), path, to_json(chosen).dump(2));
}

}  // namespace tessera::lab
