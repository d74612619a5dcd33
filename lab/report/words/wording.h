// The words that sentences are made of: places on an axis, ratios, comparisons of two values.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lab/report/model.h"

namespace tessera::lab::report {

// What two measurements say: a is less or more than b; they are alike (within 5 %); or their
// quartiles overlap, so that no difference is found.
enum class Verdict { less, more, alike, unclear };
Verdict compare(const Mark& a, const Mark& b);

// Whether two values differ by too little for a sentence.
bool alike(double a, double b);

// "Time" for "time"; names such as flash2 begin with a small letter also at the start of a
// sentence.
std::string capitalised(std::string text);

// "a, b and c".
std::string listed(const std::vector<std::string>& items);

// "3.1 times", "180 times"; "twice" is left to readers.
std::string times(double ratio);

// "N = 512", "8 heads", "batch 4"; a label of an axis of names as it is.
std::string where(const Axis& axis, const std::string& label);

// The same with its preposition: "at N = 512", "with 8 heads", "for flash2".
std::string at(const Axis& axis, std::size_t x);

// "179 ms ± 4 %" of a measurement with quartiles, else "179 ms".
std::string value_with_spread(const Quantity& quantity, const Mark& mark);

// A sentence with a capital letter, unless it starts with the name of a method or a model.
std::string sentence(std::string text);

// How a method compares with the baseline in several contexts, each in parentheses: "is 1.6 times
// as fast as standard (forward) and 1.7 times as fast (backward)".
struct InContext {
  const Mark *mine, *theirs;
  std::string context;  // empty: none is named
};
std::string comparison_words(const Quantity& quantity, const std::vector<InContext>& all,
                             const std::string& baseline);

}  // namespace tessera::lab::report
