// The rows of `tessera bench` as an experiment: figures over what its sweep varied.
#include <nlohmann/json.hpp>
#include <set>

#include "lab/experiments/experiment.h"

namespace tessera::lab {
namespace {

std::size_t values_of(const std::vector<nlohmann::json>& rows, const std::string& field) {
  std::set<std::string> values;
  for (const nlohmann::json& row : rows) {
    if (row.contains(field)) values.insert(row[field].dump());
  }
  return values.size();
}

}  // namespace

Experiment bench_experiment(const std::vector<nlohmann::json>& rows) {
  std::string x;
  std::size_t most = 1;
  for (const char* field : {"q_length", "batch", "q_heads", "qk_dim", "k_length", "kept_share", "threads"}) {
    if (const std::size_t count = values_of(rows, field); count > most) {
      most = count;
      x = field;
    }
  }
  std::vector<std::string> facets;
  for (const char* field :
       {"direction", "dtype", "mask", "q_length", "batch", "q_heads", "qk_dim", "dropout"}) {
    if (field != x && values_of(rows, field) > 1) facets.emplace_back(field);
  }
  Experiment experiment{.name = "bench",
                        .title = "tessera bench",
                        .question = "How fast is each algorithm on the problems of this sweep?",
                        .origin = ""};
  for (const auto& [title, field] : {std::pair{"Time", "median_ms"}, std::pair{"Speed", "tflops"},
                                     std::pair{"Peak memory", "peak_bytes"}}) {
    Figure figure{.kind = x.empty() ? FigureKind::bars : FigureKind::lines, .title = title};
    figure.x = x.empty() ? "algorithm" : x;
    figure.y = {field};
    figure.facets = facets;
    figure.log_x = !x.empty() && x != "kept_share";
    experiment.figures.push_back(std::move(figure));
  }
  return experiment;
}

}  // namespace tessera::lab
