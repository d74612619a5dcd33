// Rows and figures for the tests of the report.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/measure/read_results.h"

namespace tessera::lab::report {

inline nlohmann::json test_row(const std::string& algorithm, int seq, double ms,
                               const std::string& machine = "CPU A, 2 CPUs") {
  return {{"schema", 1},
          {"experiment", "lengths"},
          {"machine", machine},
          {"device", "cpu"},
          {"gpu", nullptr},
          {"commit", "0123456789"},
          {"date", "2026-01-02"},
          {"status", "ok"},
          {"reason", nullptr},
          {"algorithm", algorithm},
          {"direction", "forward"},
          {"dtype", "fp32"},
          {"mask", "full"},
          {"batch", 1},
          {"q_length", seq},
          {"k_length", seq},
          {"q_heads", 2},
          {"qk_dim", 64},
          {"block_q", 64},
          {"block_k", 128},
          {"median_ms", ms},
          {"tflops", 1 / ms},
          {"peak_extra_bytes", 1024 * seq},
          {"predicted_traffic_bytes", 8.0 * seq * seq},
          {"minimum_traffic_bytes", 2048.0 * seq}};
}

inline nlohmann::json test_missing(const std::string& algorithm, int seq, const std::string& status,
                                   const std::string& reason) {
  nlohmann::json row = test_row(algorithm, seq, 1);
  row["status"] = status;
  row["reason"] = reason;
  for (const char* field : {"median_ms", "tflops", "peak_extra_bytes"}) row[field] = nullptr;
  return row;
}

// Quadratic times: standard 4, 16, 64 ms and flash2 2, 8, 16 ms at N = 128, 256, 512.
inline std::vector<nlohmann::json> test_rows() {
  return {test_row("standard", 128, 4), test_row("flash2", 128, 2),    test_row("standard", 256, 16),
          test_row("flash2", 256, 8),   test_row("standard", 512, 64), test_row("flash2", 512, 16)};
}

inline Figure test_figure(const std::string& y = "median_ms") {
  Figure spec;
  spec.title = "Time & more";
  spec.x = "q_length";
  spec.y = {y};
  spec.series = {"algorithm"};
  spec.log_x = spec.log_y = true;
  return spec;
}

inline ResultsFile test_results(std::vector<nlohmann::json> rows, Figure figure = test_figure()) {
  return {"results.jsonl",
          std::move(rows),
          {{.name = "lengths",  // no study is about it
            .title = "Sequence",
            .question = "How long?",
            .origin = "a study",
            .figures = {std::move(figure)}}}};
}

}  // namespace tessera::lab::report
