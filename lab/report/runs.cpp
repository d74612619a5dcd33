#include "lab/report/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lab/measure/fields.h"
#include "lab/report/figure/fields.h"
#include "lab/report/figure/marks.h"
#include "lab/report/figure/rows.h"
#include "lab/terminal/errors.h"
#include "lab/terminal/text.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

constexpr double kNoisyShare = 0.2;  // of the rows of a run

std::string string_of(const json& row, const char* field) {
  return row.contains(field) && row[field].is_string() ? row[field].get<std::string>() : std::string();
}

// "NVIDIA L4" or "AMD EPYC 9B45": what was computed on, without the rest of the machine.
std::string short_label(const Run& run) {
  return run.gpu.empty() ? split(run.machine, ',').front() : run.gpu;
}

bool same_place(const Run& a, const Run& b) {
  return a.machine == b.machine && a.device == b.device && a.gpu == b.gpu;
}

std::size_t run_of(std::vector<Run>& runs, const json& row) {
  const Run seen{.label = {},
                 .machine = string_of(row, "machine"),
                 .device = string_of(row, "device"),
                 .gpu = string_of(row, "gpu"),
                 .commit = string_of(row, "commit"),
                 .version = string_of(row, "version"),
                 .first_date = string_of(row, "date"),
                 .last_date = string_of(row, "date")};
  auto run = std::find_if(runs.begin(), runs.end(), [&](const Run& other) {
    return same_place(other, seen) && other.commit == seen.commit;
  });
  if (run == runs.end()) run = runs.insert(run, seen);
  run->first_date = std::min(run->first_date, seen.first_date);
  run->last_date = std::max(run->last_date, seen.last_date);
  ++run->rows;
  if (row["status"] == "ok") ++run->ok;
  if (row["status"] == "out_of_memory") ++run->out_of_memory;
  if (has_quartiles(row)) ++run->timed;
  if (is_noisy(row)) ++run->noisy;
  return static_cast<std::size_t>(run - runs.begin());
}

// Labels that tell runs apart: the device; where that is the same the commit, the machine, or a
// number.
void label_runs(std::vector<Run>& runs) {
  auto unique = [&](const std::string& label) {
    return std::count_if(runs.begin(), runs.end(), [&](const Run& run) { return run.label == label; }) == 1;
  };
  for (Run& run : runs) run.label = short_label(run);
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::string label = runs[i].label;
    if (!unique(label)) {
      const bool commits_differ = std::any_of(runs.begin(), runs.end(), [&](const Run& other) {
        return short_label(other) == label && other.commit != runs[i].commit;
      });
      label = commits_differ ? fmt::format("{} @ {}", label, runs[i].commit.substr(0, 7))
                             : fmt::format("{} ({})", label, runs[i].device);
    }
    if (std::find(labels.begin(), labels.end(), label) != labels.end()) label += fmt::format(" #{}", i + 1);
    labels.push_back(label);
  }
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i].label = labels[i];
}

// What one file measured of an experiment on one machine and commit.
struct Part {
  std::string path, last_date;
  std::size_t rows = 0;
  std::set<std::string> points;
};

// "a/results.jsonl (66 rows, until 2026-11-15)"
std::string part_text(const Part& part) {
  return fmt::format("{} ({}, until {})", part.path, counted(part.rows, "row"), part.last_date.substr(0, 10));
}

bool share_a_point(const Part& a, const Part& b) {
  return std::any_of(a.points.begin(), a.points.end(),
                     [&](const std::string& point) { return b.points.contains(point); });
}

// `prefer` is the file, or the folder that holds it as results.jsonl.
bool is_preferred(const std::string& path, const std::string& prefer) {
  if (prefer.empty()) return false;
  return path == prefer || path == prefer + (prefer.ends_with('/') ? "" : "/") + "results.jsonl";
}

std::vector<std::string> key_fields() {
  std::vector<std::string> names;
  for (const Field& field : fields()) {
    if (field.role == Role::key) names.push_back(field.name);
  }
  return names;
}

}  // namespace

