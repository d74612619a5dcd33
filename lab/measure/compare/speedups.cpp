#include "lab/measure/compare/speedups.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "lab/measure/fields.h"

namespace tessera::lab {
namespace {

using nlohmann::json;

constexpr const char* kField = "speedup_over_pytorch";

// Equal for rows that answer the same question by two methods.
std::string question_of(const json& row) {
  static const std::vector<std::string> kFields = [] {
    std::vector<std::string> names = field_names("lab", Role::key);
    std::erase(names, "algorithm");
    std::erase(names, "seed");
    names.insert(names.end(), {"machine", "gpu", "commit"});
    return names;
  }();
  std::string question;
  for (const std::string& field : kFields)
    question += (row.contains(field) ? row[field].dump() : "null") + " ";
  return question;
}

bool has_time(const json& row) {
  return row["status"] == "ok" && row.contains("median_ms") && row["median_ms"].is_number();
}

bool draws(const Figure& figure) {
  const std::vector<std::string> fields = fields_of(figure);
  return std::find(fields.begin(), fields.end(), kField) != fields.end();
}

}  // namespace

void compare_with_pytorch(std::vector<ResultsFile>& files) {
  std::map<std::string, double> times;  // of PyTorch, by question
  std::set<std::string> measured;       // experiments
  for (const ResultsFile& file : files) {
    for (const json& row : file.rows) {
      if (row.value("algorithm", "") != "pytorch" || !has_time(row)) continue;
      times[question_of(row)] = row["median_ms"];
      measured.insert(row["experiment"].get<std::string>());
    }
  }
  for (ResultsFile& file : files) {
    for (json& row : file.rows) {
      const auto found = times.find(question_of(row));
      const bool known = found != times.end() && has_time(row);
      row[kField] = known ? json(found->second / row["median_ms"].get<double>()) : json(nullptr);
    }
    for (Experiment& experiment : file.experiments) {
      if (measured.count(experiment.name) == 0) std::erase_if(experiment.figures, draws);
    }
  }
}

}  // namespace tessera::lab