bool Run::is_noisy() const {
  return timed > 0 && static_cast<double>(noisy) > kNoisyShare * static_cast<double>(timed);
}

bool has_quartiles(const json& row) {
  return row["status"] == "ok" && number_of(row, "median_ms").value_or(0) > 0 &&
         number_of(row, "lower_quartile_ms") && number_of(row, "upper_quartile_ms");
}

bool is_noisy(const json& row) {
  return has_quartiles(row) && *number_of(row, "upper_quartile_ms") - *number_of(row, "lower_quartile_ms") >
                                   kNoisyRange * *number_of(row, "median_ms");
}

MergedRows merge_rows(const std::vector<ResultsFile>& files, const std::string& prefer) {
  const bool known = prefer.empty() || std::any_of(files.begin(), files.end(), [&](const ResultsFile& file) {
                       return is_preferred(file.path, prefer);
                     });
  if (!known)
    throw UsageError(fmt::format("--prefer '{}': is none of the results; give one of them", prefer));

  const std::vector<std::string> point = key_fields();
  auto place_of = [](const json& row) {
    return key_of(row, {"experiment", "machine", "device", "gpu", "commit"});
  };
  std::vector<std::pair<std::string, std::vector<Part>>> places;  // in order of appearance
  for (const ResultsFile& file : files) {
    for (const json& row : file.rows) {
      const std::string key = place_of(row);
      auto found =
          std::find_if(places.begin(), places.end(), [&](const auto& one) { return one.first == key; });
      if (found == places.end()) found = places.insert(found, {key, {}});
      std::vector<Part>& parts = found->second;
      if (parts.empty() || parts.back().path != file.path) parts.push_back({file.path, "", 0, {}});
      parts.back().last_date = std::max(parts.back().last_date, string_of(row, "date"));
      ++parts.back().rows;
      parts.back().points.insert(key_of(row, point));
    }
  }

  MergedRows merged;
  std::map<std::string, std::set<std::string>> left_out;  // place: files whose rows are not drawn
  for (const auto& [key, parts] : places) {
    if (parts.size() < 2) continue;
    const auto later = std::max_element(
        parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.last_date < b.last_date; });
    const auto chosen = std::find_if(parts.begin(), parts.end(),
                                     [&](const Part& part) { return is_preferred(part.path, prefer); });
    const Part& drawn = chosen == parts.end() ? *later : *chosen;
    std::vector<std::string> others;
    for (const Part& part : parts) {
      if (&part == &drawn) continue;
      const bool again = share_a_point(part, drawn);
      if (again) left_out[key].insert(part.path);
      others.push_back(part_text(part) + (again ? "" : ", whose other points are drawn too"));
    }
    merged.notes.emplace_back(
        key.substr(0, key.find('\x1f')),
        fmt::format(
            "{} runs of one machine and commit measured this experiment. Drawn is {} {}; the others: {}. "
            "`tessera report --prefer` chooses.",
            parts.size(), chosen == parts.end() ? "the later," : "the preferred,", part_text(drawn),
            fmt::join(others, "; ")));
  }

  std::vector<std::size_t> run_index;
  for (const ResultsFile& file : files) {
    for (const json& row : file.rows) {
      const auto omitted = left_out.find(place_of(row));
      if (omitted != left_out.end() && omitted->second.contains(file.path)) continue;
      run_index.push_back(run_of(merged.runs, row));
      merged.rows.push_back(row);
    }
  }
  label_runs(merged.runs);
  for (Run& run : merged.runs) {
    run.outdated = std::any_of(merged.runs.begin(), merged.runs.end(), [&](const Run& other) {
      return same_place(run, other) && other.commit != run.commit && other.last_date > run.last_date;
    });
  }
  for (std::size_t i = 0; i < merged.rows.size(); ++i)
    merged.rows[i]["run"] = merged.runs[run_index[i]].label;
  return merged;
}

}  // namespace tessera::lab::report
